// Package product does through SQLStreams what package plain does without.
package product

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/bench/internal/rig"
)

// streamName is the stream of all cases: each has it for itself and deletes it.
const streamName = "bench"

// quiet lets through what should not happen in a measurement.
func quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// access is a client with its pool.
type access struct {
	pool   *pgxpool.Pool
	client *sqlstreams.Client
}

func open(ctx context.Context, dsn string, conns int, config sqlstreams.ClientConfig) (*access, error) {
	pool, err := rig.Pool(ctx, dsn, conns)
	if err != nil {
		return nil, err
	}
	if config.Logger == nil {
		config.Logger = quiet()
	}
	client, err := sqlstreams.NewClient(ctx, pool, &config)
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &access{pool: pool, client: client}, nil
}

func (a *access) close(ctx context.Context) {
	a.client.Close(context.WithoutCancel(ctx))
	a.pool.Close()
}

// Prepare creates the schema, so that no case pays for it.
func Prepare(ctx context.Context, dsn string) error {
	a, err := open(ctx, dsn, 1, sqlstreams.ClientConfig{})
	if err != nil {
		return err
	}
	a.close(ctx)
	return nil
}

// forget deletes the stream of a case that has ended, and what ended cases left in the control tables, so that the next case finds what the first one found.
func forget(ctx context.Context, s *rig.Server, a *access) error {
	ctx = context.WithoutCancel(ctx)
	var err error
	for range 5 {
		// A leaf that autovacuum is reading is waited for two seconds only.
		if err = a.client.DeleteStream(ctx, streamName); err == nil || errors.Is(err, sqlstreams.ErrStreamNotFound) {
			err = nil
			break
		}
	}
	if err != nil {
		return err
	}
	_, err = s.Admin.Exec(ctx, `truncate `+sqlstreams.DefaultSchema+`.producer_batch, `+sqlstreams.DefaultSchema+`.attempt`)
	return err
}

// stages remembers how far one group has come.
type stage struct {
	name string
	done atomic.Int64
}

func newStages(n int) []*stage {
	all := make([]*stage, n)
	for i := range all {
		all[i] = &stage{name: fmt.Sprintf("group-%d", i+1)}
	}
	return all
}
