// Package consume is the engine behind Consume: a machine that decides and a session that acts.
package consume

import (
	"context"

	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

// Store is what the engine needs of a database. Errors are *diag.Error: Retryable ones are tried again, those with OutcomeUnknown are settled by Held.
type Store interface {
	// Work records and hands out, in one transaction under the group's lock.
	Work(ctx context.Context, req *delivery.WorkRequest) (*delivery.WorkReply, error)
	// Read returns the messages with ids in (low, high], ascending. Removed ids are absent.
	Read(ctx context.Context, stream int, low, high int64) ([]delivery.Message, error)
	// ReadIDs returns the messages of deliveries of a group by id, ascending. Removed ids without a copy are absent.
	ReadIDs(ctx context.Context, stream, group int, ids []int64) ([]delivery.Message, error)
	// Held returns what the group still holds open under these tokens.
	Held(ctx context.Context, group int, tokens []delivery.Token) (*delivery.Held, error)
	// Beat says that the instance lives; Leave that it has stopped.
	Beat(ctx context.Context, group int, instance uuid.UUID) error
	Leave(ctx context.Context, group int, instance uuid.UUID) error
}

// Waker tells a session when looking is worth while. The wake hub implements it.
type Waker interface {
	// C receives a value when there is a reason to look; it holds at most one.
	C() <-chan struct{}
	// Looked reports how a look went, so that polling can adapt.
	Looked(found bool)
}
