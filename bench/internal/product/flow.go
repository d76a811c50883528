package product

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/bench/internal/measure"
	"github.com/sqlstreams/sqlstreams/bench/internal/payload"
	"github.com/sqlstreams/sqlstreams/bench/internal/plain"
	"github.com/sqlstreams/sqlstreams/bench/internal/rig"
	"github.com/sqlstreams/sqlstreams/bench/internal/worker"
)

// Flow produces and consumes at the same time, for a window.
type Flow struct {
	// Callers produce concurrently, Batch messages a call: 1 is Produce, more is ProduceBatch.
	Callers, Batch int
	// InTx makes them use ProduceTx in transactions of their own.
	InTx bool
	// Processes, each with one caller, produce instead; the consumers stay in this process.
	Processes int
	// Groups consume, each in one instance with default options. Default 1.
	Groups int
	// Raw sends bytes through the Raw codec in place of typed JSON.
	Raw bool
	// FailOnce makes every message fail once, with a base delay of 10 ms.
	FailOnce bool
	// Rate paces the producers, messages per second together. Default 0: as fast as it goes.
	Rate float64
	Set  *payload.Set
	Size int
}

// errAgain is how handlers fail.
var errAgain = errors.New("not the first time")

// Run does it for a window: rate is messages handled per second, all groups together.
func (f *Flow) Run(ctx context.Context, m *rig.Meter, name string, w measure.Window) (measure.Values, error) {
	return f.During(ctx, m, func(ctx context.Context, m *rig.Meter, handled, produced rig.Counter) (measure.Values, error) {
		return m.Window(ctx, name, w, []string{"rate", "produced"}, handled, produced)
	})
}

// During keeps the flow going while watch runs.
func (f *Flow) During(ctx context.Context, m *rig.Meter, watch func(ctx context.Context, m *rig.Meter, handled, produced rig.Counter) (measure.Values, error)) (measure.Values, error) {
	if f.Raw {
		return during(ctx, f, m, &sqlstreams.StreamConfig{Codec: sqlstreams.Raw{}}, func(i int) *[]byte { return &f.Set.Encoded[i%len(f.Set.Encoded)] }, watch)
	}
	return during(ctx, f, m, nil, func(i int) *payload.Order { return f.Set.Orders[i%len(f.Set.Orders)] }, watch)
}

// progress is how far both sides are.
type progress struct {
	produced atomic.Int64
	groups   []*stage
}

func (p *progress) handled() (float64, error) {
	total := int64(0)
	for _, g := range p.groups {
		total += g.done.Load()
	}
	return float64(total), nil
}

func (p *progress) slowest() int64 {
	least := int64(math.MaxInt64)
	for _, g := range p.groups {
		least = min(least, g.done.Load())
	}
	return least
}

func during[T any](ctx context.Context, f *Flow, m *rig.Meter, config *sqlstreams.StreamConfig, message func(i int) *T,
	watch func(ctx context.Context, m *rig.Meter, handled, produced rig.Counter) (measure.Values, error)) (values measure.Values, err error) {
	conns := max(f.Callers, 2)
	if !f.InTx {
		// All calls of one client share one batch on its way, so more would not be used.
		conns = 2
	}
	a, err := open(ctx, m.Server.DSN(), conns, sqlstreams.ClientConfig{})
	if err != nil {
		return nil, err
	}
	defer a.close(ctx)
	stream, err := sqlstreams.RegisterStream[T](ctx, a.client, streamName, config)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, forget(ctx, m.Server, a)) }()
	if err := m.Server.Calm(ctx); err != nil {
		return nil, err
	}
	p := &progress{groups: newStages(max(f.Groups, 1))}
	// Consumers end after producers, and both before the stream.
	consuming, stopConsumers := context.WithCancel(ctx)
	producing, stopProducers := context.WithCancel(consuming)
	var consumers, producers errgroup.Group
	defer func() {
		stopProducers()
		err = errors.Join(err, producers.Wait())
		stopConsumers()
		err = errors.Join(err, consumers.Wait())
	}()
	for _, g := range p.groups {
		consumer, err := stream.RegisterConsumer(ctx, g.name, f.consumerConfig())
		if err != nil {
			return nil, err
		}
		consumers.Go(func() error { return consumer.Consume(consuming, handler[T](f, g), nil) })
	}
	measured := *m
	produced := func() (float64, error) { return float64(p.produced.Load()), nil }
	if f.Processes > 0 {
		group, err := worker.StartGroup(ctx, f.Processes, ProduceRole, ProduceConfig{DSN: m.Server.DSN(), Size: f.Size})
		if err != nil {
			return nil, err
		}
		producers.Go(func() error {
			<-producing.Done()
			return group.Stop()
		})
		measured.Clients, produced = group.PIDs, group.Count
	}
	for i := range f.Callers {
		producers.Go(func() error {
			err := call(producing, f, a, stream.Producer(nil), p, i, message)
			if producing.Err() != nil {
				return nil // whatever it says of the last message
			}
			return err
		})
	}
	return watch(ctx, &measured, p.handled, produced)
}

func (f *Flow) consumerConfig() *sqlstreams.ConsumerConfig {
	if !f.FailOnce {
		return nil
	}
	return &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{BaseDelay: 10 * time.Millisecond}}
}

// handler counts, which a handler must do to be measured, and does nothing else.
func handler[T any](f *Flow, g *stage) func(context.Context, *T) error {
	if !f.FailOnce {
		return func(context.Context, *T) error {
			g.done.Add(1)
			return nil
		}
	}
	return func(ctx context.Context, _ *T) error {
		if meta, _ := sqlstreams.MetaFromContext(ctx); meta.Attempt == 1 {
			return errAgain
		}
		g.done.Add(1)
		return nil
	}
}

// call is one caller: it produces until ctx ends, never more than plain.Ahead beyond the slowest group.
func call[T any](ctx context.Context, f *Flow, a *access, producer *sqlstreams.Producer[T], p *progress, caller int, message func(i int) *T) error {
	var conn *pgx.Conn
	if f.InTx {
		// Held, as the plain program holds one.
		held, err := a.pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer held.Release()
		conn = held.Conn()
	}
	batch := make([]sqlstreams.Outgoing[T], f.Batch)
	began := time.Now()
	calls := 0
	for next := caller * 17; ctx.Err() == nil; {
		if f.Rate > 0 {
			due := began.Add(time.Duration(float64(calls) * float64(f.Batch*f.Callers) / f.Rate * float64(time.Second)))
			if err := sleep(ctx, time.Until(due)); err != nil {
				return err
			}
		}
		for p.produced.Load()-p.slowest() > plain.Ahead {
			if err := sleep(ctx, time.Millisecond); err != nil {
				return err
			}
		}
		var err error
		switch {
		case f.InTx:
			err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				_, err := producer.ProduceTx(ctx, tx, message(next), nil)
				return err
			})
		case f.Batch == 1:
			_, err = producer.Produce(ctx, message(next), nil)
		default:
			for i := range batch {
				batch[i].Payload = message(next + i)
			}
			_, err = producer.ProduceBatch(ctx, batch)
		}
		if err != nil {
			return err
		}
		next += f.Batch
		calls++
		p.produced.Add(int64(f.Batch))
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
