package product

import (
	"context"
	"errors"
	"time"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/bench/internal/measure"
	"github.com/sqlstreams/sqlstreams/bench/internal/rig"
	"github.com/sqlstreams/sqlstreams/bench/internal/worker"
)

// Idle is what a process costs whose groups have nothing to do.
type Idle struct {
	Streams, Groups int // groups of each stream
}

// Run does it for a window. Values: statements and transactions per second, and percent of one core, client and server together. Where statements cannot be counted,
// transactions stand for them: there is one statement in each.
func (c *Idle) Run(ctx context.Context, m *rig.Meter, w measure.Window) (values measure.Values, err error) {
	child, err := worker.Start(ctx, IdleRole, IdleConfig{DSN: m.Server.DSN(), Streams: c.Streams, Groups: c.Groups})
	if err != nil {
		return nil, err
	}
	stopped := false
	stop := func() error {
		if stopped {
			return nil
		}
		stopped = true
		_, err := child.Stop()
		return err
	}
	defer func() { err = errors.Join(err, stop(), c.forget(ctx, m.Server)) }()
	if err := sleep(ctx, w.Warm); err != nil {
		return nil, err
	}
	if m.Server.Counts {
		if err := m.Server.Track(ctx, rig.TrackTop); err != nil {
			return nil, err
		}
	}
	transactions := func() (n float64, err error) {
		err = m.Server.Admin.QueryRow(ctx, "select xact_commit + xact_rollback from pg_stat_database where datname = $1", rig.Database).Scan(&n)
		return n, err
	}
	from, err := transactions()
	if err != nil {
		return nil, err
	}
	began, cpu := time.Now(), rig.Used(child.PID())+m.Server.CPU()
	if err := sleep(ctx, w.Length); err != nil {
		return nil, err
	}
	seconds := time.Since(began).Seconds()
	cpu = rig.Used(child.PID()) + m.Server.CPU() - cpu
	to, err := transactions()
	if err != nil {
		return nil, err
	}
	values = measure.Values{"transactions": (to - from) / seconds, "statements": (to - from) / seconds, "core_percent": 100 * cpu.Seconds() / seconds}
	if m.Server.Counts {
		all, err := m.Server.Statements(ctx, 1000)
		if err != nil {
			return nil, err
		}
		calls, _ := rig.Sum(all, "")
		values["statements"] = float64(calls) / seconds
		if m.Detail != nil {
			m.Detail("idle statements", all)
		}
		if err := m.Server.Track(ctx, rig.TrackNone); err != nil {
			return nil, err
		}
	}
	return values, stop()
}

func (c *Idle) forget(ctx context.Context, s *rig.Server) error {
	ctx = context.WithoutCancel(ctx)
	a, err := open(ctx, s.DSN(), 1, sqlstreams.ClientConfig{})
	if err != nil {
		return err
	}
	defer a.close(ctx)
	for i := range c.Streams {
		if err := a.client.DeleteStream(ctx, idleStream(i)); err != nil && !errors.Is(err, sqlstreams.ErrStreamNotFound) {
			return err
		}
	}
	return nil
}
