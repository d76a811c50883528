package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// Seek moves a group.
type Seek struct {
	Group         int
	Start         string // where to, as the function position reads it
	DryRun        bool
	Actor, Object string // for the note of it
}

// Sought is what a seek did, or would do.
type Sought struct {
	From    int64         `json:"from"`
	To      int64         `json:"to"`
	Clamped bool          `json:"clamped"`
	Again   int64         `json:"again"`
	Passed  int64         `json:"passed"`
	Claims  []FencedClaim `json:"claims"`
	Open    int64         `json:"open"`
	Dropped int64         `json:"dropped"`
	Dead    int64         `json:"dead"`
}

// FencedClaim is an open range that a seek took from its holder.
type FencedClaim struct {
	Low       int64     `json:"low"`
	High      int64     `json:"high"`
	Instance  string    `json:"instance"`
	Host      string    `json:"host"`
	PID       int       `json:"pid"`
	ExpiresAt time.Time `json:"expires_at"`
	Left      float64   `json:"left"`
	Reclaims  int       `json:"reclaims"`
	Stale     int       `json:"stale"`
	Alive     bool      `json:"alive"`
}

// Seek moves a group, or says what that would do.
func (s *Store) Seek(ctx context.Context, q *Seek) (*Sought, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	const op = "seek"
	var result []byte
	err := retrying(ctx, func() error {
		err := s.control.QueryRow(ctx, s.text["seek"], q.Group, q.Start, q.DryRun, q.Actor, q.Object).Scan(&result)
		return Classify(op, q.Object, err)
	})
	if err != nil {
		return nil, err
	}
	if result == nil {
		return nil, &diag.Error{Code: diag.GroupNotFound, Op: op, Object: q.Object}
	}
	var sought Sought
	if err := json.Unmarshal(result, &sought); err != nil {
		return nil, &diag.Error{Code: diag.DatabaseError, Op: op, Object: q.Object, Err: err}
	}
	return &sought, nil
}
