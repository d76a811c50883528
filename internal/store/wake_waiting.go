package store

import (
	"context"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// WaitingGroup is a group with deliveries that wait for their keys.
type WaitingGroup struct {
	Group, Stream int
}

// GroupsWaiting returns groups with deliveries that wait for their keys, at most 1,000.
func (s *Store) GroupsWaiting(ctx context.Context) ([]WaitingGroup, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	rows, err := s.control.Query(ctx, s.text["groups_waiting"])
	if err != nil {
		return nil, ClassifyNoEffect("look for", "waiting deliveries", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[WaitingGroup])
	return all, ClassifyNoEffect("look for", "waiting deliveries", err)
}

// WakeWaiting makes due what waits for a key that nobody holds and of which nobody knows that it is free. It looks at no more than limit keys, from a hash on (nil: the lowest), and returns where to go on (nil: it is
// through) and how many deliveries were woken.
func (s *Store) WakeWaiting(ctx context.Context, group, limit int, from *int64) (next *int64, woken int, err error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	err = s.control.QueryRow(ctx, s.text["wake_waiting"], group, limit, from).Scan(&next, &woken)
	return next, woken, ClassifyNoEffect("wake deliveries of", "group "+strconv.Itoa(group), err)
}
