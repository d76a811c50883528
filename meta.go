package sqlstreams

import (
	"context"
	"encoding/json"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/consume"
)

// Meta is what a handler can know of its message beside the payload.
type Meta struct {
	Stream, Group string
	ID            int64 // in its stream; see P5 in the README on what an id is good for
	Key           string
	RoutingKey    string
	Headers       map[string]string
	SchemaVersion int
	// Attempt is the number of recorded failures + 1. An attempt whose result was not recorded (a crash, a lost lease) is not counted.
	Attempt int
	// Redelivered: the message's range, or its delivery, was claimed before, so it may have run already. (Not surely: an instance gives back what it cannot start in time.)
	Redelivered bool
	// OutOfOrder: the message is of an ordered key, had become a dead letter and was redriven after its successors had gone on.
	OutOfOrder  bool
	ProducedAt  time.Time // by the database's clock, when it was handed over
	AppendedAt  time.Time // when it got its id
	ScheduledAt time.Time // when it was meant to come, if it was scheduled; else zero
	// LeaseDeadline is when the lease ends, in the worst case, by this process's clock.
	LeaseDeadline time.Time
}

// MetaFromContext returns what is known of the message whose handler got ctx; false elsewhere.
func MetaFromContext(ctx context.Context) (Meta, bool) {
	m, a, ok := consume.FromContext(ctx)
	if !ok {
		return Meta{}, false
	}
	meta := Meta{
		Stream: a.Stream, Group: a.Group, ID: m.ID, Key: m.Key, RoutingKey: m.RoutingKey, SchemaVersion: m.SchemaVersion, Attempt: a.Attempt, Redelivered: a.Redelivered, OutOfOrder: a.OutOfOrder,
		ProducedAt: m.ProducedAt, AppendedAt: m.AppendedAt, ScheduledAt: m.ScheduledAt, LeaseDeadline: a.LeaseDeadline,
	}
	if m.Headers != nil {
		// What is stored was encoded from such a map; anything else that SQL may have put there is left out.
		_ = json.Unmarshal(m.Headers, &meta.Headers)
	}
	return meta, true
}
