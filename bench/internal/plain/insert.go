package plain

import (
	"context"
	"encoding/json"
	"errors"

	"golang.org/x/sync/errgroup"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams/bench/internal/measure"
	"github.com/sqlstreams/sqlstreams/bench/internal/payload"
	"github.com/sqlstreams/sqlstreams/bench/internal/rig"
	"github.com/sqlstreams/sqlstreams/bench/internal/worker"
)

// Insert is the rate of plain single-row inserts, each committed by itself. Nobody reads them.
type Insert struct {
	// Processes, each with one connection; 0: one process with so many Conns.
	Processes, Conns int
	// InTx makes it BEGIN, INSERT, COMMIT, as a program does that has more to say in the transaction; else one statement in autocommit.
	InTx bool
	Size int
}

const insertTable = "plain_insert"

// InsertRole is the role of a process that inserts.
const InsertRole = "plain-insert"

// InsertConfig is what such a process is told.
type InsertConfig struct {
	DSN  string
	Size int
}

// Run does it for a window.
func (c *Insert) Run(ctx context.Context, m *rig.Meter, name string, w measure.Window) (values measure.Values, err error) {
	admin := m.Server.Admin
	drop := "drop table if exists " + insertTable
	if _, err := admin.Exec(ctx, drop+"; create table "+insertTable+" (id bigint generated always as identity primary key, payload json not null)"); err != nil {
		return nil, err
	}
	defer func() {
		_, dropErr := admin.Exec(context.WithoutCancel(ctx), drop)
		err = errors.Join(err, dropErr)
	}()
	if err := m.Server.Calm(ctx); err != nil {
		return nil, err
	}
	if c.Processes > 0 {
		group, err := worker.StartGroup(ctx, c.Processes, InsertRole, InsertConfig{DSN: m.Server.DSN(), Size: c.Size})
		if err != nil {
			return nil, err
		}
		measured := *m
		measured.Clients = group.PIDs
		values, err := measured.Window(ctx, name, w, []string{"rate"}, group.Count)
		return values, errors.Join(err, group.Stop())
	}
	pool, err := m.Server.Pool(ctx, c.Conns)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	control := &worker.Control{}
	work, stop := context.WithCancel(ctx)
	var g errgroup.Group
	for range c.Conns {
		g.Go(func() error { return insertLoop(work, pool, c.Size, c.InTx, control) })
	}
	values, err = m.Window(ctx, name, w, []string{"rate"}, func() (float64, error) { return float64(control.Count.Load()), nil })
	stop()
	return values, errors.Join(err, g.Wait())
}

// RunInsert is the role InsertRole.
func RunInsert(ctx context.Context, c *worker.Control) (any, error) {
	var config InsertConfig
	if err := json.Unmarshal(c.Config, &config); err != nil {
		return nil, err
	}
	pool, err := rig.Pool(ctx, config.DSN, 1)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	c.Ready()
	return nil, insertLoop(ctx, pool, config.Size, false, c)
}

// insertLoop inserts one row after the other until ctx ends. It keeps one connection, as taking one from the pool for each row would be a cost of its own.
func insertLoop(ctx context.Context, pool *pgxpool.Pool, size int, inTx bool, c *worker.Control) error {
	order, err := payload.New(1, size)
	if err != nil {
		return err
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	for ctx.Err() == nil {
		if err := insertOne(ctx, conn.Conn(), order, inTx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		c.Count.Add(1)
	}
	return nil
}

func insertOne(ctx context.Context, conn *pgx.Conn, order *payload.Order, inTx bool) error {
	if !inTx {
		return InsertRow(ctx, conn, insertTable, order)
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return InsertRow(ctx, tx.Conn(), insertTable, order) })
}

// InsertRow encodes one order and inserts it.
func InsertRow(ctx context.Context, conn *pgx.Conn, table string, order *payload.Order) error {
	data, err := json.Marshal(order)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "insert into "+table+" (payload) values ($1)", data)
	return err
}
