package micro

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/bench/internal/measure"
	"github.com/sqlstreams/sqlstreams/bench/internal/payload"
	"github.com/sqlstreams/sqlstreams/bench/internal/rig"
	"github.com/sqlstreams/sqlstreams/bench/internal/worker"
	"github.com/sqlstreams/sqlstreams/internal/store"
)

type counter struct{ n atomic.Int64 }

func (c *counter) read() (float64, error) { return float64(c.n.Load()), nil }

// Lock is some processes that append to one stream at the same time, with one policy for the stream's lock. One more connection drains what went to the inbox.
type Lock struct {
	Processes, Batch int
	Policy           Policy
	Size             int
}

// Policy says what an append does that finds the stream's lock taken.
type Policy string

// The policies.
const (
	Try   Policy = "try"   // goes to the inbox
	Wait  Policy = "wait"  // waits up to 100 ms
	Inbox Policy = "inbox" // goes to the inbox without looking
)

func (p Policy) wait() time.Duration {
	switch p {
	case Wait:
		return 100 * time.Millisecond
	case Inbox:
		return -time.Millisecond
	default:
		return 0
	}
}

// AppendRole is the role of a process that appends.
const AppendRole = "micro-append"

// LockConfig is what it is told.
type LockConfig struct {
	DSN         string
	Stream      int
	Batch, Size int
	Policy      Policy
}

// lockResult is what it says at the end.
type lockResult struct {
	MS     []float64 // of each call
	Inbox  int64     // messages
	Direct int64
}

// Name names the program.
func (c *Lock) Name() string { return fmt.Sprintf("lock-%s-%d-by-%d", c.Policy, c.Processes, c.Batch) }

// Run does it for a window. Values: rate of messages that have their id, stored (whether they have it or not), inbox_share, and p50 and p99 of a call in milliseconds.
func (c *Lock) Run(ctx context.Context, m *rig.Meter, w measure.Window) (values measure.Values, err error) {
	s, closePool, err := openStore(ctx, m.Server.DSN(), 2)
	if err != nil {
		return nil, err
	}
	defer closePool()
	stream, drop, err := register(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() {
		_, truncateErr := m.Server.Admin.Exec(context.WithoutCancel(ctx), "truncate sqlstreams.inbox, sqlstreams.producer_batch")
		err = errors.Join(err, truncateErr, drop())
	}()
	if err := m.Server.Calm(ctx); err != nil {
		return nil, err
	}
	group, err := worker.StartGroup(ctx, c.Processes, AppendRole, LockConfig{DSN: m.Server.DSN(), Stream: stream, Batch: c.Batch, Policy: c.Policy, Size: c.Size})
	if err != nil {
		return nil, err
	}
	draining, stop := context.WithCancel(ctx)
	drained := make(chan error, 1)
	go func() { drained <- drain(draining, s, stream) }()
	measured := *m
	measured.Clients = group.PIDs
	head := func() (id float64, err error) {
		err = m.Server.Admin.QueryRow(ctx, fmt.Sprintf("select coalesce(max(id), 0)::float8 from sqlstreams.log_%d", stream)).Scan(&id)
		return id, err
	}
	values, err = measured.Window(ctx, c.Name(), w, []string{"rate", "stored"}, head, group.Count)
	var all lockResult
	for _, p := range group {
		text, stopErr := p.Stop()
		err = errors.Join(err, stopErr)
		var r lockResult
		if stopErr == nil && json.Unmarshal(text, &r) == nil {
			all.MS, all.Inbox, all.Direct = append(all.MS, r.MS...), all.Inbox+r.Inbox, all.Direct+r.Direct
		}
	}
	stop()
	if err = errors.Join(err, <-drained); err != nil {
		return values, err
	}
	slices.Sort(all.MS)
	values["p50"], values["p99"] = measure.Quantile(all.MS, 0.5), measure.Quantile(all.MS, 0.99)
	values["inbox_share"] = float64(all.Inbox) / float64(max(all.Inbox+all.Direct, 1))
	return values, nil
}

// drain gives ids to what waits, as a consumer does that has heard of it.
func drain(ctx context.Context, s *store.Store, stream int) error {
	for {
		reply, err := s.Drain(ctx, stream, 1000)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if reply.Moved == 0 || reply.Busy {
			timer := time.NewTimer(3 * time.Millisecond)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return nil
			}
		}
	}
}

// RunAppend is the role AppendRole.
func RunAppend(ctx context.Context, c *worker.Control) (any, error) {
	config, err := unmarshal[LockConfig](c.Config)
	if err != nil {
		return nil, err
	}
	set, err := payload.NewSet(config.Batch, config.Size)
	if err != nil {
		return nil, err
	}
	s, closePool, err := openStore(ctx, config.DSN, 1)
	if err != nil {
		return nil, err
	}
	defer closePool()
	request := &store.AppendRequest{Stream: config.Stream, Kind: store.KindJSON, Producer: uuid.New(), Wait: config.Policy.wait(), Messages: outgoing(set, config.Batch)}
	var result lockResult
	c.Ready()
	for {
		request.Batch++
		began := time.Now()
		reply, err := s.Append(ctx, request)
		if ctx.Err() != nil {
			return result, nil
		}
		if err != nil {
			return nil, err
		}
		result.MS = append(result.MS, float64(time.Since(began).Microseconds())/1e3)
		if reply.First == 0 {
			result.Inbox += int64(config.Batch)
		} else {
			result.Direct += int64(config.Batch)
		}
		c.Count.Add(int64(config.Batch))
	}
}

// LockTable lays the samples of all policies out.
func LockTable(samples []measure.Sample, cases []Lock) ([]string, [][]string) {
	var lines [][]string
	for _, c := range cases {
		value := func(name string) string {
			var all []float64
			for _, s := range samples {
				if v, ok := s.Values[name]; ok && s.Program == c.Name() && s.Error == "" {
					all = append(all, v)
				}
			}
			return measure.Number(measure.Median(all))
		}
		lines = append(lines, []string{fmt.Sprintf("%d x %d", c.Processes, c.Batch), string(c.Policy), value("rate"), value("stored"), value("inbox_share"), value("p50"), value("p99"), value("server_us")})
	}
	return []string{"processes x batch", "lock", "with ids/s", "stored/s", "share through the inbox", "p50 ms", "p99 ms", "server µs/message"}, lines
}
