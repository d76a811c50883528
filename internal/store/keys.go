package store

import (
	"context"
	"strconv"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// lookLeaves is how many leaves one statement looks for a key in: each costs a few locks, and the snapshot stays short.
const lookLeaves = 16

// keyPage is one look for a key's messages.
type keyPage struct {
	ids  []int64 // descending
	next *int64  // where to go on; nil: that was all
}

// KeyVersions returns the messages of a key with ids below below, the newest first: at most limit, and about 8 MiB of payload, but one message at least if there is any. The stream is a keyed one.
func (s *Store) KeyVersions(ctx context.Context, stream int, key string, below int64, limit int) ([]delivery.Message, error) {
	var all []delivery.Message
	bytes := int64(pageBytes)
	for limit > 0 && bytes > 0 {
		page, err := s.keyIDs(ctx, stream, key, below, limit, bytes)
		if err != nil {
			return nil, err
		}
		found, err := s.readLog(ctx, stream, ascending(page.ids))
		if err != nil {
			return nil, err
		}
		// What was removed between the two statements has a newer version, and the newest is among the rest, or comes with another look from above it.
		if len(found) == 0 && len(page.ids) > 0 && len(all) == 0 {
			continue
		}
		for i := len(found) - 1; i >= 0; i-- {
			all = append(all, found[i])
			bytes -= int64(len(found[i].Payload) + len(found[i].Headers))
		}
		limit -= len(page.ids)
		if page.next == nil {
			break
		}
		below = *page.next
	}
	return all, nil
}

func ascending(ids []int64) []int64 {
	up := make([]int64, len(ids))
	for i, id := range ids {
		up[len(ids)-1-i] = id
	}
	return up
}

func (s *Store) keyIDs(ctx context.Context, stream int, key string, below int64, limit int, bytes int64) (keyPage, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	const op = "read a key of"
	object := "stream " + strconv.Itoa(stream)
	var outcome string
	var page keyPage
	if err := s.control.QueryRow(ctx, s.text["key_ids"], stream, key, below, limit, bytes, lookLeaves).Scan(&outcome, &page.ids, &page.next); err != nil {
		return keyPage{}, ClassifyNoEffect(op, object, err)
	}
	return page, keyedOutcome(op, object, outcome)
}

// keyedOutcome turns what a procedure says of a stream that is to be keyed into its error.
func keyedOutcome(op, object, outcome string) error {
	switch outcome {
	case "ok":
		return nil
	case "gone":
		return &diag.Error{Code: diag.StreamNotFound, Op: op, Object: object}
	case "unkeyed":
		return &diag.Error{Code: diag.NotKeyed, Op: op, Object: object}
	case "building":
		return &diag.Error{Code: diag.KeyIndexBuilding, Op: op, Object: object, Retryable: true}
	}
	return &diag.Error{Code: diag.DatabaseError, Op: op, Object: object, Detail: "unexpected outcome " + strconv.Quote(outcome)}
}
