package consume_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/storetest"
)

// pairs are the options of the example on the page on consumer groups.
func pairs() consume.Options { return consume.Options{Handlers: 2, BatchMin: 2, BatchLimit: 2} }

// Instances of a group divide the work; another group keeps progress of its own.
func TestInstancesShareAndGroupsDoNot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{})
		audit := r.store.AddGroup(r.stream, 30*time.Second, 3)
		r.append(4)
		d := r.diary()
		release := make(chan struct{})
		handler := func(name string, gate chan struct{}) consume.Handler {
			return func(_ context.Context, m *delivery.Message, _ consume.Attempt) error {
				d.note("%s %d", name, m.ID)
				if gate != nil {
					<-gate
				}
				return nil
			}
		}
		one := pairs()
		one.Handlers = 1
		a := r.start(one, handler("A", release))
		synctest.Wait()
		b := r.start(one, handler("B", release))
		synctest.Wait()
		if st := r.store.State(r.group); len(st.Claims) != 2 || st.Claims[0].High != 2 || st.Claims[1].Low != 2 || st.Claims[1].High != 4 {
			t.Errorf("claims: %+v", st.Claims)
		}
		if diff := cmp.Diff([]string{"0s A 1", "0s B 3"}, d.all()); diff != "" {
			t.Error(diff)
		}
		close(release)
		synctest.Wait()
		if st := r.store.State(r.group); st.Claimed != 4 || len(st.Claims) != 0 {
			t.Errorf("charge-cards: %+v", st)
		}

		// The audit group has finished 1 and 2 while 3 waits for its handler.
		slow := make(chan struct{})
		c := r.startGroup(audit, one, func(_ context.Context, m *delivery.Message, _ consume.Attempt) error {
			if m.ID > 2 {
				<-slow
			}
			return nil
		})
		synctest.Wait()
		if st := r.store.State(audit); len(st.Claims) != 1 || st.Claims[0].Low != 2 {
			t.Errorf("audit: %+v", st)
		}
		if st := r.store.State(r.group); st.Claimed != 4 || len(st.Claims) != 0 {
			t.Errorf("charge-cards: %+v", st)
		}
		close(slow)
		synctest.Wait()
		for _, i := range []*instance{a, b, c} {
			i.stop(t)
		}

		// Progress survives the instances.
		e := r.start(one, handler("E", nil))
		time.Sleep(time.Minute)
		if h := e.Health(); h.Claimed != 0 {
			t.Errorf("after a restart: %+v", h.Counts)
		}
		e.stop(t)
	})
}

// A crash between the handler's effect and the record: the message runs again in another instance, once the lease has ended.
func TestCrashBeforeTheRecord(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{})
		r.append(2)
		d := r.diary()
		// A never reaches the store again once it has claimed: to the others it looks crashed.
		var crashed atomic.Bool
		r.store.Fail(storetest.Fault{Times: -1, Err: storetest.Down(), If: crashed.Load})
		a := r.start(pairs(), func(_ context.Context, m *delivery.Message, _ consume.Attempt) error {
			d.note("A charges %d", m.ID)
			time.Sleep(time.Second)
			return nil
		})
		time.Sleep(500 * time.Millisecond)
		crashed.Store(true)
		time.Sleep(5 * time.Second)
		a.cancel()
		<-a.ended
		r.store.Heal()
		b := r.start(pairs(), func(_ context.Context, m *delivery.Message, at consume.Attempt) error {
			d.note("B charges %d, redelivered %v", m.ID, at.Redelivered)
			return nil
		})
		go b.waker.Poll(t.Context(), time.Second)
		time.Sleep(time.Minute)
		synctest.Wait()
		got := d.all()
		want := []string{"0s A charges 1", "0s A charges 2", "47.101s B charges 1, redelivered true", "47.101s B charges 2, redelivered true"}
		if diff := cmp.Diff(want, sortedFrom(got, 0, 2, 4)); diff != "" {
			t.Error(diff)
		}
		if st := r.store.State(r.group); len(st.Claims) != 0 || st.Claimed != 2 {
			t.Errorf("%+v", st)
		}
		b.stop(t)
	})
}

// sortedFrom sorts stretches of what ran at one time.
func sortedFrom(list []string, bounds ...int) []string {
	for i := 0; i+1 < len(bounds) && bounds[i+1] <= len(list); i++ {
		part := list[bounds[i]:bounds[i+1]]
		for a := range part {
			for b := a + 1; b < len(part); b++ {
				if part[b] < part[a] {
					part[a], part[b] = part[b], part[a]
				}
			}
		}
	}
	return list
}

// Failures come back with growing waits, counted from the failure; then the message is dead.
func TestRetries(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{MaxAttempts: 4, BaseDelay: 10 * time.Second, Exponent: 2})
		r.append(1)
		var starts []time.Duration
		i := r.start(consume.Options{}, func(ctx context.Context, _ *delivery.Message, a consume.Attempt) error {
			starts = append(starts, r.at())
			if a.Attempt != len(starts) || a.Redelivered != (len(starts) > 1) {
				t.Errorf("run %d: %+v", len(starts), a)
			}
			return errors.New("no")
		})
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if len(starts) != 4 {
			t.Fatalf("%d runs", len(starts))
		}
		for n, want := range []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second} {
			if got := starts[n+1] - starts[n]; got < want*9/10 || got > want*11/10+10*time.Millisecond {
				t.Errorf("wait %d was %v", n+1, got)
			}
		}
		st := r.store.State(r.group)
		if len(st.Dead) != 1 || st.Dead[0].Reason != delivery.Exhausted || st.Dead[0].Attempts != 4 || len(st.Attempts) != 4 || len(st.Deliveries) != 0 {
			t.Errorf("%+v", st)
		}
		if h := i.Health(); h.Failed != 3 || h.Dead != 1 {
			t.Errorf("%+v", h.Counts)
		}
		i.stop(t)
	})
}

// The store is away between the failure and its record: the wait is not begun anew.
func TestBackoffCountsFromTheFailure(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{BaseDelay: 10 * time.Second})
		r.append(1)
		var down atomic.Bool
		r.store.Fail(storetest.Fault{Times: -1, Err: storetest.Down(), If: down.Load})
		var starts []time.Duration
		i := r.start(consume.Options{}, func(context.Context, *delivery.Message, consume.Attempt) error {
			starts = append(starts, r.at())
			down.Store(len(starts) == 1)
			return errors.New("no")
		})
		time.Sleep(7 * time.Second)
		down.Store(false)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(starts) != 2 || starts[1] > 11*time.Second+100*time.Millisecond {
			t.Errorf("runs at %v", starts)
		}
		i.stop(t)
	})
}

// Delay runs a message again without counting a failure, as often as it likes.
func TestDelay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{MaxAttempts: 1})
		r.append(1)
		runs := 0
		i := r.start(consume.Options{}, func(_ context.Context, _ *delivery.Message, a consume.Attempt) error {
			runs++
			if a.Attempt != 1 {
				t.Errorf("attempt %d", a.Attempt)
			}
			if runs < 20 {
				return consume.Delay(time.Minute)
			}
			return nil
		})
		time.Sleep(19*time.Minute + time.Second)
		synctest.Wait()
		if h := i.Health(); h.Delayed != 19 || h.Succeeded != 1 || h.Failed != 0 || h.Dead != 0 {
			t.Errorf("%+v", h.Counts)
		}
		i.stop(t)
	})
}

// What a message requests is clamped into the group's limits.
func TestRequestIsClamped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{Timeout: 10 * time.Second, MaxAttempts: 10})
		r.limits.Min = delivery.Policy{Timeout: 2 * time.Second}
		for _, timeout := range []time.Duration{time.Second, 5 * time.Second, time.Hour} {
			msg := storetest.Messages(1)
			msg[0].Options = delivery.EncodeRequest(delivery.Policy{Timeout: timeout, MaxAttempts: 1})
			r.store.Append(r.stream, msg...)
		}
		broken := storetest.Messages(1)
		broken[0].Options = []byte(`{"timeout_ms":"soon"`)
		r.store.Append(r.stream, broken...)
		got := make([]time.Duration, 5)
		i := r.start(consume.Options{Handlers: 1}, func(ctx context.Context, m *delivery.Message, _ consume.Attempt) error {
			deadline, _ := ctx.Deadline()
			got[m.ID] = time.Until(deadline)
			return errors.New("no")
		})
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if diff := cmp.Diff([]time.Duration{0, 2 * time.Second, 5 * time.Second, 10 * time.Second, 10 * time.Second}, got); diff != "" {
			t.Error(diff)
		}
		if st := r.store.State(r.group); len(st.Dead) != 3 || len(st.Deliveries) != 1 {
			t.Errorf("%+v", st)
		}
		i.stop(t)
	})
}

// Removed and erased messages are passed over and counted.
func TestRemovedAndErased(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{BaseDelay: time.Second})
		r.append(10)
		r.store.Remove(r.stream, 2, 3)
		r.store.Redact(r.stream, 5)
		d := r.diary()
		i := r.start(consume.Options{}, func(_ context.Context, m *delivery.Message, a consume.Attempt) error {
			d.ran(m.ID)
			if m.ID >= 9 {
				return errors.New("no")
			}
			return nil
		})
		time.Sleep(100 * time.Millisecond)
		r.store.Remove(r.stream, 9)
		r.store.Redact(r.stream, 10)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		for id := int64(1); id <= 10; id++ {
			want := 1
			if id == 2 || id == 3 || id == 5 {
				want = 0
			}
			if d.runs(id) != want {
				t.Errorf("message %d ran %d times", id, d.runs(id))
			}
		}
		if h := i.Health(); h.Superseded != 5 || h.Claimed != 7 {
			t.Errorf("%+v", h.Counts)
		}
		if st := r.store.State(r.group); st.Claimed != 10 || len(st.Claims)+len(st.Deliveries)+len(st.Dead) != 0 {
			t.Errorf("%+v", st)
		}
		i.stop(t)
	})
}

// Retries and fresh work share the slots where both wait, whatever the handler's time.
func TestRetriesAndFreshWorkShare(t *testing.T) {
	for _, c := range []struct {
		name     string
		handlers int
		takes    time.Duration
	}{{"one slot, quick", 1, time.Millisecond}, {"one slot, slow", 1, 2 * time.Second}, {"ten slots, quick", 10, time.Millisecond}, {"ten slots, slow", 10, 12 * time.Second}} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, delivery.Policy{MaxAttempts: 100, BaseDelay: time.Millisecond, Exponent: 1})
				r.store.SetLatency(time.Millisecond)
				r.append(5000)
				var first, later atomic.Int64
				i := r.start(consume.Options{Handlers: c.handlers}, func(ctx context.Context, m *delivery.Message, a consume.Attempt) error {
					if a.Attempt > 1 {
						later.Add(1)
					} else {
						first.Add(1)
					}
					_ = sleep(ctx, c.takes)
					return errors.New("again")
				})
				time.Sleep(min(300*c.takes, 20*time.Minute))
				synctest.Wait()
				fresh, again := first.Load(), later.Load()
				t.Logf("%d fresh, %d again", fresh, again)
				if sum := fresh + again; fresh < sum*3/10 || again < sum*3/10 {
					t.Errorf("of %d runs %d were fresh and %d again", sum, fresh, again)
				}
				if want := float64(c.handlers*300) * 0.6; float64(fresh+again) < min(want, float64(c.handlers)*float64(20*time.Minute/c.takes)*0.6) {
					t.Errorf("only %d runs", fresh+again)
				}
				if h := i.Health(); h.Stale != 0 || h.LeaseLost != 0 {
					t.Errorf("%+v", h.Counts)
				}
				i.stop(t)
			})
		})
	}
}
