package produce

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/store"
)

func expecting(key string, version int64) []store.Outgoing {
	return []store.Outgoing{{Payload: []byte(key), Key: key, ExpectedVersion: version}}
}

// keys is an Appender that refuses what expects another version than its key has.
type keys struct {
	Appender
	mu     sync.Mutex
	newest map[string]int64
	head   int64
	sizes  []int
	waits  []time.Duration
	lose   bool // the confirmation of the next one
}

func (k *keys) ForgetBatches(context.Context, uuid.UUID, int64, int64) error { return nil }

func (k *keys) Append(_ context.Context, req *store.AppendRequest) (store.AppendReply, error) {
	time.Sleep(time.Millisecond)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.sizes, k.waits = append(k.sizes, len(req.Messages)), append(k.waits, req.Wait)
	if k.lose {
		k.lose = false
		return store.AppendReply{}, &diag.Error{Code: diag.Unreachable, Retryable: true, OutcomeUnknown: true}
	}
	var conflicts store.Conflicts
	for i, m := range req.Messages {
		if m.ExpectedVersion != 0 && max(m.ExpectedVersion, 0) != k.newest[m.Key] {
			conflicts = append(conflicts, &store.VersionConflict{Message: i, Expected: m.ExpectedVersion, Actual: k.newest[m.Key]})
		}
	}
	if len(conflicts) > 0 {
		return store.AppendReply{}, &diag.Error{Code: diag.VersionConflict, Err: conflicts}
	}
	first := k.head + 1
	for _, m := range req.Messages {
		k.head++
		k.newest[m.Key] = k.head
	}
	return store.AppendReply{First: first}, nil
}

// Callers that expect share batches, but not two of one key; a conflict fails its own caller, with its place in the caller's batch, and nobody else.
func TestAConflictFailsItsCallerAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &keys{newest: map[string]int64{"a": 7}, head: 7}
		b := New(k, nil)
		produce := func(messages []store.Outgoing) (Stored, error) {
			return b.Produce(t.Context(), 1, store.KindJSON, "stream \"s\"", messages)
		}
		var callers sync.WaitGroup
		callers.Go(func() { _, _ = produce(expecting("first", store.NoVersion)) }) // the others gather meanwhile
		synctest.Wait()
		for i := range 20 {
			callers.Go(func() {
				if stored, err := produce(expecting(fmt.Sprint(i), store.NoVersion)); err != nil || stored.First == 0 {
					t.Errorf("%d: %+v, %v", i, stored, err)
				}
			})
		}
		callers.Go(func() {
			batch := append([]store.Outgoing{{Key: "p"}, {Key: "q"}}, expecting("a", 3)...)
			_, err := produce(batch)
			conflict, ok := errors.AsType[*store.VersionConflict](err)
			if !ok || *conflict != (store.VersionConflict{Message: 2, Expected: 3, Actual: 7}) || !errors.Is(err, diag.ErrVersionConflict) {
				t.Errorf("%v", err)
			}
		})
		won := 0
		for range 5 {
			callers.Go(func() {
				if _, err := produce(expecting("same", store.NoVersion)); err == nil {
					won++
				} else if conflict, ok := errors.AsType[*store.VersionConflict](err); !ok || conflict.Actual == 0 {
					t.Errorf("%v", err)
				}
			})
		}
		callers.Wait()
		if won != 1 || k.newest["p"] != 0 {
			t.Errorf("%d of five won; %v", won, k.newest)
		}
		if slices.Max(k.sizes) < 20 {
			t.Errorf("callers did not share batches: %v", k.sizes)
		}
		if slices.Max(k.waits) != expectWait || slices.Min(k.waits) != expectWait {
			t.Errorf("waits %v", k.waits)
		}
		// What expects nothing does not travel with them, and does not wait for the lock.
		if _, err := produce([]store.Outgoing{{Key: "a"}}); err != nil || k.waits[len(k.waits)-1] != 0 {
			t.Errorf("%v, waited %v", err, k.waits)
		}
		b.Close(t.Context())
	})
}

// After a lost confirmation a conflict is an answer: the first sending has not taken effect, and will not.
func TestAConflictAfterALostConfirmationIsDefinite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &keys{newest: map[string]int64{"a": 7}, head: 7, lose: true}
		b := New(k, nil)
		_, err := b.Produce(t.Context(), 1, store.KindJSON, "s", expecting("a", 3))
		if !errors.Is(err, diag.ErrVersionConflict) || diag.Unknown(err) || len(k.sizes) != 2 {
			t.Errorf("%v after %d sendings", err, len(k.sizes))
		}
		b.Close(t.Context())
	})
}

func TestLargeBatchesThatExpectAreRefused(t *testing.T) {
	b := New(&keys{newest: map[string]int64{}}, nil)
	_, err := b.Produce(t.Context(), 1, store.KindJSON, "s", append(make([]store.Outgoing, directMessages), expecting("a", 1)...))
	if !errors.Is(err, diag.ErrTooLarge) {
		t.Error(err)
	}
	b.Close(t.Context())
}
