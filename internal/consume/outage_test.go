package consume_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/storetest"
)

// Each call to the store fails once in each way: nothing is lost, and where the call had not taken effect, or Held can tell, nothing runs again.
func TestEachCallFailsOnce(t *testing.T) {
	for _, f := range []struct {
		name  string
		fault storetest.Fault
	}{
		{"refused", storetest.Fault{Err: storetest.Down()}},
		{"unknown, without effect", storetest.Fault{}},
		{"unknown, with effect", storetest.Fault{After: true}},
	} {
		for _, op := range []storetest.Op{storetest.OpWork, storetest.OpRead, storetest.OpReadIDs, storetest.OpHeld, storetest.OpBeat, storetest.OpLeave} {
			t.Run(f.name+"/"+string(op), func(t *testing.T) {
				for at := range 12 {
					bubble(t, func(t *testing.T) { failOnce(t, op, f.fault, at) })
				}
			})
		}
	}
}

func failOnce(t *testing.T, op storetest.Op, fault storetest.Fault, at int) {
	r := newRig(t, delivery.Policy{BaseDelay: 100 * time.Millisecond})
	r.append(40)
	n := 0
	fault.Op, fault.If = op, func() bool { n++; return n == at+1 }
	r.store.Fail(fault)
	if op == storetest.OpHeld {
		r.store.Fail(storetest.Fault{Op: storetest.OpWork, After: at%2 == 0})
	}
	d := r.diary()
	i := r.start(consume.Options{BatchLimit: 10}, func(ctx context.Context, m *delivery.Message, a consume.Attempt) error {
		d.ran(m.ID)
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
		if m.ID%5 == 0 && a.Attempt == 1 {
			return errors.New("no")
		}
		return nil
	})
	time.Sleep(20 * time.Second)
	synctest.Wait()
	st := r.store.State(r.group)
	if st.Claimed != 40 || len(st.Claims)+len(st.Deliveries)+len(st.Dead) != 0 {
		t.Errorf("failure %d: %+v", at, st)
	}
	for id := int64(1); id <= 40; id++ {
		want := 1
		if id%5 == 0 {
			want = 2
		}
		if d.runs(id) != want {
			t.Errorf("failure %d: message %d ran %d times", at, id, d.runs(id))
		}
	}
	i.stop(t)
}

// The store is away for longer than a lease: what runs goes on, nothing starts that could not end in time, and all is done afterwards.
func TestLongOutage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{})
		r.append(100)
		var down atomic.Bool
		r.store.Fail(storetest.Fault{Times: -1, Err: storetest.Down(), If: down.Load})
		d := r.diary()
		i := r.start(consume.Options{Handlers: 4}, func(ctx context.Context, m *delivery.Message, a consume.Attempt) error {
			d.ran(m.ID)
			if left := time.Until(a.LeaseDeadline); left < 32*time.Second+100*time.Millisecond {
				t.Errorf("message %d started with %v left", m.ID, left)
			}
			return sleep(ctx, 3*time.Second)
		})
		go i.waker.Poll(t.Context(), time.Second)
		time.Sleep(4 * time.Second)
		down.Store(true)
		time.Sleep(5 * time.Minute)
		if h := i.Health(); h.LastError != diag.Unreachable || h.Running != 0 {
			t.Errorf("%+v", h)
		}
		if lines := i.logs.code("SQL0111"); len(lines) < 3 || len(lines) > 6 {
			t.Errorf("%d lines about an outage of five minutes", len(lines))
		}
		down.Store(false)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if st := r.store.State(r.group); st.Claimed != 100 || len(st.Claims) != 0 {
			t.Errorf("%+v", st)
		}
		for id := int64(1); id <= 100; id++ {
			if d.runs(id) == 0 {
				t.Errorf("message %d did not run", id)
			}
		}
		i.stop(t)
	})
}

// A lost lease is told, and changes nothing.
func TestLostLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{})
		r.append(1)
		release := make(chan struct{})
		i := r.start(consume.Options{}, func(context.Context, *delivery.Message, consume.Attempt) error {
			<-release
			return errors.New("too late")
		})
		synctest.Wait()
		r.store.ExpireAll(r.group)
		j := r.start(consume.Options{}, func(context.Context, *delivery.Message, consume.Attempt) error { return nil })
		synctest.Wait()
		close(release)
		synctest.Wait()
		if e := i.events.kind(consume.KindLeaseLost); len(e) != 1 || e[0].Code != diag.LeaseLost || e[0].Low != 0 || e[0].High != 1 {
			t.Errorf("%+v", e)
		}
		if h := i.Health(); h.LeaseLost != 1 {
			t.Errorf("%+v", h.Counts)
		}
		if st := r.store.State(r.group); len(st.Claims)+len(st.Deliveries) != 0 {
			t.Errorf("%+v", st)
		}
		i.stop(t)
		j.stop(t)
	})
}

// Every message fails once: the whole way goes at the speed of calls that carry many.
func TestFailuresAreBatched(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{BaseDelay: 10 * time.Millisecond})
		r.store.SetLatency(3 * time.Millisecond)
		const n = 20000
		r.append(n)
		var ended time.Duration
		var done atomic.Int64
		i := r.start(consume.Options{}, func(_ context.Context, _ *delivery.Message, a consume.Attempt) error {
			if a.Attempt == 1 {
				return errors.New("no")
			}
			if done.Add(1) == n {
				ended = r.at()
			}
			return nil
		})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if done.Load() < n {
			t.Fatalf("%d of %d in ten seconds", done.Load(), n)
		}
		calls := r.store.Calls(storetest.OpWork)
		t.Logf("%.0f messages a second, %d calls", n/ended.Seconds(), calls)
		if ended > n*time.Second/8000 {
			t.Errorf("%d messages took %v", n, ended)
		}
		i.stop(t)
	})
}
