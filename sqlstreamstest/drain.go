package sqlstreamstest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams"
)

// look is how often a group or stream is looked at that a helper waits for.
const look = 5 * time.Millisecond

// Drain waits until the group has nothing left to do: each message that is committed has succeeded or is a dead letter. It returns how the group stands then; look at its Dead. The group must be consumed
// meanwhile (see Consume); one that does not exist is waited for 2 s.
// After 30 s, or shortly before the test binary's deadline, the test fails, with what is left and the reasons why the group does not move.
func Drain(t testing.TB, group *sqlstreams.GroupHandle) *sqlstreams.GroupStatus {
	t.Helper()
	status, failure := drain(t, group, patience, false)
	if failure != "" {
		t.Fatal(failure)
	}
	return status
}

// DrainWithin is Drain with another time to wait for.
func DrainWithin(t testing.TB, group *sqlstreams.GroupHandle, timeout time.Duration) *sqlstreams.GroupStatus {
	t.Helper()
	status, failure := drain(t, group, timeout, false)
	if failure != "" {
		t.Fatal(failure)
	}
	return status
}

// DrainNow is Drain without the waiting between attempts: whenever all that is left waits for its time, it is made due, as BringForward does. So what keeps failing is a dead letter soon, whatever the backoff.
func DrainNow(t testing.TB, group *sqlstreams.GroupHandle) *sqlstreams.GroupStatus {
	t.Helper()
	status, failure := drain(t, group, patience, true)
	if failure != "" {
		t.Fatal(failure)
	}
	return status
}

func drain(t testing.TB, group *sqlstreams.GroupHandle, timeout time.Duration, forward bool) (status *sqlstreams.GroupStatus, failure string) {
	g := newcomer{group: group, until: time.Now().Add(min(absent, timeout/2))}
	err := wait(t, timeout, func(ctx context.Context) (done bool, err error) {
		if status, err = g.status(ctx); err != nil || status == nil || status.Idle() {
			return status != nil, err
		}
		if forward && status.Pending > 0 && settled(status) {
			_, err = group.RetryNow(ctx, nil, nil)
		}
		return false, err
	})
	return status, explained("is not idle", status, err)
}

// BringForward makes due what waits for its time in the group, retries as well as what a handler has delayed, and returns how many messages that was. It waits first until all else is done, so that
// what is about to fail or to be delayed is among them (not in a group that is paused). Drain waits for the end of what it began.
func BringForward(t testing.TB, group *sqlstreams.GroupHandle) int64 {
	t.Helper()
	var status *sqlstreams.GroupStatus
	var n int64
	g := newcomer{group: group, until: time.Now().Add(absent)}
	err := wait(t, patience, func(ctx context.Context) (done bool, err error) {
		if status, err = g.status(ctx); err != nil || status == nil {
			return false, err
		}
		// What is due and what nobody takes is not awaited: it needs no bringing forward.
		if due := status.Pending > 0 && !status.NextDue.After(status.Now); busy(status) && !status.Paused || due && len(status.Instances) > 0 {
			return false, nil
		}
		n, err = group.RetryNow(ctx, nil, nil)
		return true, err
	})
	if failure := explained("is at work", status, err); failure != "" {
		t.Fatal(failure)
	}
	return n
}

// settled says that nothing is left in the group but what waits for its time, or for a key.
func settled(s *sqlstreams.GroupStatus) bool {
	return !busy(s) && (s.Pending == 0 || s.NextDue.After(s.Now))
}

// busy says that messages are not claimed yet, or at work.
func busy(s *sqlstreams.GroupStatus) bool {
	return s.Backlog > 0 || s.Inbox > 0 || s.OpenClaims > 0 || s.Running > 0
}

// newcomer is a group that a program may be about to register, which has just been started on another goroutine.
type newcomer struct {
	group *sqlstreams.GroupHandle
	until time.Time
}

// absent is for how long a group need not exist.
const absent = 2 * time.Second

// status returns how the group stands; nil: it is not there, yet.
func (n newcomer) status(ctx context.Context) (*sqlstreams.GroupStatus, error) {
	status, err := n.group.Status(ctx)
	if time.Now().Before(n.until) && (errors.Is(err, sqlstreams.ErrGroupNotFound) || errors.Is(err, sqlstreams.ErrStreamNotFound)) {
		return nil, nil
	}
	return status, err
}

// explained says what a group lacks and why it does not move; "" without an error.
func explained(state string, s *sqlstreams.GroupStatus, err error) string {
	if err == nil {
		return ""
	}
	if s == nil {
		return "sqlstreamstest: " + err.Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "sqlstreamstest: group %q of stream %q %s: %v\n", s.Group, s.Stream, state, err)
	fmt.Fprintf(&b, "  left: %d not claimed, %d without an id, %d open ranges, %d waiting for their time, %d running again, %d waiting for their key; %d dead letters",
		s.Backlog, s.Inbox, s.OpenClaims, s.Pending, s.Running, s.Waiting, s.Dead)
	for _, r := range s.Reasons {
		b.WriteString("\n  - " + r.Text)
		if r.Remedy != "" {
			b.WriteString(" (" + r.Remedy + ")")
		}
	}
	return b.String()
}

// margin is what remains of the test binary's time, so that the message is seen instead of every goroutine's stack.
const margin = 2 * time.Second

// wait looks until check is done, at most for timeout.
func wait(t testing.TB, timeout time.Duration, check func(ctx context.Context) (done bool, err error)) error {
	if d, ok := t.(interface{ Deadline() (time.Time, bool) }); ok {
		if end, ok := d.Deadline(); ok {
			timeout = min(timeout, max(time.Until(end)-margin, look))
		}
	}
	// A look that has begun may end after the deadline: its answer is what the message is made of.
	ctx, cancel := context.WithTimeout(t.Context(), timeout+margin/2)
	defer cancel()
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		if done, err := check(ctx); done || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return fmt.Errorf("waited %v", timeout.Round(time.Millisecond))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
