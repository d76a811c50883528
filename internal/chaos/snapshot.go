package chaos

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams/internal/ledger"
)

// Snapshot reads what the tables hold of a stream and its groups, in one transaction. The business id of a message is the text of the field businessField of its
// JSON payload. The schema is quoted as SQL wants it.
func Snapshot(ctx context.Context, pool *pgxpool.Pool, schema, stream, businessField string) (*ledger.Snapshot, error) {
	var snap *ledger.Snapshot
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) (err error) {
		r := reader{ctx: ctx, tx: tx, schema: schema}
		snap, err = r.snapshot(stream, businessField)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("snapshot of stream %s: %w", stream, err)
	}
	return snap, nil
}

type reader struct {
	ctx    context.Context
	tx     pgx.Tx
	schema string
}

func (r reader) snapshot(stream, field string) (*ledger.Snapshot, error) {
	s := ledger.StreamRows{Name: stream}
	var id int
	if err := r.tx.QueryRow(r.ctx, "select id, first_id from "+r.schema+".stream where name = $1 and state = 'active'", stream).Scan(&id, &s.FirstID); err != nil {
		return nil, err
	}
	var err error
	if s.Messages, err = collect[ledger.MessageRow](r, func(row pgx.Rows, m *ledger.MessageRow) error { return row.Scan(&m.ID, &m.Business, &m.Key, &m.Order) },
		fmt.Sprintf("select id, coalesce(payload->>$1, ''), coalesce(message_key, ''), coalesce(options->>'key_order', '') from %s.log_%d order by id", r.schema, id), field); err != nil {
		return nil, err
	}
	if s.Inbox, err = collect[ledger.MessageRow](r, func(row pgx.Rows, m *ledger.MessageRow) error { return row.Scan(&m.Business, &m.Key, &m.Order) },
		"select coalesce(payload->>$1, ''), coalesce(message_key, ''), coalesce(options->>'key_order', '') from "+r.schema+".inbox where stream_id = $2 order by seq", field, id); err != nil {
		return nil, err
	}
	type named struct {
		id   int
		name string
	}
	groups, err := collect[named](r, func(row pgx.Rows, g *named) error { return row.Scan(&g.id, &g.name) },
		"select id, name from "+r.schema+".consumer_group where stream_id = $1 order by name", id)
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		rows, err := r.group(g.id, g.name)
		if err != nil {
			return nil, err
		}
		s.Groups = append(s.Groups, rows)
	}
	return &ledger.Snapshot{Streams: []ledger.StreamRows{s}}, nil
}

func (r reader) group(id int, name string) (g ledger.GroupRows, err error) {
	g.Name = name
	if err := r.tx.QueryRow(r.ctx, "select coalesce((select claimed from "+r.schema+".cursor where group_id = $1 order by seq desc limit 1), 0), coalesce(g.config->>'key_order', '') from "+r.schema+".consumer_group g where g.id = $1",
		id).Scan(&g.Claimed, &g.KeyOrder); err != nil {
		return g, err
	}
	if g.Claims, err = collect[ledger.Span](r, func(row pgx.Rows, s *ledger.Span) error { return row.Scan(&s.Low, &s.High) },
		"select low, high from "+r.schema+".claim where group_id = $1 order by low", id); err != nil {
		return g, err
	}
	if g.Done, err = collect[int64](r, func(row pgx.Rows, id *int64) error { return row.Scan(id) },
		"select message_id from "+r.schema+".done where group_id = $1 order by message_id", id); err != nil {
		return g, err
	}
	if g.Deliveries, err = collect[int64](r, func(row pgx.Rows, id *int64) error { return row.Scan(id) },
		"select message_id from "+r.schema+".delivery where group_id = $1 order by message_id", id); err != nil {
		return g, err
	}
	if g.Dead, err = collect[ledger.DeadRow](r, func(row pgx.Rows, d *ledger.DeadRow) error { return row.Scan(&d.ID, &d.Reason, &d.Attempts, &d.DiedAt) },
		"select message_id, reason, attempts, died_at from "+r.schema+".dead_letter where group_id = $1 order by message_id", id); err != nil {
		return g, err
	}
	g.Attempts, err = collect[ledger.AttemptRow](r, func(row pgx.Rows, a *ledger.AttemptRow) error { return row.Scan(&a.ID, &a.Attempt) },
		"select message_id, attempt from "+r.schema+".attempt where group_id = $1 order by id", id)
	return g, err
}

func collect[T any](r reader, scan func(pgx.Rows, *T) error, sql string, args ...any) ([]T, error) {
	rows, err := r.tx.Query(r.ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []T
	for rows.Next() {
		var v T
		if err := scan(rows, &v); err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}

// waits is how much of a run's stream is not through.
type waits struct {
	inbox, backlog, claims, deliveries int64
}

func (w waits) none() bool { return w == waits{} }

func (w waits) String() string {
	return fmt.Sprintf("%d in the inbox, %d not handed out, %d open ranges, %d deliveries", w.inbox, w.backlog, w.claims, w.deliveries)
}

// progress looks at the tables themselves: what the product says of itself is judged, not trusted.
func progress(ctx context.Context, pool *pgxpool.Pool, stream string) (w waits, err error) {
	var id int
	if err := pool.QueryRow(ctx, `select id from sqlstreams.stream where name = $1 and state = 'active'`, stream).Scan(&id); err != nil {
		return w, err
	}
	err = pool.QueryRow(ctx, fmt.Sprintf(`
		select (select count(*) from sqlstreams.inbox i where i.stream_id = $1),
		       coalesce(sum(greatest((select coalesce(max(l.id), 0) from sqlstreams.log_%d l) - (select c.claimed from sqlstreams.cursor c where c.group_id = g.id order by c.seq desc limit 1), 0)), 0)::bigint,
		       coalesce(sum((select count(*) from sqlstreams.claim c where c.group_id = g.id)), 0)::bigint,
		       coalesce(sum((select count(*) from sqlstreams.delivery d where d.group_id = g.id)), 0)::bigint
		  from sqlstreams.consumer_group g where g.stream_id = $1`, id), id).Scan(&w.inbox, &w.backlog, &w.claims, &w.deliveries)
	return w, err
}
