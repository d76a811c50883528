package sqlstreams

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/store"
)

// ConsumeTx is Consume with a transaction for each message: what f writes through tx is committed together with the fact that the message is done, or not at all. So its effects in this database happen once for each
// message that succeeds, through crashes, takeovers and lost confirmations. The transaction is READ COMMITTED on a connection of the caller's pool, which f holds while it runs; it is
// committed when f returns nil and rolled back when f returns an error. f neither commits nor ends it, and uses it from one goroutine at a time.
//
// If the message was taken over meanwhile, the commit is refused (SQL0100) and nothing remains. If f outlives its timeout and grace, the connection is closed and with it the transaction. That the server gave the transaction up
// because of others (a serialization failure, a deadlock at the commit), that no connection was to be had, or that it was lost, is no failed attempt: the message runs again soon. Effects outside the database are
// at least once, as ever.
//
// Producing through tx joins it; a plain Produce in f does not, and finds a connection of the client's own if handlers hold all of the pool's.
func (c *Consumer[T]) ConsumeTx(ctx context.Context, f func(ctx context.Context, tx pgx.Tx, payload *T) error, opts *ConsumeOptions) error {
	if f == nil {
		return invalid(diag.InvalidOption, "consume", c.core.object, "the handler is nil")
	}
	client := c.core.stream.client
	decode := decoder[T](c.core.stream)
	defer client.store.SpareProduce(client.spare)()
	return c.core.consume(ctx, opts, 0, func(ctx context.Context, m *delivery.Message, a consume.Attempt) error {
		payload, err := decode(m)
		if err != nil {
			return err
		}
		return client.inDelivery(ctx, a, func(tx pgx.Tx) error { return f(ctx, tx, payload) })
	})
}

// again lets a message run again soon without counting a failure: it was not its fault.
func again() error { return consume.Delay(againAfter/2 + rand.N(againAfter)) }

const againAfter = 200 * time.Millisecond

// inDelivery runs f in a transaction that commits together with the mark of the message.
func (c *Client) inDelivery(ctx context.Context, a consume.Attempt, f func(tx pgx.Tx) error) error {
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return again()
	}
	defer conn.Release() // one that is not idle is closed
	inner, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return again()
	}
	network := conn.Conn().PgConn().Conn()
	// Once the attempt is written off nothing of it may be committed. The goroutine may still be using the transaction, so only the network is taken away.
	timer := time.AfterFunc(time.Until(a.Abandoned), func() { _ = network.Close() })
	defer timer.Stop()
	tx := &deliveryTx{tx: inner, streams: map[int]struct{}{}}
	committed := false
	defer func() {
		tx.ended.Store(true)
		if committed {
			return
		}
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = inner.Rollback(cleanup) // what cannot be rolled back goes with its connection
	}()
	if err := f(tx); err != nil {
		return err
	}
	tx.ended.Store(true)
	// A return within the grace counts, so the handler's own context, which has ended then, does not bound the commit.
	commit, cancel := context.WithDeadline(context.WithoutCancel(ctx), a.Abandoned)
	defer cancel()
	err = c.store.FinishTx(commit, conn.Conn(), store.Delivered{Group: a.GroupID, Message: a.ID, Token: a.Token, Delivery: a.Delivery})
	switch {
	case err == nil:
		committed = true
		for stream := range tx.streams {
			c.announce(stream, false)
		}
		return consume.ErrRecorded
	case store.Serialization(err), diag.Unknown(err), diag.CodeOf(err) == diag.Unreachable, errors.Is(err, context.DeadlineExceeded):
		// If it was committed all the same, the mark says so to whoever records this.
		return again()
	}
	return err
}

// Once says whether key is marked for the first time in the group, and marks it, in the caller's transaction: effects that a transaction has only if Once says true happen once for the key. A transaction that has marked the
// key and is still open is awaited; if it rolls back, the key is free again. Marks are kept for seven days. It is for code that keeps its own transaction; ConsumeTx needs none.
//
// Errors: ErrGroupNotFound, ErrInvalidOption (an empty key, or one beyond 512 bytes), ErrInvalidTransaction, conditions of the connection.
func Once(ctx context.Context, tx pgx.Tx, group *GroupHandle, key string) (first bool, err error) {
	switch {
	case tx == nil:
		return false, invalid(diag.InvalidTransaction, "mark in", group.object, "the transaction is nil")
	case key == "" || len(key) > maxIdempotencyKey || !validText(key):
		return false, invalid(diag.InvalidOption, "mark in", group.object, "the key has 1 to "+strconv.Itoa(maxIdempotencyKey)+" bytes of UTF-8 without NUL")
	}
	return group.client.store.Once(ctx, tx, group.stream, group.group, key)
}
