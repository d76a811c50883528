package consume_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/storetest"
)

// Handlers of 1 ms, 100 ms and 5 s and sudden changes between them, with the defaults: SQL0105 at most once per change, nothing runs again in
// the steady state.
func TestSizeFollowsHandlerTime(t *testing.T) {
	speeds := []time.Duration{time.Millisecond, 100 * time.Millisecond, 5 * time.Second}
	for _, from := range speeds {
		for _, to := range speeds {
			t.Run(fmt.Sprintf("%v to %v", from, to), func(t *testing.T) {
				bubble(t, func(t *testing.T) { speedChange(t, from, to) })
			})
		}
	}
}

func speedChange(t *testing.T, from, to time.Duration) {
	r := newRig(t, delivery.Policy{})
	r.store.SetLatency(2 * time.Millisecond)
	var takes atomic.Int64
	takes.Store(int64(from))
	var mu sync.Mutex
	ran := make(map[int64]int)
	again := 0
	i := r.start(consume.Options{}, func(ctx context.Context, m *delivery.Message, _ consume.Attempt) error {
		err := sleep(ctx, time.Duration(takes.Load()))
		mu.Lock()
		defer mu.Unlock()
		ran[m.ID]++
		if ran[m.ID] > 1 {
			again++
		}
		return err
	})
	// A backlog that never ends.
	feed := func(during time.Duration) {
		for range int(during / (100 * time.Millisecond)) {
			if h := i.Health(); r.store.State(r.group).Claimed-h.Claimed < 20_000 {
				if st := r.store.State(r.group); r.store.Append(r.stream)-st.Claimed < 5000 {
					r.store.Append(r.stream, storetest.Messages(5000)...)
				}
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	phase := func(name string, during time.Duration, allowed int) {
		warnings, reruns := len(i.logs.find("queued message has insufficient lease time")), again
		before := i.Health()
		feed(during)
		synctest.Wait()
		h := i.Health()
		rate := float64(h.Succeeded-before.Succeeded) / during.Seconds()
		best := 10 / time.Duration(takes.Load()).Seconds()
		t.Logf("%s: %.1f/s of %.1f/s, stale %d, given back %d, reruns %d, ranges %d, queued %d", name, rate, best, h.Stale-before.Stale, h.GivenBack-before.GivenBack, again-reruns, h.Ranges, h.Queued)
		if got := len(i.logs.find("queued message has insufficient lease time")) - warnings; got > allowed {
			t.Errorf("%s: SQL0105 was logged %d times", name, got)
		}
		if allowed == 0 {
			if again != reruns {
				t.Errorf("%s: %d messages ran again", name, again-reruns)
			}
			if rate < 0.7*best {
				t.Errorf("%s: %.1f messages a second where %.1f are possible", name, rate, best)
			}
		}
	}
	// In the bubble an hour costs nothing, but each message does.
	long := func() time.Duration {
		return min(max(1000*time.Duration(takes.Load()), 1500*time.Millisecond), 3*time.Minute)
	}
	phase("warm-up", long()/2, 0)
	phase("steady", long(), 0)
	takes.Store(int64(to))
	// The change is over when what was claimed before it would have expired twice.
	if to == time.Millisecond {
		phase("change", 2*time.Second, 1)
	} else {
		phase("change", 2*time.Minute, 1)
	}
	phase("steady again", long(), 0)
	i.stop(t)
}
