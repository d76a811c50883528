package store

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams/internal/schema"
)

// DefaultTimeout bounds every statement that has no narrower bound.
const DefaultTimeout = 30 * time.Second

// Querier is what statements run on: a pool, a connection, a transaction.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Store holds the connections of one client and the statements of one installation.
type Store struct {
	names   *schema.Names
	control *pgxpool.Pool // the client's own: claims, records, upkeep
	produce *pgxpool.Pool // the caller's
	timeout time.Duration
	logger  *slog.Logger
	text    map[string]string
	leaves  leafCache
	spare   atomic.Pointer[pgxpool.Pool]
	holders atomic.Int64 // sessions that may hold connections of produce while they produce
}

// New returns a store over two pools, neither of which it closes. A timeout of 0 means DefaultTimeout.
func New(names *schema.Names, control, produce *pgxpool.Pool, timeout time.Duration, logger *slog.Logger) *Store {
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	text := make(map[string]string, len(Statements()))
	for name, sql := range Statements() {
		text[name] = names.Expand(sql)
	}
	return &Store{names: names, control: control, produce: produce, timeout: timeout, logger: logger, text: text}
}

// Names returns the installation's identifiers.
func (s *Store) Names() *schema.Names { return s.names }

// Control returns the client's own pool.
func (s *Store) Control() *pgxpool.Pool { return s.control }

func (s *Store) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.timeout)
}

// hint is the snapshot of the last complete look into a stream's inbox on one connection, and when a look without a hint last happened.
type hint struct {
	snapshot string
	full     time.Time
}

// fullLookEvery bounds for how long a drain may rely on a hint: whatever could make it wrong is repaired within this time.
const fullLookEvery = time.Second

const hintsKey = "sqlstreams.hints"

// hintFor returns what this connection knows of the stream's inbox; nil asks for a full look. The hints live with the connection: a new one knows nothing.
func hintFor(conn *pgx.Conn, schemaName string, stream int, now time.Time) *string {
	hints, _ := conn.PgConn().CustomData()[hintsKey+schemaName].(map[int]hint)
	h, ok := hints[stream]
	if !ok || h.snapshot == "" || now.Sub(h.full) >= fullLookEvery {
		return nil
	}
	return &h.snapshot
}

// keepHint notes the outcome of a look: snapshot is nil if it was not complete.
func keepHint(conn *pgx.Conn, schemaName string, stream int, used, snapshot *string, now time.Time) {
	data := conn.PgConn().CustomData()
	hints, _ := data[hintsKey+schemaName].(map[int]hint)
	if hints == nil {
		hints = map[int]hint{}
		data[hintsKey+schemaName] = hints
	}
	if snapshot == nil {
		delete(hints, stream)
		return
	}
	h := hint{snapshot: *snapshot, full: now}
	if used != nil {
		h.full = hints[stream].full
	}
	hints[stream] = h
}
