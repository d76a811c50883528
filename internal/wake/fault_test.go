package wake

import (
	"testing"
	"time"
)

func TestBackoffDoublesWithinItsBounds(t *testing.T) {
	for n, most := range map[int]time.Duration{
		0: 50 * ms, 1: 50 * ms, 2: 100 * ms, 4: 400 * ms, 7: 3200 * ms, 8: 5 * time.Second, 9: 5 * time.Second, 1 << 40: 5 * time.Second,
	} {
		seen := make(map[time.Duration]bool)
		for range 100 {
			d := backoff(n)
			if d < most/2 || d > most {
				t.Fatalf("after %d failures %v, want %v to %v", n, d, most/2, most)
			}
			seen[d] = true
		}
		if len(seen) < 50 {
			t.Errorf("after %d failures only %d different pauses", n, len(seen))
		}
	}
}

func TestServerDownForAMinute(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, log *logBuffer) {
		idleGroups(f, 120)
		subs := make([]*Subscription, 121)
		for id := 1; id <= 120; id++ {
			subs[id] = h.Subscribe(id, id)
		}
		after(10 * time.Second)
		from := time.Now()
		f.setDown(true)
		for range 600 {
			after(100 * time.Millisecond)
			h.Announce(1, Inboxed) // producers go on
			h.Announce(2, Appended)
			subs[3].Looked(true)
		}
		// Four kinds of statements, each with about 31 tries at most.
		if f.get(&f.tries) > 4*31 || f.get(&f.tries) < 4*8 {
			t.Errorf("%d tries in a minute", f.get(&f.tries))
		}
		for _, what := range []string{"polling for work failed", "announcing failed", "listening connection is lost", "sequencing what waits"} {
			if n := len(log.lines("WARN", what)); n != 1 {
				t.Errorf("%d lines %q in a minute, want 1", n, what)
			}
		}
		if h.State().Listening {
			t.Error("still listening")
		}

		f.setDown(false)
		f.set(Probed{Group: 120, Stream: 120, Head: 1, NextDue: -1})
		for _, sub := range subs[1:] {
			woken(sub)
		}
		if d := wakeAfter(subs[120], 10*time.Second); d < 0 || d > 5*time.Second {
			t.Errorf("work was found %v after the server was back", d)
		}
		after(10 * time.Second)
		for _, what := range []string{"polling works again", "listening works again"} {
			if n := len(log.lines("INFO", what)); n != 1 {
				t.Errorf("%d lines %q, want 1", n, what)
			}
		}
		st := h.State()
		if !st.Listening || st.Reconnects != 1 || st.Unsent == 0 {
			t.Errorf("state %+v", st)
		}
		if n := f.count(&f.probes, from); n == 0 {
			t.Error("no probe after the server was back")
		}
	})
}

func TestRecoveryProbesAllGroupsAtOnce(t *testing.T) {
	bubble(t, Config{PollOnly: true, PollInterval: 20 * time.Second}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		idleGroups(f, 500)
		for id := 1; id <= 500; id++ {
			h.Subscribe(id, id)
		}
		after(time.Minute)
		f.setDown(true)
		after(21 * time.Second) // at least one probe fails
		f.setDown(false)
		from := time.Now()
		after(6 * time.Second)
		probed := make(map[int]bool)
		calls := f.calls(&f.probes, from)
		for _, c := range calls {
			if c.at.Sub(calls[0].at) < 50*ms {
				for _, id := range c.groups {
					probed[id] = true
				}
			}
		}
		if len(probed) != 500 || len(calls) != 10 {
			t.Errorf("%d of 500 groups were probed at once, with %d probes", len(probed), len(calls))
		}
	})
}

func TestAFailedProbeIsNotLeftToTheNextInterval(t *testing.T) {
	bubble(t, Config{PollOnly: true, PollInterval: time.Minute}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		idleGroups(f, 1)
		sub := h.Subscribe(1, 1)
		after(10 * time.Second)
		f.setDown(true)
		for f.get(&f.tries) == 0 {
			after(100 * ms)
		}
		f.setDown(false)
		f.set(Probed{Group: 1, Stream: 1, Head: 1, NextDue: -1})
		if d := wakeAfter(sub, time.Minute); d < 0 || d > time.Second {
			t.Errorf("woken after %v", d)
		}
	})
}

func TestLeftOutFailuresAreCounted(t *testing.T) {
	bubble(t, Config{PollOnly: true}, func(t *testing.T, h *Hub, f *fakeSource, log *logBuffer) {
		f.setDown(true)
		h.Subscribe(1, 1)
		after(3 * time.Minute)
		lines := log.lines("WARN", "polling for work failed", "code=SQL0250")
		if len(lines) < 3 || len(lines) > 4 {
			t.Fatalf("%d lines in three minutes", len(lines))
		}
		if len(log.lines("left_out=0")) != 1 {
			t.Error("later lines do not tell how many were left out")
		}
	})
}
