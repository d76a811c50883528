package manager

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/store"
)

// compacted is a Store in which streams need so many steps, each of which takes a while.
type compacted struct {
	Store
	left  map[int]int
	steps []int
	takes time.Duration
}

func (c *compacted) StreamsCompacted(_ context.Context, after int) ([]int, error) {
	if after >= 3 {
		return nil, nil
	}
	return []int{1, 2, 3}, nil
}

func (c *compacted) Compact(_ context.Context, stream, _ int) (store.CompactReply, error) {
	time.Sleep(c.takes)
	c.steps = append(c.steps, stream)
	if c.left[stream] < 0 {
		return store.CompactReply{}, errors.New("busy")
	}
	c.left[stream]--
	return store.CompactReply{More: c.left[stream] > 0}, nil
}

// Streams take turns, one that fails keeps nobody from theirs, and a pass ends before its time does.
func TestStreamsAreCompactedByTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &compacted{left: map[int]int{1: 3, 2: -1, 3: 2}, takes: time.Second}
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		if err := compact(ctx, c); err == nil || err.Error() != "busy" {
			t.Errorf("%v", err)
		}
		if !slices.Equal(c.steps, []int{1, 2, 3, 1, 3, 1}) {
			t.Errorf("steps %v", c.steps)
		}
		c = &compacted{left: map[int]int{1: 1000, 2: 1, 3: 1}, takes: time.Second}
		ctx, cancel = context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		if err := compact(ctx, c); err != nil || ctx.Err() != nil || len(c.steps) < 5 {
			t.Errorf("%v after %d steps", err, len(c.steps))
		}
	})
}
