// Package micro measures single statements of the store, to decide what the library should do when.
package micro

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams/bench/internal/measure"
	"github.com/sqlstreams/sqlstreams/bench/internal/payload"
	"github.com/sqlstreams/sqlstreams/bench/internal/rig"
	"github.com/sqlstreams/sqlstreams/internal/schema"
	"github.com/sqlstreams/sqlstreams/internal/store"
)

// streamName is the stream of all measurements; each has it for itself.
const streamName = "bench-micro"

// openStore opens the installation's store on one pool of so many connections.
func openStore(ctx context.Context, dsn string, conns int) (*store.Store, func(), error) {
	names, err := schema.NewNames("sqlstreams")
	if err != nil {
		return nil, nil, err
	}
	pool, err := rig.Pool(ctx, dsn, conns)
	if err != nil {
		return nil, nil, err
	}
	return store.New(names, pool, pool, 0, slog.New(slog.DiscardHandler)), pool.Close, nil
}

// register makes the stream, and returns how to delete it.
func register(ctx context.Context, s *store.Store) (int, func() error, error) {
	row, err := s.RegisterStream(ctx, streamName, store.KindJSON, []byte(`{"v":1}`), false, 0)
	if err != nil {
		return 0, nil, err
	}
	return row.ID, func() error {
		var err error
		for range 5 {
			// A leaf that autovacuum is reading is waited for two seconds only.
			if err = s.DropStream(context.WithoutCancel(ctx), row.ID, "bench"); err == nil {
				return nil
			}
		}
		return err
	}, nil
}

// outgoing returns n messages of a set, encoded already: what is measured here is the statement.
func outgoing(set *payload.Set, n int) []store.Outgoing {
	all := make([]store.Outgoing, n)
	for i := range all {
		all[i] = store.Outgoing{Payload: set.Encoded[i%len(set.Encoded)], Version: 1}
	}
	return all
}

// Append is one connection that appends batches of one size, one CALL each. Nobody reads.
type Append struct {
	Batch int
	Set   *payload.Set
}

// Run does it for a window. Values: rate, and call_us, the time of one call.
func (c *Append) Run(ctx context.Context, m *rig.Meter, name string, w measure.Window) (values measure.Values, err error) {
	s, closePool, err := openStore(ctx, m.Server.DSN(), 1)
	if err != nil {
		return nil, err
	}
	defer closePool()
	stream, drop, err := register(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, drop()) }()
	batch := outgoing(c.Set, c.Batch)
	request := &store.AppendRequest{Stream: stream, Kind: store.KindJSON, Producer: uuid.New(), Wait: 100 * time.Millisecond, Messages: batch}
	return repeat(ctx, m, name, w, c.Batch, func(ctx context.Context) error {
		request.Batch++
		_, err := s.Append(ctx, request)
		return err
	})
}

// Copy is the same with COPY into a bare table.
type Copy struct {
	Batch int
	Set   *payload.Set
}

// Run does it for a window, with the values of Append.
func (c *Copy) Run(ctx context.Context, m *rig.Meter, name string, w measure.Window) (values measure.Values, err error) {
	const table = "plain_micro"
	drop := "drop table if exists " + table
	if _, err := m.Server.Admin.Exec(ctx, drop+"; create table "+table+" (id bigint primary key, payload json not null)"); err != nil {
		return nil, err
	}
	defer func() {
		_, dropErr := m.Server.Admin.Exec(context.WithoutCancel(ctx), drop)
		err = errors.Join(err, dropErr)
	}()
	conn, err := pgx.Connect(ctx, m.Server.DSN())
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is asked of it any more
	id := int64(0)
	return repeat(ctx, m, name, w, c.Batch, func(ctx context.Context) error {
		_, err := conn.CopyFrom(ctx, pgx.Identifier{table}, []string{"id", "payload"}, pgx.CopyFromSlice(c.Batch, func(i int) ([]any, error) {
			id++
			return []any{id, c.Set.Encoded[i%len(c.Set.Encoded)]}, nil
		}))
		return err
	})
}

// repeat calls one after the other and measures the window.
func repeat(ctx context.Context, m *rig.Meter, name string, w measure.Window, batch int, call func(context.Context) error) (measure.Values, error) {
	if err := m.Server.Calm(ctx); err != nil {
		return nil, err
	}
	c := &counter{}
	work, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		for {
			if err := call(work); err != nil {
				if work.Err() != nil {
					err = nil
				}
				done <- err
				return
			}
			c.n.Add(int64(batch))
		}
	}()
	values, err := m.Window(ctx, name, w, []string{"rate"}, c.read)
	stop()
	if err = errors.Join(err, <-done); err == nil {
		values["call_us"] = 1e6 * float64(batch) / values["rate"]
	}
	return values, err
}

// AppendTable lays the samples of Append and Copy side by side.
func AppendTable(samples []measure.Sample, batches []int) ([]string, [][]string) {
	value := func(program, name string) float64 {
		var all []float64
		for _, s := range samples {
			if v, ok := s.Values[name]; ok && s.Program == program && s.Error == "" {
				all = append(all, v)
			}
		}
		return measure.Median(all)
	}
	var lines [][]string
	for _, b := range batches {
		a, c := AppendName(b), CopyName(b)
		lines = append(lines, []string{fmt.Sprint(b), measure.Number(value(a, "rate")), measure.Number(value(c, "rate")), measure.Number(value(a, "rate") / value(c, "rate")),
			measure.Number(value(a, "call_us")), measure.Number(value(c, "call_us")), measure.Number(value(a, "server_us")), measure.Number(value(c, "server_us"))})
	}
	return []string{"batch", "append/s", "COPY/s", "ratio", "µs a CALL", "µs a COPY", "server µs/message", "with COPY"}, lines
}

// AppendName names the program of one size.
func AppendName(batch int) string { return fmt.Sprintf("append-%d", batch) }

// CopyName names the program of one size.
func CopyName(batch int) string { return fmt.Sprintf("copy-%d", batch) }

// unmarshal reads a role's configuration.
func unmarshal[T any](text json.RawMessage) (T, error) {
	var v T
	err := json.Unmarshal(text, &v)
	return v, err
}
