package plain

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams/bench/internal/measure"
	"github.com/sqlstreams/sqlstreams/bench/internal/payload"
	"github.com/sqlstreams/sqlstreams/bench/internal/pickup"
	"github.com/sqlstreams/sqlstreams/bench/internal/rig"
	"github.com/sqlstreams/sqlstreams/bench/internal/worker"
)

// Listen is the time from commit to pick-up with a bare LISTEN-and-select program: one process inserts and notifies in one transaction, another one listens and selects.
type Listen struct {
	Rate int // messages per second
	Size int
}

const listenTable = "plain_listen"

// The roles of the two processes.
const (
	ListenRole = "plain-listen"
	NotifyRole = "plain-notify"
)

// ListenConfig is what both are told.
type ListenConfig struct {
	DSN        string
	Rate, Size int
}

// Run does it for a window.
func (c *Listen) Run(ctx context.Context, m *rig.Meter, _ string, w measure.Window) (values measure.Values, err error) {
	admin := m.Server.Admin
	drop := "drop table if exists " + listenTable
	if _, err := admin.Exec(ctx, drop+"; create table "+listenTable+" (id bigint generated always as identity primary key, payload json not null)"); err != nil {
		return nil, err
	}
	defer func() {
		_, dropErr := admin.Exec(context.WithoutCancel(ctx), drop)
		err = errors.Join(err, dropErr)
	}()
	if err := m.Server.Calm(ctx); err != nil {
		return nil, err
	}
	config := ListenConfig{DSN: m.Server.DSN(), Rate: c.Rate, Size: c.Size}
	return pickup.Measure(ctx, w, ListenRole, config, NotifyRole, config)
}

// RunListen is the role ListenRole.
func RunListen(ctx context.Context, c *worker.Control) (any, error) {
	var config ListenConfig
	if err := json.Unmarshal(c.Config, &config); err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, config.DSN)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is asked of it any more
	if _, err := conn.Exec(ctx, "listen "+listenTable); err != nil {
		return nil, err
	}
	var seen pickup.Times
	c.Ready()
	for last := int64(0); ; {
		if _, err := conn.WaitForNotification(ctx); err != nil {
			if ctx.Err() != nil {
				return seen.All(), nil
			}
			return nil, err
		}
		rows, err := conn.Query(ctx, "select id, payload from "+listenTable+" where id > $1 and id <= $2 order by id", last, last+readMost)
		if err != nil {
			return nil, err
		}
		var data []byte
		if _, err := pgx.ForEachRow(rows, []any{&last, &data}, func() error {
			var order payload.Order
			err := json.Unmarshal(data, &order)
			seen.Note(order.Seq)
			return err
		}); err != nil {
			if ctx.Err() != nil {
				return seen.All(), nil
			}
			return nil, err
		}
	}
}

// RunNotify is the role NotifyRole.
func RunNotify(ctx context.Context, c *worker.Control) (any, error) {
	var config ListenConfig
	if err := json.Unmarshal(c.Config, &config); err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, config.DSN)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is asked of it any more
	var sent pickup.Times
	c.Ready()
	err = pickup.Steadily(ctx, config.Rate, func(seq int64) error {
		order, err := payload.New(seq, config.Size)
		if err != nil {
			return err
		}
		data, err := json.Marshal(order)
		if err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, "with i as (insert into "+listenTable+" (payload) values ($1) returning id) select pg_notify('"+listenTable+"', i.id::text) from i", data); err != nil {
			return err
		}
		sent.NoteAt(seq, time.Now())
		c.Count.Add(1)
		return nil
	})
	return sent.All(), err
}
