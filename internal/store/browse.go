package store

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// StreamStatus is a stream for a person who looks at it.
type StreamStatus struct {
	Head        int64
	HeadAt      *time.Time
	Partitions  int
	Bytes       int64
	Inbox       int64 // counted to 10,000
	InboxOldest *time.Time
	Groups      int
}

// StreamStatus reads how a stream stands.
func (s *Store) StreamStatus(ctx context.Context, stream int) (*StreamStatus, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	object := "stream " + strconv.Itoa(stream)
	var st StreamStatus
	err := s.control.QueryRow(ctx, s.text["stream_status"], stream).Scan(&st.Head, &st.HeadAt, &st.Partitions, &st.Bytes, &st.Inbox, &st.InboxOldest, &st.Groups)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, &diag.Error{Code: diag.StreamNotFound, Op: "look at", Object: object}
	}
	if err != nil {
		return nil, ClassifyNoEffect("look at", object, err)
	}
	return &st, nil
}

// pageBytes bounds what one page holds, but for its first message.
const pageBytes = 8 << 20

// Page returns messages with ids above after, ascending: at most limit, and about 8 MiB. Leaves that hold nothing above after are passed. Empty: there is nothing.
func (s *Store) Page(ctx context.Context, stream int, after int64, limit int) ([]delivery.Message, error) {
	for from := after + 1; ; {
		at, found, err := s.leafFrom(ctx, stream, from)
		if err != nil || !found {
			return nil, err
		}
		from = max(from, at.low)
		last, err := s.bound(ctx, stream, at, from, limit)
		if err != nil {
			return nil, err
		}
		if last == 0 {
			from = at.high
			continue
		}
		return s.Read(ctx, stream, from-1, last)
	}
}

// leafFrom returns the lowest leaf in use that ends above id.
func (s *Store) leafFrom(ctx context.Context, stream int, id int64) (leaf, bool, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	var l leaf
	err := s.control.QueryRow(ctx, s.text["leaf_from"], stream, id).Scan(&l.low, &l.high)
	if errors.Is(err, pgx.ErrNoRows) {
		return leaf{}, false, nil
	}
	if err != nil {
		return leaf{}, false, ClassifyNoEffect("read", "stream "+strconv.Itoa(stream), err)
	}
	return l, true, nil
}

// bound returns the last id of a page in a leaf; 0: the leaf holds nothing from that id on, or was dropped since.
func (s *Store) bound(ctx context.Context, stream int, at leaf, from int64, limit int) (int64, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	var last *int64
	// Not kept as a prepared statement: there are as many texts as leaves.
	err := s.control.QueryRow(ctx, forLeaf(s.text["read_bound"], stream, at.low), pgx.QueryExecModeExec, from, int64(limit), int64(pageBytes)).Scan(&last)
	if undefinedTable(err) {
		return 0, nil
	}
	if err != nil || last == nil {
		return 0, ClassifyNoEffect("read", "stream "+strconv.Itoa(stream), err)
	}
	return *last, nil
}
