package product

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/bench/internal/measure"
	"github.com/sqlstreams/sqlstreams/bench/internal/payload"
	"github.com/sqlstreams/sqlstreams/bench/internal/plain"
	"github.com/sqlstreams/sqlstreams/bench/internal/rig"
)

// Addition is what ProduceTx adds to a transaction that the caller has anyway, beside what a plain insert of the same bytes adds. One caller runs the three
// kinds of transaction in turn, so that all meet the same disk; the messages are consumed meanwhile.
type Addition struct {
	Size int
}

const (
	businessTable = "plain_business"
	outboxTable   = "plain_outbox"
)

// Run does it for a window. Values: the medians of whole transactions (base, with_plain, with_produce), what each adds (added_plain, added_produce), and of the
// statement alone (plain_statement, produce_statement), in microseconds.
func (c *Addition) Run(ctx context.Context, m *rig.Meter, w measure.Window) (values measure.Values, err error) {
	admin := m.Server.Admin
	drop := "drop table if exists " + businessTable + ", " + outboxTable
	if _, err := admin.Exec(ctx, drop+"; create table "+businessTable+" (id bigint generated always as identity primary key, what text not null); create table "+
		outboxTable+" (id bigint generated always as identity primary key, payload json not null)"); err != nil {
		return nil, err
	}
	defer func() {
		_, dropErr := admin.Exec(context.WithoutCancel(ctx), drop)
		err = errors.Join(err, dropErr)
	}()
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
	consumer, err := stream.RegisterConsumer(ctx, "group-1", nil)
	if err != nil {
		return nil, err
	}
	if err := m.Server.Calm(ctx); err != nil {
		return nil, err
	}
	consuming, stop := context.WithCancel(ctx)
	var g errgroup.Group
	g.Go(func() error {
		return consumer.Consume(consuming, func(context.Context, *payload.Order) error { return nil }, nil)
	})
	defer func() {
		stop()
		err = errors.Join(err, g.Wait())
	}()
	order, err := payload.New(1, c.Size)
	if err != nil {
		return nil, err
	}
	conn, err := a.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	producer := stream.Producer(nil)
	kinds := []func(context.Context, pgx.Tx) error{
		func(context.Context, pgx.Tx) error { return nil },
		func(ctx context.Context, tx pgx.Tx) error { return plain.InsertRow(ctx, tx.Conn(), outboxTable, order) },
		func(ctx context.Context, tx pgx.Tx) error {
			_, err := producer.ProduceTx(ctx, tx, order, nil)
			return err
		},
	}
	whole, statement := make([][]float64, len(kinds)), make([][]float64, len(kinds))
	for began := time.Now(); time.Since(began) < w.Warm+w.Length; {
		for _, k := range rand.Perm(len(kinds)) {
			txBegan := time.Now()
			var inner time.Duration
			if err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, "insert into "+businessTable+" (what) values ('something happened')"); err != nil {
					return err
				}
				innerBegan := time.Now()
				err := kinds[k](ctx, tx)
				inner = time.Since(innerBegan)
				return err
			}); err != nil {
				return nil, err
			}
			took := time.Since(txBegan)
			if time.Since(began) < w.Warm {
				continue
			}
			whole[k] = append(whole[k], float64(took.Nanoseconds())/1e3)
			statement[k] = append(statement[k], float64(inner.Nanoseconds())/1e3)
		}
	}
	base, withPlain, withProduce := measure.Median(whole[0]), measure.Median(whole[1]), measure.Median(whole[2])
	if len(whole[0]) == 0 {
		return nil, errors.New("no transaction ended within the window")
	}
	return measure.Values{
		"transactions": float64(len(whole[0])), "base": base, "with_plain": withPlain, "with_produce": withProduce,
		"added_plain": withPlain - base, "added_produce": withProduce - base,
		"plain_statement": measure.Median(statement[1]), "produce_statement": measure.Median(statement[2]),
	}, nil
}
