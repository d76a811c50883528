package sqlstreams

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/store"
)

// The stored forms of starts that have a value.
const (
	startAt    = "at "
	startAfter = "after "
)

// StartAt is the position before the first message whose id was given at t or later, by the database's clock: in the order of ids, the last message before it is the last that was appended before t. Times are kept to the
// microsecond. Years 1 to 9999 are taken. A t that is yet to come is the head.
func StartAt(t time.Time) Start {
	return Start(startAt + t.UTC().Truncate(time.Microsecond).Format(time.RFC3339Nano))
}

// StartAfter is the position behind the message with this id, from 0 (the beginning). If messages with higher ids are gone, or there is none with so high an id yet, it is the nearest position there is.
func StartAfter(id int64) Start { return Start(startAfter + strconv.FormatInt(id, 10)) }

// checkStart refuses what is no position.
func checkStart(op, object, field string, s Start) error {
	switch text := string(s); {
	case s == Beginning || s == Head:
		return nil
	case strings.HasPrefix(text, startAt):
		if t, err := time.Parse(time.RFC3339Nano, text[len(startAt):]); err == nil && t.Year() >= 1 && t.Year() <= 9999 && StartAt(t) == s {
			return nil
		}
	case strings.HasPrefix(text, startAfter):
		if id, err := strconv.ParseInt(text[len(startAfter):], 10, 64); err == nil && id >= 0 && StartAfter(id) == s {
			return nil
		}
	}
	return invalid(diag.InvalidOption, op, object, fmt.Sprintf("%s is %q, not beginning or head, nor made by StartAt (years 1 to 9999) or StartAfter (ids from 0)", field, string(s)))
}

// giveIDs lets what was committed before this call, and waits for its id, stand before the head.
func (c *Client) giveIDs(ctx context.Context, stream int) error {
	for more := true; more; {
		reply, err := c.store.Drain(ctx, stream, 1000)
		if err != nil {
			return err
		}
		more = reply.More && !reply.Busy
	}
	return nil
}

// SeekResult is what Seek did, or would do.
type SeekResult struct {
	// From and To are the ids behind which the group stood and goes on. Handing out begins with the first message above To.
	From, To int64
	// Clamped says that the position lies outside what the stream has, below its first message, above its head or in a time to come, and that To is the nearest one.
	Clamped bool
	// Again is how many ids come again: those above To that had been handed out. Ids whose messages were removed meanwhile are counted.
	Again int64
	// Passed is how many ids the group will never see: going forward, those that it had not handed out, and those in open ranges that were not recorded as finished.
	Passed int64
	// Claims are the ranges that were open, the lowest 100: their holders' results are refused. OpenClaims is how many there were.
	Claims     []OpenClaim
	OpenClaims int64
	// Dropped is how many deliveries above To were removed, because their messages come again: what ran, waited for its time, or waited for its key.
	Dropped int64
	// Dead is how many dead letters above To are kept, though their messages come again.
	Dead int64
}

// Seek moves the group to a position, in one transaction: Beginning, Head, StartAt(t), StartAfter(id). Instances need not be stopped. Of opts Actor and DryRun count. DryRun moves nothing and
// says what would be done; with Head it leaves out what waits for its id.
//
// Going back, every message above the position comes again, whatever became of it: retries there are forgotten, and dead letters kept, though they park their keys no longer. Nothing at or below the position is skipped: what was at work
// there is given back and runs again. Going forward, messages up to the position that were not handed out, or are at work in a range, are passed over; retries and dead letters stay.
//
// Handlers at work are not interrupted, but what they return is refused (SQL0100), and so is the commit of ConsumeTx; a message can therefore run again before its earlier run has returned. Deliveries that stay go on as they were.
// Keys that were held are let go of. What Once has marked stays marked.
//
// Errors: ErrInvalidOption, ErrStreamNotFound, ErrGroupNotFound, ErrStreamBusy (a lock was not to be had), conditions of the connection. If the outcome is unknown, Seek can be called again: it moves the group to the same position.
func (g *GroupHandle) Seek(ctx context.Context, to Start, opts *OperateOptions) (*SeekResult, error) {
	const op = "seek"
	if err := checkStart(op, g.object, "the position", to); err != nil {
		return nil, err
	}
	if opts != nil && len(opts.Actor) > 200 {
		return nil, invalid(diag.InvalidOption, op, g.object, fmt.Sprintf("Actor has %d bytes, at most 200 are taken", len(opts.Actor)))
	}
	stream, group, err := g.find(ctx, op)
	if err != nil {
		return nil, err
	}
	dry := opts != nil && opts.DryRun
	if to == Head && !dry {
		if err := g.client.giveIDs(ctx, stream); err != nil {
			return nil, renamed(err, g.object)
		}
	}
	s, err := g.client.store.Seek(ctx, &store.Seek{Group: group, Start: string(to), DryRun: dry, Actor: opts.actor(), Object: g.object})
	if err != nil {
		return nil, renamed(err, g.object)
	}
	if !dry {
		g.client.announce(stream, true)
	}
	r := &SeekResult{From: s.From, To: s.To, Clamped: s.Clamped, Again: s.Again, Passed: s.Passed, OpenClaims: s.Open, Dropped: s.Dropped, Dead: s.Dead}
	for _, c := range s.Claims {
		r.Claims = append(r.Claims, OpenClaim{Low: c.Low, High: c.High, Instance: c.Instance, Host: c.Host, PID: c.PID, ExpiresAt: c.ExpiresAt, ExpiresIn: time.Duration(c.Left * float64(time.Second)),
			Reclaims: c.Reclaims, Stale: c.Stale, Alive: c.Alive})
	}
	return r, nil
}
