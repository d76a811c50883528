package store

import (
	"context"
	"strconv"
)

// StreamsCompacted returns at most 100 streams, with ids above after, that are declared compacted.
func (s *Store) StreamsCompacted(ctx context.Context, after int) ([]int, error) {
	return s.ints(ctx, "streams_compacted", "compacted streams", after)
}

// CompactReply says what one step did.
type CompactReply struct {
	Removed int64
	More    bool // there is more to do now
}

// Compact takes one step of compacting a stream: it looks at about limit messages.
func (s *Store) Compact(ctx context.Context, stream, limit int) (CompactReply, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	var reply CompactReply
	err := s.control.QueryRow(ctx, s.text["compact"], stream, limit).Scan(&reply.Removed, &reply.More)
	return reply, ClassifyNoEffect("compact", "stream "+strconv.Itoa(stream), err)
}
