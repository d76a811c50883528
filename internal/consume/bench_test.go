package consume

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

func testLimits() delivery.Limits {
	p := delivery.DefaultPolicy()
	return delivery.Limits{Default: p, Max: p}
}

// The machine alone: take and finish, without mutex, context and handler.
func BenchmarkTakeFinish(b *testing.B) {
	msgs := make([]delivery.Message, 1000)
	for i := range msgs {
		msgs[i].ID = int64(i + 1)
	}
	zero := time.Now()
	clock := func() instant {
		now := time.Now()
		return instant{mono: int64(now.Sub(zero)), wall: now.UnixNano()}
	}
	m := newMachine(Options{}, names{}, testLimits(), 1, func() float64 { return 0.5 }, uuid.New, clock())
	var at start
	b.ReportAllocs()
	for n := 0; n < b.N; {
		now := clock()
		m.adopt(&delivery.Range{Low: 0, High: 1000, Lease: time.Minute, Ceiling: 30 * time.Second}, now, now)
		r := m.spans[len(m.spans)-1]
		m.readDone(r, msgs, now)
		for m.take(0, clock(), &at) {
			m.finish(0, clock(), nil)
			n++
		}
		m.drop(r)
		m.effects()
	}
}

// endless is a store that hands out ranges of the size asked for until so many messages have gone.
type endless struct {
	mu   sync.Mutex
	next int64
	most int64
	open map[delivery.Token]int64
	left int64
	done chan struct{}
}

func (s *endless) Work(_ context.Context, req *delivery.WorkRequest) (*delivery.WorkReply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reply := &delivery.WorkReply{Epoch: 1, ConfigVersion: 1, NextDue: -1, NextSoloDue: -1, NextExpiry: -1}
	if req.RangeToken != (delivery.Token{}) && s.next < s.most {
		high := min(s.next+int64(req.MaxMessages), s.most)
		reply.Range = &delivery.Range{Low: s.next, High: high, Token: req.RangeToken, Lease: req.Margins + 30*time.Second, Ceiling: 30 * time.Second}
		reply.More = high < s.most
		s.open[req.RangeToken] = high - s.next
		s.next = high
	}
	for _, r := range req.Results {
		s.left -= s.open[r.Token]
		delete(s.open, r.Token)
		if s.left == 0 {
			close(s.done)
		}
	}
	return reply, nil
}

func (s *endless) Read(_ context.Context, _ int, low, high int64) ([]delivery.Message, error) {
	msgs := make([]delivery.Message, high-low)
	for i := range msgs {
		msgs[i].ID = low + 1 + int64(i)
	}
	return msgs, nil
}

func (s *endless) ReadIDs(context.Context, int, int, []int64) ([]delivery.Message, error) {
	return nil, nil
}

func (s *endless) Held(context.Context, int, []delivery.Token) (*delivery.Held, error) {
	return &delivery.Held{}, nil
}
func (s *endless) Beat(context.Context, int, uuid.UUID) error  { return nil }
func (s *endless) Leave(context.Context, int, uuid.UUID) error { return nil }

type silent struct{ c chan struct{} }

func (w silent) C() <-chan struct{} { return w.c }
func (w silent) Looked(bool)        {}

// The whole session with handlers that do nothing, and a store that costs nothing.
func BenchmarkSession(b *testing.B) {
	for _, bench := range []struct {
		name string
		h    Handler
	}{
		{"no-op", func(context.Context, *delivery.Message, Attempt) error { return nil }},
		{"reads its attempt", func(ctx context.Context, _ *delivery.Message, _ Attempt) error { FromContext(ctx); return nil }},
		{"uses its context", func(ctx context.Context, _ *delivery.Message, _ Attempt) error { ctx.Done(); return nil }},
	} {
		b.Run(bench.name, func(b *testing.B) {
			store := &endless{most: int64(b.N), left: int64(b.N), open: make(map[delivery.Token]int64), done: make(chan struct{})}
			s, err := NewSession(Config{
				Store: store, Waker: silent{}, Logger: slog.New(slog.DiscardHandler), Limits: testLimits(), ConfigVersion: 1, Handler: bench.h,
			})
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan struct{})
			b.ReportAllocs()
			b.ResetTimer()
			go func() { defer close(ended); _ = s.Run(ctx) }()
			<-store.done
			b.StopTimer()
			cancel()
			<-ended
			if got := s.Health().Succeeded; got != int64(b.N) {
				b.Fatalf("%d of %d", got, b.N)
			}
		})
	}
}
