package produce

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/store"
)

// ProduceKeyed stores messages of which some carry idempotency keys, all or nothing but for duplicates, and returns once they are committed. They wait in the inbox for their ids. Each call is a transaction
// of its own: two that want the same key must not end up waiting for each other in one.
func (b *Batcher) ProduceKeyed(ctx context.Context, stream int, kind, object string, window time.Duration, messages []store.Outgoing) ([]store.KeyedResult, error) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil, &diag.Error{Code: diag.Closed, Op: "produce to", Object: object}
	}
	b.wg.Add(1)
	b.mu.Unlock()
	defer b.wg.Done()
	// The client's end is the call's end, too.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(b.ctx, cancel)()
	req := &store.KeyedRequest{Stream: stream, Kind: kind, Batch: uuid.New(), Window: window, Messages: messages}
	var results []store.KeyedResult
	err := b.until(ctx, func(ctx context.Context) (err error) {
		results, err = b.appender.ProduceKeyed(ctx, req)
		return err
	})
	if err != nil {
		return nil, named(err, object)
	}
	if b.stored != nil {
		b.stored(stream, false)
	}
	return results, nil
}
