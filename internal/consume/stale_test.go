package consume_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

// A fixed size that is too large for the handler's time: the range goes stale again and again, is taken over in smaller parts, and each message
// is handled in the end. Nothing of it counts towards breaking up.
func TestStaleRangeIsWorkedOffInParts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{})
		r.append(8)
		i := r.start(consume.Options{Handlers: 1, BatchMin: 8, BatchLimit: 8}, func(ctx context.Context, _ *delivery.Message, _ consume.Attempt) error {
			return sleep(ctx, 20*time.Second)
		})
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		if st := r.store.State(r.group); st.Claimed != 8 || len(st.Claims)+len(st.Deliveries)+len(st.Dead) != 0 {
			t.Errorf("%+v", st)
		}
		h := i.Health()
		if h.BrokenUp != 0 || h.LeaseLost != 0 || h.Stale == 0 {
			t.Errorf("%+v", h.Counts)
		}
		// Each is counted and told to the hooks; a line is written once a minute, with the number left out.
		lines, told := i.logs.code("SQL0105"), int64(0)
		for n, l := range lines {
			told += l.attrs["suppressed"].(int64) + 1
			if n > 0 && l.at.Sub(lines[n-1].at) < time.Minute {
				t.Errorf("lines at %v and %v", lines[n-1].at, l.at)
			}
		}
		if events := i.events.kind(consume.KindStale); int64(len(events)) != h.Stale || told > h.Stale {
			t.Errorf("%d stale ranges, %d events, %d told in %d lines", h.Stale, len(events), told, len(lines))
		}
		i.stop(t)
	})
}

// A stale range of an instance does not keep it from fresh work.
func TestStaleRangeDoesNotBlockFreshWork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{})
		r.append(4)
		d := r.diary()
		i := r.start(consume.Options{Handlers: 1, BatchMin: 4, BatchLimit: 4, QueueSize: 1}, func(ctx context.Context, m *delivery.Message, _ consume.Attempt) error {
			d.ran(m.ID)
			if m.ID <= 2 && d.runs(m.ID) == 1 {
				return sleep(ctx, 10*time.Second)
			}
			return nil
		})
		time.Sleep(21 * time.Second)
		r.append(4)
		synctest.Wait()
		if h := i.Health(); h.Stale != 1 || h.Succeeded != 6 {
			t.Errorf("%+v", h)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if h := i.Health(); h.Succeeded != 10 {
			t.Errorf("%+v", h)
		}
		i.stop(t)
	})
}

// One handler that hangs, or is slow, does not starve the other slots.
func TestStragglerDoesNotStarve(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{})
		r.store.SetLatency(time.Millisecond)
		r.append(20000)
		i := r.start(consume.Options{}, func(ctx context.Context, m *delivery.Message, _ consume.Attempt) error {
			if m.ID%1000 == 7 {
				return sleep(ctx, 25*time.Second)
			}
			return sleep(ctx, 10*time.Millisecond)
		})
		time.Sleep(20 * time.Second)
		synctest.Wait()
		// Ten slots do a thousand a second, less what the hanging ones take.
		if h := i.Health(); h.Succeeded < 3500 || h.Stale != 0 || h.LeaseLost != 0 {
			t.Errorf("%+v", h)
		}
		i.stop(t)
		if st := r.store.State(r.group); len(st.Claims) > 0 && !st.Claims[0].Expired {
			t.Errorf("%+v", st.Claims)
		}
	})
}

// Several instances share a backlog of slow work evenly enough that none holds what another could do.
func TestInstancesShareSlowWork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{})
		r.append(200)
		slow := func(ctx context.Context, _ *delivery.Message, _ consume.Attempt) error {
			return sleep(ctx, 5*time.Second)
		}
		a, b := r.start(consume.Options{}, slow), r.start(consume.Options{}, slow)
		time.Sleep(60 * time.Second)
		synctest.Wait()
		if x, y := a.Health().Succeeded, b.Health().Succeeded; x+y != 200 || x < 80 || y < 80 {
			t.Errorf("%d and %d", x, y)
		}
		a.stop(t)
		b.stop(t)
	})
}
