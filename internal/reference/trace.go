package reference

import (
	"fmt"
	"slices"
	"strings"
)

// Kind is what an event tells.
type Kind string

// The events.
const (
	Started   Kind = "start"
	Ended     Kind = "end"
	Sent      Kind = "sent"    // a result is on its way to the store, or (Trace.Strict) is recorded
	Died      Kind = "died"    // an instance, with its handlers
	CutOff    Kind = "cut off" // an instance, from the store; its handlers go on
	Excused   Kind = "excused" // the instance knows that its hold on a message ended too early, or that it left it unrecorded
	Redriven  Kind = "redriven"
	Discarded Kind = "discarded"
	Removed   Kind = "removed" // a message, from the stream: a later one of its key is there
)

// Event is one thing that was seen. Its place in the trace is its time.
type Event struct {
	Kind     Kind
	Instance int
	Message  string
	Run      int // of Started, Ended and Sent: which one it belongs to, from 1

	// Of Started.
	Lease      string // under which it is held: what is held together has one
	Life       int    // 1, and one more each time it is redriven
	Attempt    int    // as the handler was told
	Aside      bool   // off the main line
	OutOfOrder bool   // as the handler was told

	// Of Ended.
	Act  Act
	Late bool // past its timeout: its lease may have ended under it
}

// Trace is what was seen of a history.
type Trace struct {
	Events []Event
	// Strict: Sent means recorded, not before and not later.
	Strict bool
}

// Letter is a dead letter.
type Letter struct {
	Reason   string // exhausted, terminal
	Attempts int
}

// Final is what the store holds of a group when nothing moves any longer.
type Final struct {
	Dead map[string]Letter
	// Waiting are the messages that wait for their key, Open those that have no outcome for any other reason.
	Waiting, Open []string
	// Superseded is how many messages the instances say they passed over because they were removed; negative: nobody knows, as some have died.
	Superseded int
}

// Settled says that nothing will move any more: every message has an outcome, or waits for a dead one that parks its key.
func (f *Final) Settled(p *Plan) bool {
	return len(f.Open) == 0 && !slices.ContainsFunc(f.Waiting, func(name string) bool { return !f.parks(p, name) })
}

// parks says whether a dead one keeps a message waiting.
func (f *Final) parks(p *Plan, name string) bool {
	m, place := p.find(name)
	if m == nil || !p.Park || p.OrderOf(m) != Ordered {
		return false
	}
	return slices.ContainsFunc(p.Messages[:place], func(lower Message) bool {
		_, dead := f.Dead[lower.Name]
		return dead && lower.Key == m.Key && p.OrderOf(&lower) == Ordered
	})
}

func (e Event) String() string {
	switch e.Kind {
	case Started:
		text := fmt.Sprintf("%s starts, run %d on i%d under %s, attempt %d", e.Message, e.Run, e.Instance, e.Lease, e.Attempt)
		if e.Life > 1 {
			text += fmt.Sprintf(" of life %d", e.Life)
		}
		if e.Aside {
			text += ", aside"
		}
		if e.OutOfOrder {
			text += ", out of order"
		}
		return text
	case Ended:
		text := fmt.Sprintf("%s ends, run %d on i%d: %s", e.Message, e.Run, e.Instance, e.Act)
		if e.Late {
			text += ", late"
		}
		return text
	case Sent:
		return fmt.Sprintf("%s sent, run %d on i%d", e.Message, e.Run, e.Instance)
	case Died, CutOff:
		return fmt.Sprintf("i%d %s", e.Instance, e.Kind)
	case Excused:
		return fmt.Sprintf("%s excused on i%d", e.Message, e.Instance)
	default:
		return fmt.Sprintf("%s %s", e.Message, e.Kind)
	}
}

// String is the trace, a line an event.
func (t *Trace) String() string { return t.About() }

// About is what the trace says of some messages, and of instances; of all if none is named.
func (t *Trace) About(names ...string) string {
	wanted := make(map[string]bool)
	for _, n := range names {
		wanted[n] = true
	}
	var b strings.Builder
	for i, e := range t.Events {
		if e.Message == "" || len(names) == 0 || wanted[e.Message] {
			fmt.Fprintf(&b, "%4d %v\n", i, e)
		}
	}
	return b.String()
}
