package sqlstreams

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/store"
)

// Reason says one thing about why a group stands where it stands.
type Reason struct {
	// Code is that of the condition, explained in docs/diagnostics.md; "": it has none.
	Code Code
	// Text is a sentence for a person.
	Text string
	// Remedy is a command line of sqlstreams, or SQL, that mends it; "": there is nothing to do, or nothing that a command could.
	Remedy string
	// Blocking says that it keeps messages from being handled now.
	Blocking bool
}

const (
	// longHeld is how long a lock may be held before it is a reason: they are taken for milliseconds.
	longHeld = time.Second
	// lateInbox is how long a committed message may wait for its id before that is a reason: consumers and upkeep look at least every five seconds.
	lateInbox = 10 * time.Second
	// silent is how long an instance may not be heard of: it says that it lives every 15 s.
	silent = time.Minute
)

// reasons looks for what holds a group, in the order in which a person should look. It decides from the status alone.
func reasons(s *GroupStatus, holders []store.LockHolder) []Reason {
	var all []Reason
	add := func(blocking bool, code Code, remedy, format string, args ...any) {
		all = append(all, Reason{Code: code, Text: fmt.Sprintf(format, args...), Remedy: remedy, Blocking: blocking})
	}
	command := func(verb string) string { return "sqlstreams " + verb + " " + s.Stream + " " + s.Group }
	due := s.Pending > 0 && !s.NextDue.After(s.Now)
	todo := s.Backlog > 0 || due || slices.ContainsFunc(s.Claims, func(c OpenClaim) bool { return c.ExpiresIn <= 0 })
	alive := 0
	for _, i := range s.Instances {
		if s.Now.Sub(i.SeenAt) <= silent {
			alive++
		}
	}

	if s.Paused {
		add(todo, "", command("group resume"), "The group is paused.")
	}
	for _, h := range holders {
		held := time.Duration(h.Seconds * float64(time.Second))
		if held < longHeld || h.Kind == "stream" && s.Inbox == 0 {
			continue
		}
		who := fmt.Sprintf("server process %d", h.PID)
		if h.Application != "" {
			who += " (" + h.Application + ")"
		}
		add(true, diag.StreamBusy, fmt.Sprintf("select pg_terminate_backend(%d)", h.PID), "The lock of the %s has been held for %s by %s, %s; it is held for milliseconds otherwise.", h.Kind, span(held), who, orNone(h.State, "state unknown"))
	}
	if alive == 0 && (todo || s.Pending > 0 || s.OpenClaims > 0 || s.Inbox > 0) {
		add(true, "", "sqlstreams consume "+s.Stream+" --group "+s.Group, "No instance of the group is running: start its program. (The command handles its messages by printing them.)")
	}
	for _, c := range s.Claims {
		if c.Alive || c.ExpiresIn <= 0 {
			continue
		}
		add(true, "", "", "Messages %d to %d are under the lease of an instance that is gone (%s); it ends in %s, then another instance takes them.", c.Low+1, c.High, holder(c), span(c.ExpiresIn))
	}
	if c, n := worst(s.Claims); n > 0 {
		add(true, diag.InsufficientLease, "", "%s left by the holder because too little of the lease remained, first messages %d to %d; another instance can take over when a lease ends (the first in %s). "+
			"Handlers are slower than the lease allows: give them a longer QueueMargin, or more Handlers.", many(n, "open range was", "open ranges were"), c.Low+1, c.High, span(c.ExpiresIn))
	}
	if s.Claimed < s.FirstID-1 {
		add(false, diag.PositionLost, "", "Messages %d to %d are gone from the stream; the group had not reached them.", s.Claimed+1, s.FirstID-1)
	}
	if s.Inbox > 0 && !s.InboxOldest.IsZero() && s.Now.Sub(s.InboxOldest) > lateInbox {
		add(true, "", "", "%s committed messages wait for their ids, the first for %s: nobody sequences them. A running consumer, its upkeep, or the next Produce does.", counted(s.Inbox), span(s.Now.Sub(s.InboxOldest)))
	}
	keyReasons(s, command, add)
	if s.Pending > 0 && !due {
		add(false, "", command("group retry-now")+" --all", "%s in backoff; the next is due in %s.", many(int(s.Pending), "message waits", "messages wait"), span(s.NextDue.Sub(s.Now)))
	}
	if s.Dead > 0 {
		add(false, diag.DeadLettered, command("dead list"), "%s; the group goes on without.", many(int(s.Dead), "message is a dead letter", "messages are dead letters"))
	}
	slices.SortStableFunc(all, func(a, b Reason) int {
		return strings.Compare(strconv.FormatBool(b.Blocking), strconv.FormatBool(a.Blocking))
	})
	if slices.ContainsFunc(all, func(r Reason) bool { return r.Blocking }) {
		return all
	}
	switch {
	case s.OpenClaims > 0 || s.Running > 0:
		add(false, "", "", "It is at work: %s, %s running.", many(int(s.OpenClaims), "open range", "open ranges"), many(int(s.Running), "retry", "retries"))
	case s.Backlog > 0 || due:
		add(false, "", "", "Work is there, and %s about to claim it.", many(alive, "instance is", "instances are"))
	case len(all) == 0:
		add(false, "", "", "It has caught up.")
	}
	return all
}

// keyReasons tells of keys for which messages wait: one for each that an operator must decide on, and the first of those that pass by themselves.
func keyReasons(s *GroupStatus, command func(verb string) string, add func(blocking bool, code Code, remedy, format string, args ...any)) {
	told := false
	for _, k := range s.Keys {
		wait := many(int(k.Waiting), "message of key ", "messages of key ")
		if k.Waiting >= 10_000 {
			wait = "10,000 or more messages of key "
		}
		wait += strconv.Quote(k.Key)
		verb := "waits"
		if k.Waiting != 1 {
			verb = "wait"
		}
		if k.State == "parked" {
			add(true, diag.DeadLettered, command("dead redrive")+" --id "+strconv.FormatInt(k.ID, 10), "%s %s behind dead letter %d, which parks the key: redrive it, so that it runs before them, or discard it, so that they go on.", wait, verb, k.ID)
			continue
		}
		if told {
			continue
		}
		told = true
		switch k.State {
		case "pending":
			if k.In > 0 {
				add(false, "", command("group retry-now")+" --id "+strconv.FormatInt(k.ID, 10), "%s %s for message %d, which has failed or was delayed and runs again in %s.", wait, verb, k.ID, span(k.In))
			}
		case "running":
			add(false, "", "", "%s %s for message %d, which is at work under a lease that ends in %s.", wait, verb, k.ID, span(k.In))
		case "claimed":
			add(false, "", "", "%s %s for range %d to %d, whose lease ends in %s.", wait, verb, k.Range.Low+1, k.Range.High, span(k.In))
		default:
			add(false, "", "", "%s %s and nothing holds the key any more: upkeep wakes them within seconds.", wait, verb)
		}
	}
}

// worst returns the lowest range that its living holder has left, and how many there are.
func worst(claims []OpenClaim) (first OpenClaim, n int) {
	for _, c := range claims {
		if c.Alive && c.Stale > 0 && c.ExpiresIn > 0 {
			if n == 0 {
				first = c
			}
			n++
		}
	}
	return first, n
}

// many is a count with its noun.
func many(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + more
}

func holder(c OpenClaim) string {
	if c.Host == "" {
		return "instance " + c.Instance
	}
	return fmt.Sprintf("process %d on %s", c.PID, c.Host)
}

func orNone(s, none string) string {
	if s == "" {
		return none
	}
	return s
}

// counted says that a count may stand for more.
func counted(n int64) string {
	if n >= 10_000 {
		return "10,000 or more"
	}
	return strconv.FormatInt(n, 10)
}

// span is a duration for a person: exact enough, never negative.
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	default:
		return d.Round(time.Second).String()
	}
}
