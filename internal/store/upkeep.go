package store

import (
	"context"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// TakeDuty takes or renews the lease on a duty; false: somebody else holds it.
func (s *Store) TakeDuty(ctx context.Context, name string, holder uuid.UUID, lease time.Duration) (bool, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	var left float64
	err := s.control.QueryRow(ctx, s.text["take_duty"], name, holder, lease.Milliseconds()).Scan(&left)
	if err == pgx.ErrNoRows {
		return false, nil
	}
	return err == nil, ClassifyNoEffect("take duty", strconv.Quote(name), err)
}

// FreeDuties gives duties up.
func (s *Store) FreeDuties(ctx context.Context, names []string, holder uuid.UUID) error {
	return s.exec(ctx, "free_duty", "free", "duties", names, holder)
}

// StreamsShortOfLeaves returns at most 100 streams, with ids above after, that have fewer than two leaves ahead.
func (s *Store) StreamsShortOfLeaves(ctx context.Context, after int) ([]int, error) {
	return s.ints(ctx, "streams_short_of_leaves", "streams short of partitions", after)
}

// StreamsWithInbox returns streams that have rows in the inbox.
func (s *Store) StreamsWithInbox(ctx context.Context) ([]int, error) {
	return s.ints(ctx, "streams_with_inbox", "streams with an inbox")
}

// StreamsDeleting returns streams whose deletion was interrupted.
func (s *Store) StreamsDeleting(ctx context.Context) ([]int, error) {
	return s.ints(ctx, "streams_deleting", "streams being deleted")
}

// InboxParts returns the parts of the inbox that are not current.
func (s *Store) InboxParts(ctx context.Context) ([]int, error) {
	return s.ints(ctx, "inbox_parts", "parts of the inbox")
}

// OrphanInbox removes what was produced to a stream that is gone.
func (s *Store) OrphanInbox(ctx context.Context, stream int) error {
	return s.exec(ctx, "orphan_inbox", "clear inbox of", "stream "+strconv.Itoa(stream), stream)
}

// RotateInbox makes another part of the inbox current once the current one exceeds size bytes.
func (s *Store) RotateInbox(ctx context.Context, size int64) (outcome string, err error) {
	return s.outcome(ctx, "rotate_inbox", size)
}

// EmptyInboxPart empties a part that has been retired for age and holds nothing.
func (s *Store) EmptyInboxPart(ctx context.Context, part int, age time.Duration) (outcome string, err error) {
	return s.outcome(ctx, "empty_inbox_part", part, age)
}

func (s *Store) outcome(ctx context.Context, name string, args ...any) (outcome string, err error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	err = s.control.QueryRow(ctx, s.text[name], args...).Scan(&outcome)
	return outcome, ClassifyNoEffect("keep up", "inbox", err)
}

// The names of the statements that Trim runs.
const (
	TrimCursor    = "trim_cursor"
	TrimBatches   = "trim_batches"
	TrimAttempts  = "trim_attempts"
	TrimInstances = "trim_instances"
	TrimKeys      = "trim_keys"
	TrimOnce      = "trim_once"
)

// Trim removes what has outlived its use, at most limit rows; it returns how many.
func (s *Store) Trim(ctx context.Context, what string, limit int) (int, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	args := []any{limit}
	if what == TrimInstances {
		args = nil
	}
	if what == TrimKeys {
		// It removes rows of two tables and counts those of one.
		var n int
		err := s.control.QueryRow(ctx, s.text[what], limit).Scan(&n)
		return n, ClassifyNoEffect("keep up", what, err)
	}
	tag, err := s.control.Exec(ctx, s.text[what], args...)
	return int(tag.RowsAffected()), ClassifyNoEffect("keep up", what, err)
}

func (s *Store) exec(ctx context.Context, name, op, object string, args ...any) error {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	_, err := s.control.Exec(ctx, s.text[name], args...)
	return ClassifyNoEffect(op, object, err)
}

func (s *Store) ints(ctx context.Context, name, object string, args ...any) ([]int, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	rows, err := s.control.Query(ctx, s.text[name], args...)
	if err != nil {
		return nil, ClassifyNoEffect("look for", object, err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[int])
	return all, ClassifyNoEffect("look for", object, err)
}
