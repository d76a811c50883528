package sqlstreams

import (
	"context"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// deliveryTx is the transaction that ConsumeTx lends to a handler. The handler cannot end it, and cannot use it once it has returned: the connection serves others then.
type deliveryTx struct {
	tx      pgx.Tx
	streams map[int]struct{} // that were produced to
	ended   atomic.Bool
}

func (t *deliveryTx) producedTo(stream int) { t.streams[stream] = struct{}{} }

func (t *deliveryTx) open() error {
	if t.ended.Load() {
		return pgx.ErrTxClosed
	}
	return nil
}

func (t *deliveryTx) notYours(op string) error {
	return &diag.Error{Code: diag.InvalidTransaction, Op: op, Object: "transaction of a delivery", Detail: "it is committed when the handler returns nil, and rolled back when it returns an error"}
}

func (t *deliveryTx) Commit(context.Context) error   { return t.notYours("commit") }
func (t *deliveryTx) Rollback(context.Context) error { return t.notYours("roll back") }

func (t *deliveryTx) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := t.open(); err != nil {
		return nil, err
	}
	return t.tx.Begin(ctx)
}

func (t *deliveryTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource) (int64, error) {
	if err := t.open(); err != nil {
		return 0, err
	}
	return t.tx.CopyFrom(ctx, table, columns, source)
}

func (t *deliveryTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := t.open(); err != nil {
		return endedBatch{err: err}
	}
	return t.tx.SendBatch(ctx, b)
}

func (t *deliveryTx) LargeObjects() pgx.LargeObjects { return t.tx.LargeObjects() }

func (t *deliveryTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := t.open(); err != nil {
		return nil, err
	}
	return t.tx.Prepare(ctx, name, sql)
}

func (t *deliveryTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := t.open(); err != nil {
		return pgconn.CommandTag{}, err
	}
	return t.tx.Exec(ctx, sql, args...)
}

func (t *deliveryTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.open(); err != nil {
		return nil, err
	}
	return t.tx.Query(ctx, sql, args...)
}

func (t *deliveryTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.open(); err != nil {
		return endedRow{err}
	}
	return t.tx.QueryRow(ctx, sql, args...)
}

// Conn returns the connection, for what pgx offers nowhere else. Ending the transaction through it makes the commit fail.
func (t *deliveryTx) Conn() *pgx.Conn { return t.tx.Conn() }

type endedRow struct{ err error }

func (r endedRow) Scan(...any) error { return r.err }

type endedBatch struct {
	pgx.BatchResults // nil: every method that its users call is below
	err              error
}

func (b endedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, b.err }
func (b endedBatch) Query() (pgx.Rows, error)         { return nil, b.err }
func (b endedBatch) QueryRow() pgx.Row                { return endedRow{b.err} }
func (b endedBatch) Close() error                     { return b.err }

func validText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }
