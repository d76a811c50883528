package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// WaitingKey is a key for which messages of a group wait, and what they wait for.
type WaitingKey struct {
	Key       string
	First     int64    // the lowest message that waits
	Waiting   int64    // how many do, counted to 10,000
	State     string   // of what they wait for: running, pending (a delivery), parked (a dead letter), claimed (a range), "" (nothing holds the key)
	ID        int64    // the delivery's or the dead letter's
	Attempt   int      // failures of that delivery
	Left      *float64 // seconds until it is due, or its lease ends
	Low, High int64    // the range
}

// GroupKeys returns the keys of a group for which messages wait, those of the lowest messages first, at most ten.
func (s *Store) GroupKeys(ctx context.Context, group int) ([]WaitingKey, error) {
	return query(ctx, s, "look at", "keys of group", group, "group_keys", func(row pgx.CollectableRow) (k WaitingKey, err error) {
		return k, row.Scan(&k.Key, &k.First, &k.Waiting, &k.State, &k.ID, &k.Attempt, &k.Left, &k.Low, &k.High)
	}, group)
}
