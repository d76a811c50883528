package wake

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestAnnouncementsOfAStreamCoalesce(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		from := time.Now()
		for range 101 { // 0 to 20 ms
			h.Announce(1, Appended)
			after(ms / 5)
		}
		after(time.Second)
		if got := f.times(&f.notifies, from); !near(got, 0, 0, 5*ms, 10*ms, 15*ms, 20*ms) && !near(got, 0, 0, 5*ms, 10*ms, 15*ms, 20*ms, 25*ms) {
			t.Errorf("sent after %v", got)
		}
		if f.count(&f.probes, time.Time{}) > 0 || f.count(&f.listens, time.Time{}) > 0 || f.count(&f.drains, time.Time{}) > 0 {
			t.Error("a hub that only produces polls, listens or drains")
		}
		from = time.Now()
		h.Announce(1, Appended)
		settle()
		if got := f.times(&f.notifies, from); !near(got, 0, 0) {
			t.Errorf("after a pause sent after %v", got)
		}
	})
}

func TestAnnouncementsOfManyStreamsShareRoundTrips(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		f.setLatency(2 * ms)
		from := time.Now()
		for range 10 {
			for id := 100_001; id <= 105_000; id++ {
				h.Announce(id, Appended)
			}
		}
		h.Announce(7, Changed)
		h.Announce(7, Inboxed)
		after(time.Second)
		if n := f.count(&f.notifies, from); n > 14 {
			t.Errorf("%d round trips", n)
		}
		sent := f.sent()
		if len(sent) > 2*5002 { // one may be made again while it is on its way
			t.Errorf("%d announcements were sent", len(sent))
		}
		slices.Sort(sent)
		if n := len(slices.Compact(slices.Clone(sent))); n != 5002 {
			t.Errorf("%d different announcements, want 5002", n)
		}
		for _, want := range []string{"g7", "i7", "d100001", "d105000"} {
			if !slices.Contains(sent, want) {
				t.Errorf("%s was not sent", want)
			}
		}
		for _, c := range f.calls(&f.notifies, time.Time{}) {
			if len(c.payload) >= 8000 {
				t.Errorf("a payload of %d bytes", len(c.payload))
			}
		}
		if n := len(h.send.waiting) + len(h.send.echoes); n > 0 {
			t.Errorf("%d entries are kept", n)
		}
	})
}

func TestLocalSubscriptionsAreWokenDirectly(t *testing.T) {
	bubble(t, Config{PollInterval: time.Hour, PollOnly: true}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		f.set(Probed{Group: 1, Stream: 1, NextDue: -1}, Probed{Group: 2, Stream: 1, NextDue: -1}, Probed{Group: 3, Stream: 2, NextDue: -1})
		a, b, other := h.Subscribe(1, 1), h.Subscribe(2, 1), h.Subscribe(3, 2)
		after(10 * time.Second)
		h.Announce(1, Appended)
		if !woken(a) || !woken(b) || woken(other) {
			t.Error("Appended")
		}
		h.Announce(2, Changed)
		if woken(a) || !woken(b) || woken(other) {
			t.Error("Changed")
		}
		f.with(func() { f.drain = func(int) (DrainReply, error) { return DrainReply{Moved: 1, Head: 1}, nil } })
		h.Announce(1, Inboxed)
		settle()
		if !woken(a) || !woken(b) || woken(other) {
			t.Error("Inboxed")
		}
		if sent := slices.Sorted(slices.Values(f.sent())); !slices.Equal(sent, []string{"d1", "g2", "i1"}) {
			t.Errorf("sent %v", sent)
		}
	})
}

// The echo of an announcement of this process does not begin its plan anew, for which a second of looking in vain would be the price.
func TestOwnEchoIsNotLookedForTwice(t *testing.T) {
	drainBubble(t, func(t *testing.T, h *Hub, f *fakeSource, sub *Subscription) {
		f.setLatency(ms)
		moved := false
		f.with(func() {
			f.drain = func(int) (DrainReply, error) {
				if moved {
					return DrainReply{Head: 1}, nil
				}
				moved = true
				return DrainReply{Moved: 1, Head: 1}, nil
			}
		})
		from := time.Now()
		h.Announce(1, Inboxed)
		after(time.Minute)
		if n := f.count(&f.drains, from); n > 2 {
			t.Errorf("%d drains for one announcement", n)
		}
		if !woken(sub) {
			t.Error("not woken")
		}
		// One of another process is no echo.
		from = time.Now()
		f.broadcast("i1")
		after(time.Minute)
		if got := f.times(&f.drains, from); len(got) != len(fullPlan()) {
			t.Errorf("looked after %v", got)
		}
	})
}

func TestAnnouncingNeverBlocks(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		f.setLatency(time.Hour) // nothing is answered in time
		from := time.Now()
		for range 1000 {
			h.Announce(1, Appended)
			h.Announce(2, Appended)
		}
		if time.Since(from) > 0 {
			t.Error("blocked")
		}
		after(time.Minute)
		if n := h.State().Unsent; n != 2 {
			t.Errorf("%d unsent, want 2: the rest had coalesced", n)
		}
	})
}

func TestAFailedAnnouncementIsSentAgainSoonOrNotAtAll(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, log *logBuffer) {
		f.setDown(true)
		h.Announce(1, Appended)
		after(10 * ms)
		f.setDown(false)
		after(100 * ms)
		if sent := f.sent(); !slices.Equal(sent, []string{"d1"}) {
			t.Errorf("sent %v after a short failure", sent)
		}
		if n := len(log.lines("INFO", "announcing works again")); n != 1 {
			t.Errorf("%d lines about the recovery", n)
		}
		f.setDown(true)
		h.Announce(2, Appended)
		after(time.Minute)
		if f.get(&f.tries) > 10 {
			t.Errorf("%d tries", f.get(&f.tries))
		}
		f.setDown(false)
		after(time.Minute)
		if sent := f.sent(); len(sent) != 1 {
			t.Errorf("sent %v after a minute", sent)
		}
		if n := h.State().Unsent; n != 1 {
			t.Errorf("%d unsent, want 1", n)
		}
	})
}

func TestNonsenseIsNotAnnounced(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		h.Announce(0, Appended)
		h.Announce(-1, Inboxed)
		after(time.Second)
		if f.count(&f.notifies, time.Time{}) > 0 {
			t.Errorf("sent %v", f.sent())
		}
	})
}

func FuzzPayload(f *testing.F) {
	for _, seed := range []string{"d1", "i2,d3", "g18446744073709551616", "", ",", "d-1", "d+1", "d01", "dd1", "é1", "i1,", "d9223372036854775807", "h5"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		var again []byte
		n := 0
		for a := range parsePayload(payload) {
			word := string(a.append(nil))
			if a.id <= 0 || !slices.Contains(strings.Split(payload, ","), word) {
				t.Fatalf("%q says %q", payload, word)
			}
			again = append(a.append(again), ',')
			n++
		}
		for range parsePayload(string(again)) {
			n--
		}
		if n != 0 {
			t.Fatalf("%q is read otherwise once written again: %q", payload, again)
		}
		for range parsePayload(payload) {
			break
		}
	})
}
