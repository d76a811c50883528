package store

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// KeyIndexGap is a leaf of a keyed stream that is not known to have its index by key.
type KeyIndexGap struct {
	Stream  int
	Low     int64 // of the leaf
	valid   *bool // of what the catalog holds under its name; nil: nothing
	working bool  // somebody builds it at this moment
}

// KeyIndexGaps returns leaves whose index by key is missing, at most 100, the newest of a stream first. Stream 0 means all streams.
func (s *Store) KeyIndexGaps(ctx context.Context, stream int) ([]KeyIndexGap, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	var which *int
	if stream > 0 {
		which = &stream
	}
	rows, err := s.control.Query(ctx, s.text["key_index_gaps"], which)
	if err != nil {
		return nil, ClassifyNoEffect("look for", "missing indexes", err)
	}
	gaps, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (g KeyIndexGap, err error) {
		return g, row.Scan(&g.Stream, &g.Low, &g.valid, &g.working)
	})
	return gaps, ClassifyNoEffect("look for", "missing indexes", err)
}

// BuildKeyIndex builds the index by key of one leaf, concurrently, for as long as ctx lasts, on a connection of its own: claims and records must not wait for one that is building. What an interrupted build left is
// dropped first. Nothing happens if somebody else is at it, or if the leaf is gone.
func (s *Store) BuildKeyIndex(ctx context.Context, gap KeyIndexGap) error {
	if gap.working {
		return nil
	}
	op, object := "build the index by key of", "stream "+strconv.Itoa(gap.Stream)
	if gap.valid == nil || !*gap.valid {
		if err := s.buildKeyIndex(ctx, gap); err != nil {
			return ClassifyNoEffect(op, object, err)
		}
	}
	return s.exec(ctx, "keep_key_index", op, object, gap.Stream, gap.Low)
}

func (s *Store) buildKeyIndex(ctx context.Context, gap KeyIndexGap) error {
	pooled, err := s.control.Acquire(ctx)
	if err != nil {
		return err
	}
	conn := pooled.Hijack() // the pool may open another in its place
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = conn.Close(closing) // it is of no more use, whatever becomes of it
	}()
	run := func(name string) error {
		// The simple protocol: there are as many texts as leaves, and none is sent twice.
		_, err := conn.PgConn().Exec(ctx, forLeaf(s.text[name], gap.Stream, gap.Low)).ReadAll()
		return err
	}
	if gap.valid != nil {
		if err := run("drop_key_index"); err != nil {
			return err
		}
	}
	err = run("build_key_index")
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && (pg.Code == "42P01" || pg.Code == "42P07") {
		return nil // the leaf was dropped meanwhile, or somebody else has built, or builds, the index
	}
	return err
}
