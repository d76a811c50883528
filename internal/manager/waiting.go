package manager

import (
	"context"
	"errors"
	"math/rand/v2"
)

// What a pass looks at: keys in one transaction, and transactions for one group.
const (
	wakeKeys  = 1000
	wakePages = 50
)

// wakeWaiting finds deliveries that wait for a key that nobody holds any longer. Whoever lets go of a key wakes its next delivery, but for an instance that dies between the commit of a handler's transaction and its next call.
func wakeWaiting(ctx context.Context, s Store, announce Announcer) error {
	groups, err := s.GroupsWaiting(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for _, g := range groups {
		total := 0
		// From anywhere, and once around, so that no key is left out for ever where there are more than a pass looks at.
		start := int64(rand.Uint64())
		from, around := &start, false
		for range wakePages {
			next, woken, err := s.WakeWaiting(ctx, g.Group, wakeKeys, from)
			if err != nil {
				failed = append(failed, err)
				break
			}
			total += woken
			if around && (next == nil || *next > start) {
				break
			}
			around = around || next == nil
			from = next
		}
		if total > 0 {
			announce(g.Stream)
		}
	}
	return errors.Join(failed...)
}
