package sqlstreams_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// instances starts n clients, each with one instance of the group, and returns when all consume.
func instances(t *testing.T, n int, config *sqlstreams.ConsumerConfig, opts *sqlstreams.ConsumeOptions, f func(context.Context, *WelcomeEmail) error) (*sqlstreams.Client, *sqlstreams.Stream[WelcomeEmail], *pgtest.Database) {
	t.Helper()
	first, db, _ := open(t, nil)
	stream := register[WelcomeEmail](t, first, "s")
	for i := range n {
		client := first
		if i > 0 {
			client = openOn(t, db.Pool(t), nil)
		}
		instance := group(t, register[WelcomeEmail](t, client, "s"), "g", config)
		consume(t, instance, opts, f)
	}
	return first, stream, db
}

// However many handlers the instances have, no more run at once than the group allows, retries included, and the allowance is shared and used.
func TestMaxRunning(t *testing.T) {
	const most = 4
	var running, peak atomic.Int64
	var seen tally
	client, stream, _ := instances(t, 3, &sqlstreams.ConsumerConfig{MaxRunning: most, Message: &sqlstreams.MessageOptions{BaseDelay: time.Millisecond}}, nil, func(_ context.Context, m *WelcomeEmail) error {
		n := running.Add(1)
		defer running.Add(-1)
		for p := peak.Load(); n > p && !peak.CompareAndSwap(p, n); p = peak.Load() {
		}
		<-time.NewTimer(3 * time.Millisecond).C // the work
		if seen.add(m.UserID) == 1 && len(m.UserID) == 2 {
			return errors.New("once")
		}
		return nil
	})
	produceAll(t, stream, numbered("", 150)...)
	settled(t, client, "s", "g", 150)
	if p := peak.Load(); p > most || p < 2 {
		t.Errorf("%d handlers ran at once, allowed are %d", p, most)
	}
	if seen.total() != 160 {
		t.Errorf("%d runs, want 160", seen.total())
	}
}

// In no second do more start, over all instances, than the rate and its burst allow.
func TestRatePerSecond(t *testing.T) {
	const rate = 40
	var mu sync.Mutex
	var starts []time.Time
	client, stream, _ := instances(t, 2, &sqlstreams.ConsumerConfig{RatePerSecond: rate}, nil, func(context.Context, *WelcomeEmail) error {
		mu.Lock()
		defer mu.Unlock()
		starts = append(starts, time.Now())
		return nil
	})
	produceAll(t, stream, numbered("", 130)...)
	settled(t, client, "s", "g", 130)
	// The bucket lets rate·(t + 1) through in any t seconds; what it hands out may start a little later than it was counted, so windows get some slack.
	for i := range starts {
		for j := i + rate + 1; j < len(starts); j++ {
			window := starts[j].Sub(starts[i]).Seconds()
			if allowed := rate*(window+1) + 8; float64(j-i+1) > math.Ceil(allowed) {
				t.Fatalf("%d starts in %.3f s, allowed are %.0f", j-i+1, window, allowed)
			}
		}
	}
	took := starts[len(starts)-1].Sub(starts[0])
	if took < 2*time.Second || took > 15*time.Second {
		t.Errorf("130 at %d a second took %v", rate, took)
	}
}

func TestLimitsRefuseBadInput(t *testing.T) {
	client, _, _ := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	for _, c := range []sqlstreams.ConsumerConfig{{MaxRunning: -2}, {MaxRunning: 2_000_000}, {RatePerSecond: -1}, {RatePerSecond: math.NaN()}, {RatePerSecond: math.Inf(1)}, {RatePerSecond: 1e-9}} {
		if _, err := stream.RegisterConsumer(t.Context(), "g", &c); !errors.Is(err, sqlstreams.ErrInvalidOption) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
