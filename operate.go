package sqlstreams

import (
	"context"
	"fmt"
	"math"
	"os/user"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/store"
)

// OperateOptions belong to one operation on a group. Nil: none set.
type OperateOptions struct {
	// DryRun changes nothing: the call says how many messages it would change.
	DryRun bool
	// Rate is the most messages a second. Default 0: as fast as it goes; at most 1,000,000.
	Rate float64
	// Actor is who does it, for the note in operator_action: at most 200 bytes. Default the user of the operating system.
	Actor string
	// Progress is called after each step with how many were changed so far.
	Progress func(done int64)
}

func (o *OperateOptions) actor() string {
	if o != nil && o.Actor != "" {
		return o.Actor
	}
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return "unknown"
}

// Redrive lets the dead letters that f means run again, at once and with all their attempts, in the order of their ids; each keeps its id. It returns how many. They are moved in steps that are each
// committed: after an error those counted are on their way, and the call can be repeated.
//
// Errors, of this and of the other operations: ErrInvalidOption, ErrStreamNotFound, ErrGroupNotFound, ErrStreamBusy (a lock was not to be had), conditions of the connection; the end of ctx.
func (g *GroupHandle) Redrive(ctx context.Context, f *DeliveryFilter, opts *OperateOptions) (int64, error) {
	return g.operate(ctx, store.Redrive, f, opts)
}

// Discard removes the dead letters that f means, with their copies of the messages. It returns how many.
func (g *GroupHandle) Discard(ctx context.Context, f *DeliveryFilter, opts *OperateOptions) (int64, error) {
	return g.operate(ctx, store.Discard, f, opts)
}

// RetryNow makes the deliveries due now that wait for their time and that f means. It returns how many were not due already. Their attempts go on counting.
func (g *GroupHandle) RetryNow(ctx context.Context, f *DeliveryFilter, opts *OperateOptions) (int64, error) {
	return g.operate(ctx, store.RetryNow, f, opts)
}

// DiscardDeliveries gives up on the deliveries that wait and that f means: the group will not see those messages again, and they leave no dead letter. It returns how many. What runs at that moment is left alone.
func (g *GroupHandle) DiscardDeliveries(ctx context.Context, f *DeliveryFilter, opts *OperateOptions) (int64, error) {
	return g.operate(ctx, store.DiscardDeliveries, f, opts)
}

// stepSize is the most that one step changes: it holds the group's lock, so it is kept to some tens of milliseconds.
const stepSize = 500

// pace returns how many messages a step takes at a rate, and how long a step lasts at least.
func pace(rate float64) (size int, every time.Duration) {
	if rate == 0 {
		return stepSize, 0
	}
	// About ten steps a second, so that a rate is smooth; less often if it is below ten.
	size = min(max(int(rate/10), 1), stepSize)
	return size, time.Duration(float64(size) / rate * float64(time.Second))
}

func (g *GroupHandle) operate(ctx context.Context, action string, f *DeliveryFilter, opts *OperateOptions) (total int64, err error) {
	var o OperateOptions
	if opts != nil {
		o = *opts
	}
	bad := func(format string, args ...any) (int64, error) {
		return 0, invalid(diag.InvalidOption, action, g.object, fmt.Sprintf(format, args...))
	}
	switch {
	case math.IsNaN(o.Rate) || o.Rate < 0 || o.Rate > 1_000_000:
		return bad("Rate is %v, allowed are 0 to 1,000,000", o.Rate)
	case len(o.Actor) > 200:
		return bad("Actor has %d bytes, at most 200 are taken", len(o.Actor))
	}
	filter, err := f.filter(action == store.Redrive || action == store.Discard, g.object)
	if err != nil {
		return 0, err
	}
	stream, group, err := g.find(ctx, action)
	if err != nil {
		return 0, err
	}
	if o.DryRun {
		n, err := g.client.store.Count(ctx, group, action, filter)
		return n, renamed(err, g.object)
	}
	op := &store.Operation{Group: group, Action: action, Filter: filter, Actor: o.actor(), Object: g.object}
	size, every := pace(o.Rate)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for next := time.Now(); ; next = next.Add(every) {
		// A step that took longer than its share is not made up for by a burst.
		next = later(next, time.Now().Add(-every))
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return total, &diag.Error{Code: diag.StatementTimeout, Op: action, Object: g.object, Detail: fmt.Sprintf("the context ended after %d messages", total), Retryable: true, Err: context.Cause(ctx)}
		}
		// A step that has begun is awaited, some tens of milliseconds, so that what is counted is what was done.
		done, more, err := g.client.store.Step(context.WithoutCancel(ctx), op, size)
		if err != nil {
			return total, renamed(err, g.object)
		}
		total += done
		if done > 0 {
			g.client.announce(stream, true)
		}
		if o.Progress != nil {
			o.Progress(total)
		}
		if !more {
			return total, nil
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
