// Package plain is what a program reaches that uses Postgres by itself, without SQLStreams: the limit that the cases are compared with.
package plain

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams/bench/internal/measure"
	"github.com/sqlstreams/sqlstreams/bench/internal/payload"
	"github.com/sqlstreams/sqlstreams/bench/internal/rig"
)

// Ahead is how many messages producers may be ahead of the slowest reader: what is measured is what both sides sustain. It is the same for all programs.
const Ahead = 16_000

// readMost is how many ids the reader asks for at once.
const readMost = 1000

// Copy is the limit: one connection COPYs batches into a bare table, another one follows the tail by bounded ranges of ids.
type Copy struct {
	Batch int
	// Column is the type of the payload: json or bytea.
	Column string
	// Encode makes the producer encode and the reader decode each message. Without, both move bytes.
	Encode bool
	Set    *payload.Set
}

const table = "plain_log"

// Run does it for a window.
func (c *Copy) Run(ctx context.Context, m *rig.Meter, name string, w measure.Window) (values measure.Values, err error) {
	pool := m.Server.Admin
	drop := "drop table if exists " + table
	if _, err := pool.Exec(ctx, drop+"; create table "+table+" (id bigint primary key, payload "+c.Column+" not null)"); err != nil {
		return nil, err
	}
	defer func() {
		_, dropErr := pool.Exec(context.WithoutCancel(ctx), drop)
		err = errors.Join(err, dropErr)
	}()
	if err := m.Server.Calm(ctx); err != nil {
		return nil, err
	}
	work, stop := context.WithCancel(ctx)
	defer stop()
	t := tail{more: make(chan struct{}, 1), less: make(chan struct{}, 1)}
	errs := make(chan error, 2)
	var wg sync.WaitGroup
	for _, side := range []func(context.Context, string, *tail) error{c.produce, c.read} {
		wg.Go(func() {
			if err := side(work, m.Server.DSN(), &t); err != nil && work.Err() == nil {
				errs <- err
				stop()
			}
		})
	}
	values, err = m.Window(work, name, w, []string{"rate", "produced"},
		func() (float64, error) { return float64(t.read.Load()), nil }, func() (float64, error) { return float64(t.written.Load()), nil })
	stop()
	wg.Wait()
	select {
	case sideErr := <-errs:
		return values, sideErr
	default:
		return values, err
	}
}

// tail is how far the two sides are. They are one program, so they tell each other.
type tail struct {
	written, read atomic.Int64
	more, less    chan struct{}
}

func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// await returns when the other side has moved; at the latest after a millisecond.
func await(ctx context.Context, c chan struct{}) error {
	timer := time.NewTimer(time.Millisecond)
	defer timer.Stop()
	select {
	case <-c:
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

func (c *Copy) produce(ctx context.Context, dsn string, t *tail) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is asked of it any more
	columns := []string{"id", "payload"}
	for {
		for t.written.Load()-t.read.Load() > Ahead {
			if err := await(ctx, t.less); err != nil {
				return err
			}
		}
		src := &source{set: c.Set, encode: c.Encode, next: t.written.Load(), left: c.Batch}
		if _, err := conn.CopyFrom(ctx, pgx.Identifier{table}, columns, src); err != nil {
			return err
		}
		t.written.Add(int64(c.Batch))
		kick(t.more)
	}
}

// source yields the rows of one batch.
type source struct {
	set    *payload.Set
	encode bool
	next   int64 // the last id
	left   int
	row    [2]any
	err    error
}

func (s *source) Next() bool { return s.left > 0 && s.err == nil }

func (s *source) Values() ([]any, error) {
	i := int(s.next % int64(len(s.set.Orders)))
	s.next++
	s.left--
	s.row[0] = s.next
	if !s.encode {
		s.row[1] = s.set.Encoded[i]
		return s.row[:], nil
	}
	data, err := json.Marshal(s.set.Orders[i])
	s.row[1], s.err = data, err
	return s.row[:], err
}

func (s *source) Err() error { return s.err }

func (c *Copy) read(ctx context.Context, dsn string, t *tail) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is asked of it any more
	last := int64(0)
	for {
		rows, err := conn.Query(ctx, "select id, payload from "+table+" where id > $1 and id <= $2 order by id", last, last+readMost)
		if err != nil {
			return err
		}
		n := int64(0)
		var id int64
		for rows.Next() {
			// The bytes as they came: scanning would copy each payload once more.
			raw := rows.RawValues()
			id = int64(binary.BigEndian.Uint64(raw[0]))
			if c.Encode {
				var order payload.Order
				if err := json.Unmarshal(raw[1], &order); err != nil {
					rows.Close()
					return err
				}
			}
			n++
		}
		if err := rows.Err(); err != nil {
			return err
		}
		if n == 0 {
			if err := await(ctx, t.more); err != nil {
				return err
			}
			continue
		}
		if id != last+n {
			return fmt.Errorf("the reader has %d rows from %d on and stands at %d: ids are missing", n, last+1, id)
		}
		last = id
		t.read.Store(last)
		kick(t.less)
	}
}
