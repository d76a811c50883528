package store

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// Delivered names a message under the token with which it was handed out.
type Delivered struct {
	Group    int
	Message  int64
	Token    uuid.UUID
	Delivery bool // the token is that of a delivery, else of a range
}

// FinishTx checks that the token still owns the message, leaves the mark, and commits: one flush, so that no client can fall asleep in between. The transaction is open on conn. After an error that is
// not OutcomeUnknown nothing was committed.
func (s *Store) FinishTx(ctx context.Context, conn *pgx.Conn, d Delivered) error {
	// Integers, a uuid and a boolean are all that gets into the text: the simple protocol takes several statements at once, through any pooler.
	sql := strings.NewReplacer("$1", strconv.Itoa(d.Group), "$2", strconv.FormatInt(d.Message, 10), "$3", "'"+d.Token.String()+"'", "$4", strconv.FormatBool(d.Delivery)).Replace(s.text["finish_tx"]) + "; commit"
	_, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	return Classify("commit", "message "+strconv.FormatInt(d.Message, 10), err)
}

// Serialization reports whether the server gave a transaction up because of others, so that the same again may succeed.
func Serialization(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "40001" || pg.Code == "40P01")
}

// Once marks a key of a group in the caller's transaction; false: it was marked before.
func (s *Store) Once(ctx context.Context, tx pgx.Tx, stream, group, key string) (bool, error) {
	object := "group " + strconv.Quote(group) + " of stream " + strconv.Quote(stream)
	tag, err := tx.Exec(ctx, s.text["once"], stream, group, key)
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "23502" {
		return false, &diag.Error{Code: diag.GroupNotFound, Op: "mark in", Object: object}
	}
	return tag.RowsAffected() == 1, ClassifyNoEffect("mark in", object, err)
}

// spareAfter is how long a produce waits for the caller's pool before it takes the spare connection.
const spareAfter = 50 * time.Millisecond

// SpareProduce lets producing go on, over one connection of pool, when handlers that produce hold every connection of the caller's pool. It applies while at least one session holds it: release gives it back.
func (s *Store) SpareProduce(pool *pgxpool.Pool) (release func()) {
	s.spare.Store(pool)
	s.holders.Add(1)
	return func() { s.holders.Add(-1) }
}

// acquireProduce gets a connection for producing.
func (s *Store) acquireProduce(ctx context.Context) (*pgxpool.Conn, error) {
	spare := s.spare.Load()
	if spare == nil || s.holders.Load() == 0 {
		return s.produce.Acquire(ctx)
	}
	short, cancel := context.WithTimeout(ctx, spareAfter)
	conn, err := s.produce.Acquire(short)
	cancel()
	if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
		return conn, err
	}
	return spare.Acquire(ctx)
}
