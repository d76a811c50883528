package sqlstreams

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/store"
)

// ProducerOptions belong to a producer. It has none yet.
type ProducerOptions struct{}

// Producer appends to a stream. It is cheap, holds no state and is safe for concurrent use.
type Producer[T any] struct {
	core    *stream
	version int
}

// Outgoing is one message of a batch.
type Outgoing[T any] struct {
	Payload *T              // nil: a tombstone, on a compacted stream
	Options *ProduceOptions // nil: none
}

// Produced says what became of a message.
type Produced struct {
	// ID is the message's id; 0 while it waits in the inbox for its id, which is so for everything that is produced in a caller's transaction, and now and then
	// for a message produced while another producer held the stream.
	ID int64
	// Duplicate says that a message with the same idempotency key was there before, and this one was not stored. ID is then the original's, once it has one.
	Duplicate bool
}

// Producer returns a producer of the stream. Options may be nil.
func (s *Stream[T]) Producer(*ProducerOptions) *Producer[T] {
	return &Producer[T]{core: s.core, version: versionOf[T]()}
}

// Produce appends one message (on a compacted stream a nil payload is a tombstone: the key is gone) and returns when it is committed, with the durability that the server is set to. Concurrent calls on one client share
// transactions. If ctx ends, or the connection is lost for longer than can be waited for, while the message is on its way, the error is ErrOutcomeUnknown: the message may have
// been stored. Otherwise an error means that it was not.
//
// Errors: ErrInvalidMessage, ErrTooLarge, ErrInvalidOption, ErrStreamNotFound, ErrVersionConflict, ErrNotKeyed and ErrKeyIndexBuilding (all three with an ExpectedVersion), ErrClosed, ErrUnreachable and other conditions of the connection, ErrOutcomeUnknown.
func (p *Producer[T]) Produce(ctx context.Context, payload *T, opts *ProduceOptions) (Produced, error) {
	out, err := p.encode(payload, opts)
	if err != nil {
		return Produced{}, err
	}
	if err := p.core.checkExpected([]store.Outgoing{out}); err != nil {
		return Produced{}, err
	}
	if out.IdempotencyKey != "" {
		produced, err := p.produceKeyed(ctx, []store.Outgoing{out})
		if err != nil {
			return Produced{}, err
		}
		return produced[0], nil
	}
	stored, err := p.core.client.batcher.Produce(ctx, p.core.id, p.core.kind, p.core.object, []store.Outgoing{out})
	return Produced{ID: stored.First}, err
}

func (p *Producer[T]) produceKeyed(ctx context.Context, outs []store.Outgoing) ([]Produced, error) {
	results, err := p.core.client.batcher.ProduceKeyed(ctx, p.core.id, p.core.kind, p.core.object, p.core.limits.idempotencyWindow(), outs)
	return keyedResults(results), err
}

func keyedResults(results []store.KeyedResult) []Produced {
	if results == nil {
		return nil
	}
	produced := make([]Produced, len(results))
	for i, r := range results {
		produced[i] = Produced{ID: r.Original, Duplicate: r.Duplicate}
	}
	return produced
}

// ProduceBatch appends messages in their order, all or none of them, with ids that follow each other. Otherwise it is Produce. An empty batch is no error. A batch beyond 10,000 messages or
// 16 MiB, or with an idempotency key in it, gets its ids a little later (ID 0); messages whose idempotency key is known are left out, and the rest is stored.
func (p *Producer[T]) ProduceBatch(ctx context.Context, batch []Outgoing[T]) ([]Produced, error) {
	if len(batch) == 0 {
		return nil, nil
	}
	outs, err := p.encodeAll(batch)
	if err != nil {
		return nil, err
	}
	if err := p.core.checkExpected(outs); err != nil {
		return nil, err
	}
	if store.Keyed(outs) {
		return p.produceKeyed(ctx, outs)
	}
	stored, err := p.core.client.batcher.Produce(ctx, p.core.id, p.core.kind, p.core.object, outs)
	if err != nil {
		return nil, err
	}
	produced := make([]Produced, len(batch))
	if stored.First > 0 {
		for i := range produced {
			produced[i].ID = stored.First + int64(i)
		}
	}
	return produced, nil
}

// ProduceTx appends one message in the caller's transaction: it exists if and when that commits, and gets its id soon after. It takes no lock and waits for nobody. It
// announces the message at once; listeners look again for a second, so a transaction that stays open longer is found by polling. (InTx announces after the commit.)
// Values that cannot be stored are refused before anything is sent, so they do not abort the transaction; an error of the server does, as any SQL error.
func (p *Producer[T]) ProduceTx(ctx context.Context, tx pgx.Tx, payload *T, opts *ProduceOptions) (Produced, error) {
	out, err := p.encode(payload, opts)
	if err != nil {
		return Produced{}, err
	}
	produced, err := p.putTx(ctx, tx, []store.Outgoing{out})
	if err != nil {
		return Produced{}, err
	}
	return produced[0], nil
}

// ProduceBatchTx is ProduceTx for several messages, which keep their order.
func (p *Producer[T]) ProduceBatchTx(ctx context.Context, tx pgx.Tx, batch []Outgoing[T]) ([]Produced, error) {
	if len(batch) == 0 {
		return nil, nil
	}
	outs, err := p.encodeAll(batch)
	if err != nil {
		return nil, err
	}
	return p.putTx(ctx, tx, outs)
}

func (p *Producer[T]) putTx(ctx context.Context, tx pgx.Tx, outs []store.Outgoing) ([]Produced, error) {
	if tx == nil {
		return nil, invalid(diag.InvalidTransaction, "produce to", p.core.object, "the transaction is nil")
	}
	if err := p.core.expectNothing(outs); err != nil {
		return nil, err
	}
	produced := make([]Produced, len(outs))
	if store.Keyed(outs) {
		results, err := p.core.client.store.PutKeyedTx(ctx, tx, p.keyedRequest(outs))
		if err != nil {
			return nil, renamed(err, p.core.object)
		}
		produced = keyedResults(results)
	} else if err := p.core.client.store.PutTx(ctx, tx, p.core.id, p.core.kind, outs); err != nil {
		return nil, renamed(err, p.core.object)
	}
	if a, ok := tx.(announcer); ok {
		a.producedTo(p.core.id)
	} else {
		p.core.client.announce(p.core.id, false)
	}
	return produced, nil
}

func (p *Producer[T]) keyedRequest(outs []store.Outgoing) *store.KeyedRequest {
	return &store.KeyedRequest{Stream: p.core.id, Kind: p.core.kind, Batch: uuid.New(), Window: p.core.limits.idempotencyWindow(), Messages: outs}
}

// ProduceSQLTx is ProduceTx for a transaction of database/sql, with pgx's driver or any other Postgres driver that takes $1.
func (p *Producer[T]) ProduceSQLTx(ctx context.Context, tx *sql.Tx, payload *T, opts *ProduceOptions) (Produced, error) {
	out, err := p.encode(payload, opts)
	if err != nil {
		return Produced{}, err
	}
	if tx == nil {
		return Produced{}, invalid(diag.InvalidTransaction, "produce to", p.core.object, "the transaction is nil")
	}
	outs := []store.Outgoing{out}
	if err := p.core.expectNothing(outs); err != nil {
		return Produced{}, err
	}
	var produced Produced
	if store.Keyed(outs) {
		results, err := p.core.client.store.PutKeyedSQLTx(ctx, tx, p.keyedRequest(outs))
		if err != nil {
			return Produced{}, renamed(err, p.core.object)
		}
		produced = keyedResults(results)[0]
	} else if err := p.core.client.store.PutSQLTx(ctx, tx, p.core.id, p.core.kind, outs); err != nil {
		return Produced{}, renamed(err, p.core.object)
	}
	p.core.client.announce(p.core.id, false)
	return produced, nil
}

func (p *Producer[T]) encode(payload *T, opts *ProduceOptions) (store.Outgoing, error) {
	if payload == nil {
		return p.core.encodeTombstone(p.version, opts)
	}
	return p.core.encode(payload, p.version, opts)
}

func (p *Producer[T]) encodeAll(batch []Outgoing[T]) ([]store.Outgoing, error) {
	outs := make([]store.Outgoing, len(batch))
	for i, o := range batch {
		out, err := p.encode(o.Payload, o.Options)
		if err != nil {
			if e, ok := err.(*diag.Error); ok {
				c := *e
				c.Detail = fmt.Sprintf("message %d of the batch: %s", i, e.Detail)
				return nil, &c
			}
			return nil, err
		}
		outs[i] = out
	}
	return outs, nil
}
