package consume_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/storetest"
)

// company counts what runs at once in the process.
type company struct {
	mu      sync.Mutex
	running int
	solo    int
	broken  int
}

func (c *company) enter(solo bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running++
	if solo {
		c.solo++
	}
	if c.solo > 0 && c.running > 1 {
		c.broken++
	}
}

func (c *company) leave(solo bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	if solo {
		c.solo--
	}
}

// brokenUp leaves a group with every message of a range of n as a solo delivery.
func (r *rig) brokenUp(t *testing.T, group, n int) {
	t.Helper()
	for range 5 {
		token := delivery.Token{byte(n)}
		_, err := r.store.Work(t.Context(), &delivery.WorkRequest{
			Group: group, Stream: r.stream, RangeToken: token, MaxMessages: n, MaxBytes: 1 << 20, TakeOver: true, PartMax: n, RestToken: delivery.Token{1, 2},
		})
		if err != nil {
			t.Fatal(err)
		}
		r.store.ExpireAll(group)
	}
	if st := r.store.State(group); len(st.Deliveries) != n || !st.Deliveries[0].Solo {
		t.Fatalf("not broken up: %+v", st)
	}
}

// A solo delivery runs while nothing else of the client does, and both kinds of work go on.
func TestSoloRunsAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{BaseDelay: 10 * time.Millisecond})
		other := r.store.AddGroup(r.stream, 30*time.Second, 3)
		r.append(20)
		r.brokenUp(t, r.group, 20)
		c := &company{}
		handler := func(takes time.Duration, solo func(m *delivery.Message, a consume.Attempt) bool, d *diary) consume.Handler {
			return func(ctx context.Context, m *delivery.Message, a consume.Attempt) error {
				alone := solo(m, a)
				c.enter(alone)
				defer c.leave(alone)
				d.ran(m.ID)
				if err := sleep(ctx, takes); err != nil {
					return err
				}
				if alone && a.Attempt == 1 && m.ID%4 == 0 {
					return errors.New("no") // its retry is alone, too
				}
				return nil
			}
		}
		mine, theirs := r.diary(), r.diary()
		i := r.start(consume.Options{Handlers: 3}, handler(20*time.Millisecond, func(m *delivery.Message, _ consume.Attempt) bool { return m.ID <= 20 }, mine))
		j := r.startGroup(other, consume.Options{Handlers: 3}, handler(10*time.Millisecond, func(*delivery.Message, consume.Attempt) bool { return false }, theirs))
		for range 100 {
			r.append(10)
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if c.broken > 0 {
			t.Errorf("a solo run had company %d times", c.broken)
		}
		for id := int64(1); id <= 20; id++ {
			if got, want := mine.runs(id), 1+boolInt(id%4 == 0); got != want {
				t.Errorf("message %d ran %d times", id, got)
			}
		}
		for _, group := range []int{r.group, other} {
			if st := r.store.State(group); st.Claimed != 1020 || len(st.Claims)+len(st.Deliveries)+len(st.Dead) != 0 {
				t.Errorf("group %d: %+v", group, st)
			}
		}
		i.stop(t)
		j.stop(t)
	})
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A message that kills its process is found: its range is broken up, it runs alone until no attempt is left, its neighbours live.
func TestMessageThatKills(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{MaxAttempts: 3})
		r.append(5)
		d := r.diary()
		ran := make(map[int64]bool)
		var mu sync.Mutex
		deaths := 0
		for range 40 {
			// Each life is a process: it ends when message 3 runs, without a word to the store.
			var down atomic.Bool
			died := make(chan struct{})
			r.store.Heal()
			r.store.Fail(storetest.Fault{Times: -1, Err: storetest.Down(), If: down.Load})
			release := make(chan struct{})
			i := r.startWith(r.group, consume.Options{Handlers: 2, QueueMargin: time.Second}, func(_ context.Context, m *delivery.Message, a consume.Attempt) error {
				d.ran(m.ID)
				if m.ID == 3 {
					down.Store(true)
					close(died)
					<-release
					return nil
				}
				time.Sleep(time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				ran[m.ID] = ran[m.ID] || !down.Load()
				return nil
			}, func(c *consume.Config) { c.Gate, c.Strays = &consume.Gate{}, &consume.Strays{} })
			ctx, cancel := context.WithCancel(t.Context())
			go i.waker.Poll(ctx, time.Second)
			select {
			case <-died:
				deaths++
				time.Sleep(10 * time.Millisecond)
			case <-time.After(2 * time.Minute):
			}
			cancel()
			i.cancel()
			close(release)
			<-i.ended
			if st := r.store.State(r.group); len(st.Dead) > 0 && len(st.Deliveries) == 0 {
				break
			}
		}
		st := r.store.State(r.group)
		if len(st.Dead) != 1 || st.Dead[0].ID != 3 || st.Dead[0].Reason != delivery.Exhausted || len(st.Deliveries)+len(st.Claims) != 0 {
			t.Errorf("%+v", st)
		}
		if !ran[1] || !ran[2] || !ran[4] || !ran[5] {
			t.Errorf("neighbours that got through: %v", ran)
		}
		t.Logf("%d deaths, message 3 ran %d times", deaths, d.runs(3))
		r.store.Heal()
	})
}

// A hung solo run is abandoned like any other, and the gate opens again.
func TestHungSoloOpensTheGate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{Timeout: time.Second, MaxAttempts: 1})
		r.append(2)
		r.brokenUp(t, r.group, 2)
		release := make(chan struct{})
		d := r.diary()
		i := r.start(consume.Options{}, func(_ context.Context, m *delivery.Message, _ consume.Attempt) error {
			d.ran(m.ID)
			if m.ID <= 2 {
				<-release
			}
			return nil
		})
		time.Sleep(100 * time.Millisecond)
		r.append(5)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if h := i.Health(); h.Abandoned != 2 || h.Dead != 2 || h.Succeeded != 5 {
			t.Errorf("%+v", h.Counts)
		}
		close(release)
		i.stop(t)
	})
}
