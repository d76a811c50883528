package consume_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/storetest"
)

// Pause and resume act at once: what runs ends, what waits goes back, and the group goes on when it is resumed.
func TestPauseAndResume(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{})
		r.append(30)
		d := r.diary()
		i := r.start(consume.Options{Handlers: 2, BatchMin: 30}, func(ctx context.Context, m *delivery.Message, _ consume.Attempt) error {
			d.ran(m.ID)
			d.note("%d", m.ID)
			return sleep(ctx, time.Second)
		})
		time.Sleep(2500 * time.Millisecond)
		r.store.SetPaused(r.group, true)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := len(d.all()); got > 8 {
			t.Errorf("%d handlers were started", got)
		}
		h, st := i.Health(), r.store.State(r.group)
		if !h.Paused || h.Ranges != 0 || h.Running != 0 || len(st.Claims) != 1 || !st.Claims[0].Expired {
			t.Errorf("paused: %+v, %+v", h, st.Claims)
		}
		calls := r.store.Calls(storetest.OpWork)
		time.Sleep(time.Minute)
		if n := r.store.Calls(storetest.OpWork) - calls; n > 60 {
			t.Errorf("%d calls a minute", n)
		}
		before := len(d.all())
		r.store.SetPaused(r.group, false)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if len(d.all()) == before {
			t.Error("it did not go on at once")
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		for id := int64(1); id <= 30; id++ {
			if d.runs(id) != 1 {
				t.Errorf("message %d ran %d times", id, d.runs(id))
			}
		}
		i.stop(t)
	})
}

// A seek fences: what was claimed before is not started, and what ran of it is not recorded.
func TestSeek(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{})
		r.append(20)
		d := r.diary()
		i := r.start(consume.Options{Handlers: 1, BatchMin: 10, BatchLimit: 10}, func(ctx context.Context, m *delivery.Message, _ consume.Attempt) error {
			d.note("%d", m.ID)
			return sleep(ctx, time.Second)
		})
		time.Sleep(2500 * time.Millisecond)
		r.store.Seek(r.group, 17)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]string{"0s 1", "1s 2", "2s 3", "3s 18", "4s 19", "5s 20"}, d.all()); diff != "" {
			t.Error(diff)
		}
		if h := i.Health(); h.LeaseLost == 0 || len(i.events.kind(consume.KindLeaseLost)) == 0 {
			t.Errorf("%+v", h.Counts)
		}
		if st := r.store.State(r.group); st.Claimed != 20 || len(st.Claims) != 0 {
			t.Errorf("%+v", st)
		}
		i.stop(t)
	})
}

// A changed declaration applies to what is claimed from then on; a claim keeps the ceiling it was made with.
func TestConfigChange(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{Timeout: 10 * time.Second})
		r.append(4)
		var got []time.Duration
		i := r.startWith(r.group, consume.Options{Handlers: 1, BatchMin: 3, BatchLimit: 3, QueueSize: 1}, func(ctx context.Context, m *delivery.Message, _ consume.Attempt) error {
			deadline, _ := ctx.Deadline()
			got = append(got, time.Until(deadline))
			if m.ID == 1 {
				r.store.SetConfig(r.group, []byte(`{"v":1}`), time.Minute)
				r.append(1) // wakes it
				return sleep(ctx, time.Second)
			}
			return nil
		}, func(c *consume.Config) {
			c.OnConfig = func(config []byte) (delivery.Limits, int, error) {
				if string(config) != `{"v":1}` {
					return delivery.Limits{}, 0, errors.New("what is this")
				}
				p := r.limits.Default
				p.Timeout = time.Minute
				return delivery.Limits{Default: p, Max: p}, 5, nil
			}
		})
		time.Sleep(5 * time.Second)
		synctest.Wait()
		want := []time.Duration{10 * time.Second, 10 * time.Second, 10 * time.Second, time.Minute, time.Minute}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		i.stop(t)
	})
}

// Ids that retention took are told of once.
func TestPositionLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{})
		r.append(10)
		r.store.Retain(r.stream, 6)
		i := r.start(consume.Options{}, func(context.Context, *delivery.Message, consume.Attempt) error { return nil })
		time.Sleep(time.Minute)
		synctest.Wait()
		if e := i.events.kind(consume.KindPositionLost); len(e) != 1 || e[0].Code != diag.PositionLost || e[0].Low != 0 || e[0].High != 5 {
			t.Errorf("%+v", e)
		}
		if h := i.Health(); h.Succeeded != 5 {
			t.Errorf("%+v", h.Counts)
		}
		i.stop(t)
	})
}

// An idle session is quiet: it looks when it is woken, and says that it lives.
func TestIdleIsQuiet(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{})
		goroutines := runtime.NumGoroutine()
		i := r.start(consume.Options{Handlers: 1000}, func(context.Context, *delivery.Message, consume.Attempt) error { return nil })
		time.Sleep(10 * time.Second)
		if n := runtime.NumGoroutine() - goroutines; n > 5 {
			t.Errorf("%d goroutines for a session that has had nothing to do", n)
		}
		before := r.store.Calls(storetest.OpWork)
		time.Sleep(time.Hour)
		if n := r.store.Calls(storetest.OpWork) - before; n != 0 {
			t.Errorf("%d calls in an idle hour", n)
		}
		if n := r.store.Calls(storetest.OpBeat); n < 200 || n > 280 {
			t.Errorf("%d signs of life in an hour", n)
		}
		// A message is handled at once, with few calls.
		r.append(1)
		synctest.Wait()
		if h := i.Health(); h.Succeeded != 1 {
			t.Errorf("%+v", h)
		}
		if n := r.store.Calls(storetest.OpWork) - before; n > 3 {
			t.Errorf("%d calls for one message", n)
		}
		i.stop(t)
	})
}
