package manager

import (
	"context"
	"errors"
)

// KeyIndexes is the duty that builds indexes by key, on streams that were declared keyed when they held messages already.
const KeyIndexes = "key-indexes"

// buildKeyIndexes builds one index after the other. One build can wait long, for transactions that are older, and nobody waits for it.
func buildKeyIndexes(ctx context.Context, s Store) error {
	gaps, err := s.KeyIndexGaps(ctx, 0)
	if err != nil {
		return err
	}
	var failed []error
	for _, gap := range gaps {
		if ctx.Err() != nil {
			break
		}
		if err := s.BuildKeyIndex(ctx, gap); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}
