package store

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// Filter means some of a group's dead letters or waiting deliveries; nil means all. Its fields are those of the functions dead_ids and delivery_ids.
type Filter struct {
	IDs      []int64    `json:"ids,omitempty"`
	Reason   string     `json:"reason,omitempty"`
	Error    string     `json:"error,omitempty"`
	Contains string     `json:"contains,omitempty"`
	Key      string     `json:"key,omitempty"`
	Before   *time.Time `json:"before,omitempty"`
	After    *time.Time `json:"after,omitempty"`
}

// encode returns the filter as JSON; nil means all.
func (f *Filter) encode() (*string, error) {
	if f == nil {
		return nil, nil
	}
	text, err := json.Marshal(f)
	if err != nil {
		return nil, &diag.Error{Code: diag.InvalidOption, Op: "filter", Err: err}
	}
	return ptr(string(text)), nil
}

// The operations on what a filter means.
const (
	Redrive           = "redrive"
	Discard           = "discard"
	RetryNow          = "retry-now"
	DiscardDeliveries = "discard-deliveries"
)

// Operation is one operator's action, done in steps.
type Operation struct {
	Group         int
	Action        string
	Filter        *Filter
	Actor, Object string // for the note of it

	audit *int64
	last  int64
}

// Step does at most limit of what is left, in a transaction of its own. more: another step is needed. After an error the same step can be tried again.
func (s *Store) Step(ctx context.Context, o *Operation, limit int) (done int64, more bool, err error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	filter, err := o.Filter.encode()
	if err != nil {
		return 0, false, err
	}
	var audit, last *int64
	var gone bool
	err = retrying(ctx, func() error {
		err := s.control.QueryRow(ctx, s.text["operate"], o.Group, o.Action, filter, o.last, limit, o.Actor, o.Object, o.audit).Scan(&audit, &done, &last, &more, &gone)
		return Classify(o.Action, o.Object, err)
	})
	if err != nil {
		return 0, false, err
	}
	if gone {
		return 0, false, &diag.Error{Code: diag.GroupNotFound, Op: o.Action, Object: o.Object}
	}
	o.audit = audit
	if last != nil {
		o.last = *last
	}
	return done, more, nil
}

// SetPaused pauses or resumes a group.
func (s *Store) SetPaused(ctx context.Context, group int, paused bool, actor, object string) error {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	op := "resume"
	if paused {
		op = "pause"
	}
	var outcome string
	err := retrying(ctx, func() error {
		return ClassifyNoEffect(op, object, s.control.QueryRow(ctx, s.text["set_paused"], group, paused, actor, object).Scan(&outcome))
	})
	if err == nil && outcome == "gone" {
		return &diag.Error{Code: diag.GroupNotFound, Op: op, Object: object}
	}
	return err
}

// DeadLetter is a delivery whose automatic attempts ended.
type DeadLetter struct {
	delivery.Message
	Reason, Error string
	Attempts      int
	DiedAt        time.Time
}

// DeadLetters returns a page of a group's dead letters, ids above after, ascending.
func (s *Store) DeadLetters(ctx context.Context, group int, f *Filter, after int64, limit int) ([]DeadLetter, error) {
	filter, err := f.encode()
	if err != nil {
		return nil, err
	}
	return query(ctx, s, "list", "dead letters of group", group, "dead_letters", func(row pgx.CollectableRow) (d DeadLetter, err error) {
		var version *int
		var key, routing *string
		var bytes []byte
		var produced, appended, scheduled *time.Time
		err = row.Scan(&d.ID, &d.Reason, &d.Error, &d.Attempts, &d.DiedAt, &version, &key, &routing, &d.Headers, &d.Payload, &bytes, &produced, &appended, &scheduled)
		if version != nil {
			d.SchemaVersion = *version
		}
		d.Key, d.RoutingKey = text(key), text(routing)
		if d.Payload == nil {
			d.Payload = bytes
		}
		d.ProducedAt, d.AppendedAt, d.ScheduledAt = instant(produced), instant(appended), instant(scheduled)
		return d, err
	}, group, filter, after, limit, int64(pageBytes))
}

func instant(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// DeadGroup counts dead letters of one kind.
type DeadGroup struct {
	Error, Reason           string
	Count                   int64
	FirstID, LastID, Latest int64 // Latest is the one that died last
	First, Last             time.Time
}

// DeadGroups counts a group's dead letters by kind.
func (s *Store) DeadGroups(ctx context.Context, group int, f *Filter) ([]DeadGroup, error) {
	filter, err := f.encode()
	if err != nil {
		return nil, err
	}
	return query(ctx, s, "list", "dead letters of group", group, "dead_groups", func(row pgx.CollectableRow) (d DeadGroup, err error) {
		return d, row.Scan(&d.Error, &d.Reason, &d.Count, &d.FirstID, &d.LastID, &d.First, &d.Last, &d.Latest)
	}, group, filter)
}

// Count says how many dead letters (or, for the actions on deliveries, how many waiting deliveries) an action would change.
func (s *Store) Count(ctx context.Context, group int, action string, f *Filter) (int64, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	filter, err := f.encode()
	if err != nil {
		return 0, err
	}
	name, args := "dead_count", []any{group, filter}
	if action == RetryNow || action == DiscardDeliveries {
		name, args = "delivery_count", append(args, action == RetryNow)
	}
	var n int64
	err = s.control.QueryRow(ctx, s.text[name], args...).Scan(&n)
	return n, ClassifyNoEffect("count", "group "+strconv.Itoa(group), err)
}

// Waiting is a delivery that waits for its time or its key.
type Waiting struct {
	ID         int64
	State      string
	DueAt      time.Time
	Attempt    int
	Solo       bool
	Key, Error string
}

// Waiting returns a page of a group's waiting deliveries, ids above after, ascending.
func (s *Store) Waiting(ctx context.Context, group int, f *Filter, after int64, limit int) ([]Waiting, error) {
	filter, err := f.encode()
	if err != nil {
		return nil, err
	}
	return query(ctx, s, "list", "deliveries of group", group, "deliveries", func(row pgx.CollectableRow) (w Waiting, err error) {
		return w, row.Scan(&w.ID, &w.State, &w.DueAt, &w.Attempt, &w.Solo, &w.Key, &w.Error)
	}, group, filter, after, limit)
}

// Attempt is one attempt that did not succeed.
type Attempt struct {
	Number                int
	Kind, Error, Instance string
	EndedAt               time.Time
}

// Attempts returns the history of one message in a group, the oldest first.
func (s *Store) Attempts(ctx context.Context, group int, id int64) ([]Attempt, error) {
	return query(ctx, s, "list", "attempts in group", group, "attempts", func(row pgx.CollectableRow) (a Attempt, err error) {
		return a, row.Scan(&a.Number, &a.Kind, &a.Error, &a.Instance, &a.EndedAt)
	}, group, id)
}

// GroupStatus is where a group stands, for a person.
type GroupStatus struct {
	Now                              time.Time
	Paused                           bool
	FirstID, Head                    int64
	Claimed, Committed               int64
	Inbox                            int64 // of its stream, counted to 10,000
	InboxOldest                      *time.Time
	Claims                           int64
	Pending, Running, Waiting, Dead  int64
	NextDue, NextDeliveryLeaseExpiry *time.Time
}

// GroupStatus reads where a group stands.
func (s *Store) GroupStatus(ctx context.Context, group int) (*GroupStatus, error) {
	all, err := query(ctx, s, "look at", "group", group, "group_status", func(row pgx.CollectableRow) (g GroupStatus, err error) {
		return g, row.Scan(&g.Now, &g.Paused, &g.FirstID, &g.Head, &g.Claimed, &g.Committed, &g.Inbox, &g.InboxOldest, &g.Claims, &g.Pending, &g.Running, &g.Waiting, &g.Dead, &g.NextDue, &g.NextDeliveryLeaseExpiry)
	}, group)
	if err == nil && len(all) == 0 {
		err = &diag.Error{Code: diag.GroupNotFound, Op: "look at", Object: "group " + strconv.Itoa(group)}
	}
	if err != nil {
		return nil, err
	}
	return &all[0], nil
}

// OpenClaim is an open range and who holds it.
type OpenClaim struct {
	Low, High      int64
	Instance, Host string
	PID            int
	Left           float64 // seconds until its lease ends; negative: it has ended
	ExpiresAt      time.Time
	Reclaims       int
	Stale          int
	Alive          bool // its instance was seen within the last minute
}

// GroupClaims returns a group's open ranges, the lowest first, at most 100.
func (s *Store) GroupClaims(ctx context.Context, group int) ([]OpenClaim, error) {
	return query(ctx, s, "look at", "claims of group", group, "group_claims", func(row pgx.CollectableRow) (c OpenClaim, err error) {
		return c, row.Scan(&c.Low, &c.High, &c.Instance, &c.Host, &c.PID, &c.Left, &c.ExpiresAt, &c.Reclaims, &c.Stale, &c.Alive)
	}, group)
}

// Instance is a running consumer.
type Instance struct {
	ID, Host          string
	PID               int
	StartedAt, SeenAt time.Time
}

// GroupInstances returns a group's instances, the oldest first.
func (s *Store) GroupInstances(ctx context.Context, group int) ([]Instance, error) {
	return query(ctx, s, "look at", "instances of group", group, "group_instances", func(row pgx.CollectableRow) (i Instance, err error) {
		return i, row.Scan(&i.ID, &i.Host, &i.PID, &i.StartedAt, &i.SeenAt)
	}, group)
}

// LockHolder is a session that holds the lock of a stream or of a group.
type LockHolder struct {
	Kind               string // stream or group
	PID                int
	State, Application string
	Seconds            float64 // that its transaction has run
}

// LockHolders returns who holds the locks of a stream and a group now. They are held for a moment each time; one that is held for seconds keeps others waiting.
func (s *Store) LockHolders(ctx context.Context, stream, group int) ([]LockHolder, error) {
	return query(ctx, s, "look at", "locks of group", group, "lock_holders", func(row pgx.CollectableRow) (h LockHolder, err error) {
		return h, row.Scan(&h.Kind, &h.PID, &h.State, &h.Application, &h.Seconds)
	}, int64(s.names.Lock("stream")), stream, group, int64(s.names.Lock("group")))
}

// query runs a statement that reads, and collects its rows.
func query[T any](ctx context.Context, s *Store, op, what string, id int, name string, scan func(pgx.CollectableRow) (T, error), args ...any) ([]T, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	rows, err := s.control.Query(ctx, s.text[name], args...)
	if err == nil {
		var all []T
		if all, err = pgx.CollectRows(rows, scan); err == nil {
			return all, nil
		}
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return nil, ClassifyNoEffect(op, what+" "+strconv.Itoa(id), err)
}
