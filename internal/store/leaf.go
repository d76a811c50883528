package store

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

// leaf is a partition of a stream's log: it holds the ids [low, high), and its name ends in low.
type leaf struct{ low, high int64 }

// leafCache remembers the leaves that were last asked for. A leaf's ids never change, so that only a leaf that is gone can make it wrong, and that is noticed.
type leafCache struct {
	mu     sync.Mutex
	stream map[int][]leaf // the latest first
}

// rememberedLeaves bounds what is kept of one stream: readers work near the head, or each somewhere in the past.
const rememberedLeaves = 8

func (c *leafCache) find(stream int, id int64) (leaf, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.stream[stream] {
		if l.low <= id && id < l.high {
			return l, true
		}
	}
	return leaf{}, false
}

func (c *leafCache) keep(stream int, l leaf) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stream == nil {
		c.stream = map[int][]leaf{}
	}
	kept := c.stream[stream]
	if slices.Contains(kept, l) {
		return // another reader was as quick
	}
	c.stream[stream] = append([]leaf{l}, kept[:min(len(kept), rememberedLeaves-1)]...)
}

func (c *leafCache) forget(stream int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.stream, stream)
}

// leafOf returns the leaf that holds an id; false: none does (any more).
func (s *Store) leafOf(ctx context.Context, stream int, id int64) (leaf, bool, error) {
	if l, ok := s.leaves.find(stream, id); ok {
		return l, true, nil
	}
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	var l leaf
	err := s.control.QueryRow(ctx, s.text["leaf"], stream, id).Scan(&l.low, &l.high)
	if errors.Is(err, pgx.ErrNoRows) {
		return leaf{}, false, nil
	}
	if err != nil {
		return leaf{}, false, ClassifyNoEffect("read", "stream "+strconv.Itoa(stream), err)
	}
	s.leaves.keep(stream, l)
	return l, true, nil
}

// inLeaf reads from the leaf that holds id; the zero leaf says that there is none. A remembered leaf that was dropped since is looked for once more.
func (s *Store) inLeaf(ctx context.Context, stream int, id int64, read func(leaf) ([]delivery.Message, error)) ([]delivery.Message, leaf, error) {
	for again := false; ; again = true {
		at, found, err := s.leafOf(ctx, stream, id)
		if err != nil || !found {
			return nil, leaf{}, err
		}
		messages, err := read(at)
		if !undefinedTable(err) || again {
			return messages, at, err
		}
		s.leaves.forget(stream)
	}
}

func undefinedTable(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "42P01"
}
