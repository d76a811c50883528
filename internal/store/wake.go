package store

import (
	"context"
	"time"
)

// Probed is what there is to do for one group.
type Probed struct {
	Group, Stream int
	Claimed, Head int64
	Inbox         bool          // rows of the stream wait for their ids
	Due           bool          // a pending delivery is due
	NextDue       time.Duration // until the earliest one is; negative: none
	Expired       bool          // the lease of a range or delivery has ended
	Paused, Gone  bool
}

// Probe asks what there is to do for these groups, in one statement.
func (s *Store) Probe(ctx context.Context, groups []int) ([]Probed, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	rows, err := s.control.Query(ctx, s.text["probe"], groups)
	if err != nil {
		return nil, ClassifyNoEffect("probe", "groups", err)
	}
	defer rows.Close()
	var all []Probed
	for rows.Next() {
		var p Probed
		var stream *int
		var claimed, head *int64
		var due *float64
		if err := rows.Scan(&p.Group, &stream, &claimed, &head, &p.Inbox, &p.Due, &due, &p.Expired, &p.Paused, &p.Gone); err != nil {
			return nil, ClassifyNoEffect("probe", "groups", err)
		}
		if stream != nil {
			p.Stream = *stream
		}
		if claimed != nil {
			p.Claimed = *claimed
		}
		if head != nil {
			p.Head = *head
		}
		p.NextDue = wait(due)
		all = append(all, p)
	}
	return all, ClassifyNoEffect("probe", "groups", rows.Err())
}

// Notify sends announcements on the installation's channel, in a transaction of its own.
func (s *Store) Notify(ctx context.Context, payloads []string) error {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	_, err := s.control.Exec(ctx, s.text["notify"], s.names.Channel, payloads)
	return ClassifyNoEffect("announce on", "channel "+s.names.Channel, err)
}
