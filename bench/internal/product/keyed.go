package product

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/bench/internal/measure"
	"github.com/sqlstreams/sqlstreams/bench/internal/payload"
	"github.com/sqlstreams/sqlstreams/bench/internal/plain"
	"github.com/sqlstreams/sqlstreams/bench/internal/rig"
	"github.com/sqlstreams/sqlstreams/bench/internal/worker"
)

// Keyed produces messages with keys, of which some are much more frequent than others, and consumes them in processes of their own.
type Keyed struct {
	Order sqlstreams.KeyOrder
	// Keys are drawn with the frequency of 1/rank: Zipf's law with s = 1.
	Keys int
	// Instances consume, each in a process of its own with so many handlers that each take Work.
	Instances, Handlers int
	Work                time.Duration
	Set                 *payload.Set
}

// keyedBatch is how many messages a producing call has.
const keyedBatch = 1000

// zipf draws ranks from 0 on; the cumulated frequencies end with 1.
type zipf []float64

func newZipf(n int) zipf {
	z := make(zipf, n)
	sum := 0.0
	for i := range z {
		sum += 1 / float64(i+1)
		z[i] = sum
	}
	for i := range z {
		z[i] /= sum
	}
	return z
}

func (z zipf) draw(r *rand.Rand) int {
	i, _ := slices.BinarySearch(z, r.Float64())
	return min(i, len(z)-1)
}

// keyName is the key of a rank.
func keyName(rank int) string { return fmt.Sprintf("customer-%05d", rank) }

// Run does it for a window: rate is messages handled per second, ceiling the rate that the most frequent key allows if its messages run one after the other. The last value is the share of that key, in percent, in what
// was handled from the start on, divided by its share in what was produced: where it is far below 100 its messages are left behind, and the rate would not last.
func (k *Keyed) Run(ctx context.Context, m *rig.Meter, name string, w measure.Window) (values measure.Values, err error) {
	a, err := open(ctx, m.Server.DSN(), 2, sqlstreams.ClientConfig{})
	if err != nil {
		return nil, err
	}
	defer a.close(ctx)
	stream, err := sqlstreams.RegisterStream[payload.Order](ctx, a.client, streamName, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, forget(ctx, m.Server, a)) }()
	if err := m.Server.Calm(ctx); err != nil {
		return nil, err
	}
	instances, err := k.start(ctx, m, name)
	if err != nil {
		return nil, err
	}
	stopped := false
	defer func() {
		if !stopped {
			err = errors.Join(err, instances.Stop())
		}
	}()
	var asking sync.Mutex
	handled := func() (float64, error) {
		asking.Lock()
		defer asking.Unlock()
		return instances.Count()
	}
	producing, stop := context.WithCancel(ctx)
	var producer errgroup.Group
	var produced atomic.Int64
	producer.Go(func() error {
		err := k.produce(producing, stream.Producer(nil), handled, &produced)
		if producing.Err() != nil {
			return nil // whatever it says of the last messages
		}
		return err
	})
	measured := *m
	measured.Clients = instances.PIDs
	values, err = measured.Window(ctx, name, w, []string{"rate", "produced"}, handled, func() (float64, error) { return float64(produced.Load()), nil })
	stop()
	if err := errors.Join(err, producer.Wait()); err != nil {
		return values, err
	}
	stopped = true
	total, err := stopAll(instances)
	if total.Count > 0 {
		took, share := total.Busy.Seconds()/float64(total.Count), newZipf(k.Keys)[0]
		values["handler_ms"] = took * 1000
		values["ceiling"] = 1 / took / share
		values["hottest_percent"] = float64(total.Hottest) / float64(total.Count) / share * 100
	}
	return values, err
}

func (k *Keyed) start(ctx context.Context, m *rig.Meter, name string) (all worker.Group, err error) {
	if m.ProfileDir != "" {
		if err := os.MkdirAll(m.ProfileDir, 0o755); err != nil {
			return nil, err
		}
	}
	for i := range k.Instances {
		c := ConsumeConfig{DSN: m.Server.DSN(), Order: k.Order, Handlers: k.Handlers, Work: k.Work}
		if m.ProfileDir != "" {
			c.Profile = filepath.Join(m.ProfileDir, fmt.Sprintf("%s.consumer-%d.pprof", name, i+1))
		}
		w, err := worker.Start(ctx, ConsumeRole, c)
		if err != nil {
			return nil, errors.Join(err, all.Stop())
		}
		all = append(all, w)
	}
	return all, nil
}

// produce keeps at most plain.Ahead messages ahead of the consumers. Every run draws the same keys.
func (k *Keyed) produce(ctx context.Context, producer *sqlstreams.Producer[payload.Order], handled rig.Counter, produced *atomic.Int64) error {
	z, random := newZipf(k.Keys), rand.New(rand.NewPCG(1, 2))
	batch := make([]sqlstreams.Outgoing[payload.Order], keyedBatch)
	for ctx.Err() == nil {
		for {
			n, err := handled()
			if err != nil {
				return err
			}
			if produced.Load()-int64(n) <= plain.Ahead {
				break
			}
			if err := sleep(ctx, 2*time.Millisecond); err != nil {
				return err
			}
		}
		for i := range batch {
			batch[i].Payload = k.Set.Orders[i%len(k.Set.Orders)]
			batch[i].Options = &sqlstreams.ProduceOptions{Key: keyName(z.draw(random))}
		}
		if _, err := producer.ProduceBatch(ctx, batch); err != nil {
			return err
		}
		produced.Add(keyedBatch)
	}
	return nil
}

// stopAll ends processes in ConsumeRole and adds up what they answer.
func stopAll(all worker.Group) (total ConsumeResult, err error) {
	var errs []error
	for _, w := range all {
		text, err := w.Stop()
		var r ConsumeResult
		if err == nil {
			err = json.Unmarshal(text, &r)
		}
		errs = append(errs, err)
		total.Count += r.Count
		total.Hottest += r.Hottest
		total.Busy += r.Busy
	}
	return total, errors.Join(errs...)
}

// ConsumeConfig is what a process in ConsumeRole is told.
type ConsumeConfig struct {
	DSN      string
	Order    sqlstreams.KeyOrder
	Handlers int
	Work     time.Duration
	Profile  string // where its CPU profile goes; "": nowhere
}

// ConsumeResult is what it answers.
type ConsumeResult struct {
	Count, Hottest int64         // messages handled, and those of the most frequent key
	Busy           time.Duration // in handlers
}

// runConsume is one instance whose handlers wait, as they would for somebody else's answer.
func runConsume(ctx context.Context, c *worker.Control) (any, error) {
	var config ConsumeConfig
	if err := json.Unmarshal(c.Config, &config); err != nil {
		return nil, err
	}
	a, err := open(ctx, config.DSN, 2, sqlstreams.ClientConfig{})
	if err != nil {
		return nil, err
	}
	defer a.close(ctx)
	stream, err := sqlstreams.RegisterStream[payload.Order](ctx, a.client, streamName, nil)
	if err != nil {
		return nil, err
	}
	consumer, err := stream.RegisterConsumer(ctx, "workers", &sqlstreams.ConsumerConfig{KeyOrder: config.Order})
	if err != nil {
		return nil, err
	}
	if config.Profile != "" {
		stop, err := profileInto(config.Profile)
		if err != nil {
			return nil, err
		}
		defer stop()
	}
	var busy, hottest atomic.Int64
	c.Ready()
	err = consumer.Consume(ctx, func(ctx context.Context, _ *payload.Order) error {
		began := time.Now()
		if meta, _ := sqlstreams.MetaFromContext(ctx); meta.Key == keyName(0) {
			hottest.Add(1)
		}
		time.Sleep(config.Work)
		busy.Add(int64(time.Since(began)))
		c.Count.Add(1)
		return nil
	}, &sqlstreams.ConsumeOptions{Handlers: config.Handlers})
	return ConsumeResult{Count: c.Count.Load(), Hottest: hottest.Load(), Busy: time.Duration(busy.Load())}, err
}

func profileInto(path string) (stop func(), err error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close() // a profile that cannot be read says so
	}, nil
}
