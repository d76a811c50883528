package manager

import (
	"context"
	"errors"
	"time"
)

// Compaction is the duty that removes what newer versions have replaced on compacted streams.
const Compaction = "compaction"

const (
	// compactStep is how many messages one step looks at: a transaction of some tens of milliseconds.
	compactStep = 2000
	// compactReserve is what a pass leaves of its time, so that its last step is not cut off.
	compactReserve = 5 * time.Second
)

// compact takes steps by turns, so that a stream with much to do does not keep the others waiting, until nothing is left or the time is over.
func compact(ctx context.Context, s Store) error {
	var failed []error
	for after := 0; ; {
		streams, err := s.StreamsCompacted(ctx, after)
		if err != nil || len(streams) == 0 {
			return errors.Join(append(failed, err)...)
		}
		after = streams[len(streams)-1]
		for len(streams) > 0 && !late(ctx) {
			rest := streams[:0]
			for _, stream := range streams {
				if late(ctx) {
					break
				}
				reply, err := s.Compact(ctx, stream, compactStep)
				if err != nil {
					failed = append(failed, err)
				} else if reply.More {
					rest = append(rest, stream)
				}
			}
			streams = rest
		}
		if late(ctx) {
			return errors.Join(failed...)
		}
	}
}

func late(ctx context.Context) bool {
	end, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && time.Until(end) < compactReserve
}
