package sqlstreams

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/store"
)

// VersionConflict is the cause of ErrVersionConflict: which message of the call (from 0) expected what of its key, and the id that the key's newest message has (NoVersion: the key has none).
//
//	if conflict, ok := errors.AsType[*sqlstreams.VersionConflict](err); ok { … conflict.Actual … }
type VersionConflict = store.VersionConflict

// checkExpected refuses expectations that a batch cannot have.
func (s *stream) checkExpected(outs []store.Outgoing) error {
	if !store.Expecting(outs) {
		return nil
	}
	const op = "produce to"
	if store.Keyed(outs) {
		return invalid(diag.InvalidOption, op, s.object, "ExpectedVersion does not go with an IdempotencyKey: such a message gets its id after the call")
	}
	seen := map[string]bool{}
	for i := range outs {
		if key := outs[i].Key; key != "" {
			if seen[key] && outs[i].ExpectedVersion != 0 {
				return invalid(diag.InvalidOption, op, s.object, fmt.Sprintf("message %d of the batch: ExpectedVersion is given, and an earlier message of the batch, which it follows, has the same key", i))
			}
			seen[key] = true
		}
	}
	return nil
}

// expectNothing refuses expectations in a caller's transaction.
func (s *stream) expectNothing(outs []store.Outgoing) error {
	if store.Expecting(outs) {
		return invalid(diag.InvalidOption, "produce to", s.object, "ExpectedVersion does not go with a transaction of the caller's: the message gets its id after the commit, and until then others can come before it")
	}
	return nil
}

// UpdateOptions belong to one update of a key. Nil: none set.
type UpdateOptions struct {
	// MaxAttempts is how often the key is read and written before the call gives up with ErrVersionConflict. Default 30, at most 1,000.
	MaxAttempts int
	// Produce are options of the message: headers, routing key, how it is run. Its Key, ExpectedVersion and IdempotencyKey stay unset.
	Produce *ProduceOptions
}

// Update reads the newest version of the key, lets f make the next one of it, and appends that if no other version has come meanwhile; if one has, it begins anew after a short pause. So no update is lost, and f can run
// several times: it has no effects of its own. current is nil where the key has no message, is deleted, or was erased. On a compacted stream f can return nil, which deletes the key (and does nothing if it has none). An error of f ends the call, which returns it as it is; nothing is stored then.
//
// Errors: those of f, of Key.Get and of Producer.Produce; ErrVersionConflict after MaxAttempts.
func (k *Key[T]) Update(ctx context.Context, f func(current *T) (*T, error), opts *UpdateOptions) (Produced, error) {
	var o UpdateOptions
	if opts != nil {
		o = *opts
	}
	if f == nil {
		return Produced{}, invalid(diag.InvalidOption, updateKey, k.core.object, "the function is nil")
	}
	if err := checkBounds(updateKey, k.core.object, bounded{name: "MaxAttempts", value: int64(o.MaxAttempts), low: 1, high: 1000}); err != nil {
		return Produced{}, err
	}
	var message ProduceOptions
	if o.Produce != nil {
		message = *o.Produce
	}
	if message.Key != "" || message.ExpectedVersion != 0 || message.IdempotencyKey != "" {
		return Produced{}, invalid(diag.InvalidOption, updateKey, k.core.object, "Produce has a Key, an ExpectedVersion or an IdempotencyKey")
	}
	message.Key = k.key
	for attempt := 1; ; attempt++ {
		current, err := k.Get(ctx)
		if err != nil {
			return Produced{}, err
		}
		next, err := f(current.Payload)
		if err != nil {
			return Produced{}, err
		}
		if next == nil && current.Payload == nil && !current.Redacted {
			return Produced{}, nil // it is gone already
		}
		message.ExpectedVersion = current.ID
		produced, err := (&Producer[T]{core: k.core, version: k.version}).Produce(ctx, next, &message)
		if err == nil || !errors.Is(err, ErrVersionConflict) || attempt >= or(o.MaxAttempts, 30) {
			return produced, err
		}
		if !pause(ctx, rand.N(min(time.Millisecond<<min(attempt, 7), 100*time.Millisecond))) {
			return Produced{}, err
		}
	}
}

const updateKey = "update a key of"

// pause reports false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
