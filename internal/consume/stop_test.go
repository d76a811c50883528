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
	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/storetest"
)

// A stop awaits what runs, records what has ended, and gives the rest back at once and uncounted.
func TestStopGivesBackWhatWaits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{BaseDelay: time.Hour, MaxDelay: time.Hour})
		r.append(6)
		d := r.diary()
		o := consume.Options{Handlers: 2, BatchMin: 6, BatchLimit: 6}
		i := r.start(o, func(ctx context.Context, m *delivery.Message, _ consume.Attempt) error {
			d.ran(m.ID)
			switch m.ID {
			case 1:
				return nil
			case 2:
				return sleep(ctx, 5*time.Second) // still runs at the stop
			case 3:
				return errors.New("no")
			}
			return sleep(ctx, time.Second)
		})
		time.Sleep(1500 * time.Millisecond) // 4 has ended, 5 runs
		i.cancel()
		began := time.Now()
		<-i.ended
		if i.err != nil || time.Since(began) != 3500*time.Millisecond {
			t.Errorf("Run returned %v after %v", i.err, time.Since(began))
		}
		st := r.store.State(r.group)
		if len(st.Claims) != 1 || st.Claims[0].Low != 5 || st.Claims[0].High != 6 || !st.Claims[0].Expired || !st.Claims[0].Excused || len(st.Done) != 0 {
			t.Errorf("claims: %+v, done %v", st.Claims, st.Done)
		}
		if diff := cmp.Diff([]storetest.Delivery{{ID: 3, Attempt: 1, Error: "no"}}, st.Deliveries); diff != "" {
			t.Error(diff)
		}
		if r.store.Alive(r.group) != 0 {
			t.Error("the instance did not say goodbye")
		}

		// The next one goes on at once.
		j := r.start(o, func(_ context.Context, m *delivery.Message, a consume.Attempt) error {
			d.ran(m.ID)
			return nil
		})
		synctest.Wait()
		if st := r.store.State(r.group); len(st.Claims) != 0 {
			t.Errorf("claims: %+v", st.Claims)
		}
		for id := int64(1); id <= 6; id++ {
			if d.runs(id) != 1 {
				t.Errorf("message %d ran %d times", id, d.runs(id))
			}
		}
		j.stop(t)
		line := i.logs.find("consumer stopped")
		if len(line) != 1 {
			t.Fatal("no line tells of the stop")
		}
		want := map[string]any{
			"stream": "payments.requested", "group": "charge-cards", "instance": line[0].attrs["instance"], "duration": 5 * time.Second,
			"claimed": int64(6), "succeeded": int64(4), "failed": int64(1), "delayed": int64(0), "waiting": int64(0), "dead": int64(0), "superseded": int64(0),
			"reclaimed": int64(0), "broken_up": int64(0), "stale": int64(0), "lease_lost": int64(0), "abandoned_count": int64(0),
		}
		if diff := cmp.Diff(want, line[0].attrs); diff != "" {
			t.Error(diff)
		}
	})
}

// Past StopTimeout handlers are cancelled with a cause of its own, get the grace, then are abandoned. None of it counts as a failure.
func TestStopTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{})
		r.store.SetLatency(time.Millisecond)
		r.append(4)
		release := make(chan struct{})
		causes := make(map[int64]error)
		i := r.start(consume.Options{Handlers: 4, StopTimeout: 3 * time.Second}, func(ctx context.Context, m *delivery.Message, _ consume.Attempt) error {
			switch m.ID {
			case 1:
				return nil
			case 2: // obeys
				<-ctx.Done()
				causes[2] = context.Cause(ctx)
				return ctx.Err()
			case 3: // obeys, and has finished all the same
				<-ctx.Done()
				return nil
			default:
				<-release
				return errors.New("late")
			}
		})
		time.Sleep(time.Second)
		i.cancel()
		began := time.Now()
		<-i.ended
		if took := time.Since(began); i.err != nil || took > 3110*time.Millisecond || took < 3100*time.Millisecond {
			t.Errorf("Run returned %v after %v", i.err, took)
		}
		if !errors.Is(causes[2], consume.ErrStopping) {
			t.Errorf("cause: %v", causes[2])
		}
		st := r.store.State(r.group)
		if len(st.Claims) != 1 || st.Claims[0].Low != 1 || !st.Claims[0].Expired || !cmp.Equal(st.Done, []int64{3}) || len(st.Deliveries) != 0 {
			t.Errorf("%+v", st)
		}
		if h := i.Health(); h.Succeeded != 2 || h.Failed != 0 || h.Abandoned != 1 || r.strays.Outstanding() != 1 {
			t.Errorf("%+v", h)
		}
		close(release)
		synctest.Wait()
		if h := i.Health(); h.Cleared != 1 || h.Failed != 0 {
			t.Errorf("%+v", h)
		}
	})
}

func TestStopBeforeTheStart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{})
		r.append(4)
		s, err := consume.NewSession(consume.Config{
			Store: r.store, Waker: r.store.Waker(r.group), StreamID: r.stream, GroupID: r.group, Limits: r.limits,
			Handler: func(context.Context, *delivery.Message, consume.Attempt) error { return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
		if n := r.store.Calls(storetest.OpWork); n != 0 {
			t.Errorf("%d calls", n)
		}
	})
}

// The store does not answer at all while the session stops: Run returns in bounded time, and the leases end by themselves. What is said of a call that the session
// itself has ended is no reason to return an error, even if it says that nothing was sent and that the identical call would fail.
func TestStopWhileTheStoreHangs(t *testing.T) {
	for name, said := range map[string]error{
		"the outcome is unknown": nil,
		"nothing was sent":       &diag.Error{Code: diag.StatementTimeout, Op: "work", Err: context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, delivery.Policy{})
				r.append(20)
				var hang atomic.Bool
				r.store.Fail(storetest.Fault{Times: -1, Hang: true, If: hang.Load, Err: said})
				i := r.start(consume.Options{}, func(ctx context.Context, m *delivery.Message, _ consume.Attempt) error {
					return sleep(ctx, time.Second)
				})
				time.Sleep(500 * time.Millisecond)
				hang.Store(true)
				time.Sleep(10 * time.Second)
				i.cancel()
				began := time.Now()
				<-i.ended
				if took := time.Since(began); i.err != nil || took > 30*time.Second {
					t.Errorf("Run returned %v after %v", i.err, took)
				}
			})
		})
	}
}

// Every failure that waiting cannot mend ends Run with its code.
func TestRunEndsWithTheCode(t *testing.T) {
	denied := &diag.Error{Code: diag.PermissionDenied, Op: "work"}
	for _, c := range []struct {
		name string
		do   func(r *rig)
		code diag.Code
	}{
		{"group deleted", func(r *rig) { r.store.Drop(r.group) }, diag.GroupNotFound},
		{"right revoked", func(r *rig) {
			r.store.Fail(storetest.Fault{Op: storetest.OpWork, Times: -1, Err: denied})
			r.append(1)
		}, diag.PermissionDenied},
		{"read refused", func(r *rig) {
			r.store.Fail(storetest.Fault{Op: storetest.OpRead, Times: -1, Err: denied})
			r.append(1)
		}, diag.PermissionDenied},
		{"schema newer", func(r *rig) {
			r.store.Fail(storetest.Fault{Op: storetest.OpWork, Times: -1, Err: &diag.Error{Code: diag.SchemaNewer}})
			r.append(1)
		}, diag.SchemaNewer},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, delivery.Policy{})
				r.append(2)
				i := r.start(consume.Options{Handlers: 3}, func(ctx context.Context, m *delivery.Message, _ consume.Attempt) error {
					return sleep(ctx, time.Duration(m.ID)*time.Second)
				})
				time.Sleep(500 * time.Millisecond)
				c.do(r)
				<-i.ended
				if diag.CodeOf(i.err) != c.code {
					t.Errorf("Run returned %v", i.err)
				}
				if r.at() != 2*time.Second {
					t.Errorf("after %v", r.at())
				}
				if lines := i.logs.find("consumer stopped"); len(lines) != 1 || lines[0].attrs["code"] != string(c.code) {
					t.Errorf("%+v", lines)
				}
			})
		})
	}
}

// A session that has nothing to do notices too: its sign of life is refused.
func TestIdleRunEndsWhenARightIsRevoked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{})
		i := r.start(consume.Options{}, func(context.Context, *delivery.Message, consume.Attempt) error { return nil })
		time.Sleep(time.Minute)
		r.store.Fail(storetest.Fault{Op: storetest.OpBeat, Times: 1, Err: &diag.Error{Code: diag.Unreachable, Retryable: true}})
		time.Sleep(time.Minute)
		select {
		case <-i.ended:
			t.Fatalf("ended by what passes: %v", i.err)
		default:
		}
		r.store.Fail(storetest.Fault{Op: storetest.OpBeat, Times: -1, Err: &diag.Error{Code: diag.PermissionDenied, Op: "beat"}})
		began := time.Now()
		<-i.ended
		if took := time.Since(began); diag.CodeOf(i.err) != diag.PermissionDenied || took > 20*time.Second {
			t.Errorf("Run returned %v after %v", i.err, took)
		}
	})
}

func TestRunTwice(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{})
		i := r.start(consume.Options{}, func(context.Context, *delivery.Message, consume.Attempt) error { return nil })
		synctest.Wait()
		if err := i.Run(t.Context()); diag.CodeOf(err) != diag.AlreadyConsuming {
			t.Errorf("second Run: %v", err)
		}
		i.stop(t)
	})
}

// A stop frees a range that had gone stale, too.
func TestStopFreesStaleRange(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{})
		r.append(4)
		i := r.start(consume.Options{Handlers: 1, BatchMin: 4, BatchLimit: 4}, func(ctx context.Context, _ *delivery.Message, _ consume.Attempt) error {
			return sleep(ctx, 10*time.Second)
		})
		time.Sleep(21 * time.Second)
		if h := i.Health(); h.Stale != 1 {
			t.Errorf("%+v", h)
		}
		i.stop(t)
		st := r.store.State(r.group)
		if len(st.Claims) != 1 || st.Claims[0].Low != 2 || !st.Claims[0].Expired {
			t.Errorf("%+v", st.Claims)
		}
	})
}

// ReleaseStale records what has finished of a stale range and frees the rest at once.
func TestReleaseStale(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{})
		r.append(4)
		d := r.diary()
		o := consume.Options{Handlers: 1, BatchMin: 4, BatchLimit: 4, QueueSize: 1, ReleaseStale: true}
		slow := func(name string) consume.Handler {
			return func(ctx context.Context, m *delivery.Message, _ consume.Attempt) error {
				d.note("%s %d", name, m.ID)
				return sleep(ctx, 10*time.Second)
			}
		}
		a := r.start(o, slow("A"))
		time.Sleep(time.Minute)
		synctest.Wait()
		if diff := cmp.Diff([]string{"0s A 1", "10s A 2", "20s A 3", "30s A 4"}, d.all()); diff != "" {
			t.Error(diff)
		}
		if h := a.Health(); h.Stale != 1 || h.LeaseLost != 0 || h.Succeeded != 4 {
			t.Errorf("%+v", h.Counts)
		}
		a.stop(t)
	})
}

// Where nothing of a range ran there is nothing to release: it waits for its expiry, else the same instance would take it again at once.
func TestReleaseStaleNeverWhenNothingRan(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{})
		r.append(6)
		i := r.start(consume.Options{Handlers: 1, BatchMin: 2, BatchLimit: 2, ReleaseStale: true}, func(ctx context.Context, m *delivery.Message, _ consume.Attempt) error {
			if m.ID == 3 { // 5 and 6 are claimed by then
				return sleep(ctx, 20*time.Second)
			}
			return nil
		})
		time.Sleep(20*time.Second + time.Millisecond)
		synctest.Wait()
		if h := i.Health(); h.Stale != 2 || h.Succeeded != 4 { // 4 was freed and has run again since
			t.Errorf("%+v", h)
		}
		if st := r.store.State(r.group); len(st.Claims) != 1 || st.Claims[0].Low != 4 || st.Claims[0].Stale != 1 || st.Claims[0].Expired {
			t.Errorf("%+v", st.Claims)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if h := i.Health(); h.Succeeded != 6 {
			t.Errorf("%+v", h)
		}
		i.stop(t)
	})
}

// A range that cannot be read is given back uncounted, and taken again.
func TestUnreadableRange(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{})
		r.append(2)
		reads := 0
		r.store.Fail(storetest.Fault{Op: storetest.OpRead, Times: -1, Err: storetest.Down(), If: func() bool { reads++; return reads < 20 }})
		i := r.start(consume.Options{}, func(ctx context.Context, _ *delivery.Message, _ consume.Attempt) error { return nil })
		time.Sleep(time.Minute)
		synctest.Wait()
		if h := i.Health(); h.Succeeded != 2 || h.Stale != 0 || h.LeaseLost != 0 {
			t.Errorf("%+v", h)
		}
		i.stop(t)
	})
}
