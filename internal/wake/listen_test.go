package wake

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/diag"
)

func TestReconnectProbesAllGroupsAtOnce(t *testing.T) {
	bubble(t, Config{PollInterval: time.Hour}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		idleGroups(f, 120)
		subs := make([]*Subscription, 121)
		for id := 1; id <= 120; id++ {
			subs[id] = h.Subscribe(id, id)
		}
		after(time.Minute)
		if st := h.State(); !st.Listening || st.Reconnects != 0 {
			t.Fatalf("state %+v", st)
		}
		f.with(f.breakListeners)
		for id := 1; id <= 120; id++ { // announced while nobody listens
			f.set(Probed{Group: id, Stream: id, Head: 1, NextDue: -1})
		}
		from := time.Now()
		after(200 * ms)
		for id := 1; id <= 120; id++ {
			if !woken(subs[id]) {
				t.Fatalf("group %d was not woken", id)
			}
		}
		if n := f.count(&f.probes, from); n != 3 {
			t.Errorf("%d probes, want 3", n)
		}
		if st := h.State(); !st.Listening || st.Reconnects != 1 || !st.Since.After(from.Add(-ms)) {
			t.Errorf("state %+v", st)
		}
	})
}

func TestHalfOpenConnectionIsNoticed(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		idleGroups(f, 1)
		sub := h.Subscribe(1, 1)
		after(7 * time.Second)
		f.freeze()
		from := time.Now()
		f.set(Probed{Group: 1, Stream: 1, Head: 1, NextDue: -1})
		if d := wakeAfter(sub, time.Minute); d < 0 || d > time.Second {
			t.Errorf("polling delivered after %v", d)
		}
		after(time.Until(from.Add(15 * time.Second)))
		if st := h.State(); !st.Listening || st.Reconnects != 1 {
			t.Errorf("after 15 s: %+v", st)
		}
	})
}

func TestQuietConnectionLastsForEver(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, log *logBuffer) {
		idleGroups(f, 1)
		h.Subscribe(1, 1)
		after(time.Hour)
		if n := f.count(&f.listens, time.Time{}); n != 1 || !h.State().Listening {
			t.Errorf("%d connections in an hour", n)
		}
		if lines := log.lines(); len(lines) > 0 {
			t.Errorf("logged %v", lines)
		}
	})
}

// A pooler in transaction mode accepts LISTEN, answers pings, and nothing is ever heard.
func TestDeafConnectionIsToldAndPolledInstead(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, log *logBuffer) {
		f.deaf = true
		idleGroups(f, 1)
		h.Subscribe(1, 1)
		after(10 * time.Minute)
		if h.State().Listening {
			t.Error("listening")
		}
		if n := len(log.lines("WARN", "announcements do not arrive", "code=SQL0255", "pooler")); n < 1 || n > 11 {
			t.Errorf("%d lines in ten minutes", n)
		}
		if n := f.count(&f.notifies, time.Time{}); n < 5 || n > 20 {
			t.Errorf("%d hellos in ten minutes", n)
		}
		if n := f.count(&f.listens, time.Time{}); n != 1 {
			t.Errorf("%d connections", n)
		}
		f.with(func() { f.deaf = false })
		after(time.Minute)
		if !h.State().Listening || len(log.lines("INFO", "listening works again")) != 1 {
			t.Error("not listening once announcements arrive")
		}
	})
}

func TestConnectionThatEndsAtOnceIsNotMadeAnewAtFullSpeed(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		idleGroups(f, 1)
		h.Subscribe(1, 1)
		for range 60_000 {
			f.with(f.breakListeners)
			after(ms)
		}
		if n := f.count(&f.listens, time.Time{}); n < 8 || n > 31 {
			t.Errorf("%d connections in a minute", n)
		}
		after(12 * time.Second) // and now it lasts
		from := time.Now()
		f.with(f.breakListeners)
		after(200 * ms)
		if n := f.count(&f.listens, from); n != 1 || !h.State().Listening {
			t.Errorf("not made anew soon after it had lasted (%d)", n)
		}
	})
}

// standbySource leads to a standby.
type standbySource struct{ *fakeSource }

func (s standbySource) Listen(ctx context.Context) (Listener, error) {
	l, err := s.fakeSource.Listen(ctx)
	if err != nil {
		return nil, err
	}
	l.Close(ctx)
	return nil, &diag.Error{Code: diag.ReadOnlyServer, Op: "listen", Err: errors.New("standby")}
}

func TestStandbyIsToldByItsCode(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, log *logBuffer) {
		h.source = standbySource{f}
		idleGroups(f, 1)
		h.Subscribe(1, 1)
		after(30 * time.Second)
		if n := len(log.lines("WARN", "listening connection is lost", "code=SQL0253")); n != 1 {
			t.Errorf("%d lines", n)
		}
		if n := f.count(&f.listens, time.Time{}); n < 5 || n > 25 {
			t.Errorf("%d tries in half a minute", n)
		}
	})
}
