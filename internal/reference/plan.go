package reference

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Order says how messages of a key follow each other.
type Order string

// The orders.
const (
	Parallel  Order = "parallel"
	Exclusive Order = "exclusive"
	Ordered   Order = "ordered"
)

// inLine says whether messages of this order never overlap with others of their key that are in line.
func (o Order) inLine() bool { return o == Exclusive || o == Ordered }

// Act is what a handler does in the end.
type Act string

// What a handler can do.
const (
	Succeed  Act = "succeed"
	Fail     Act = "fail"
	Panic    Act = "panic"
	Terminal Act = "terminal"
	Delay    Act = "delay" // it asks to run again later, uncounted
)

// Attempt is the script of one attempt number: Delays runs ask to run again after Delay, the next one does End. The number of an attempt is the recorded failures plus one, so a delayed one comes again.
type Attempt struct {
	Delays int
	Delay  time.Duration
	Takes  time.Duration
	End    Act
}

// Message is one message of a plan. Its place in the plan is its place in the stream.
type Message struct {
	Name        string
	Key         string // "": none
	Order       Order  // requested; "": nothing requested
	MaxAttempts int    // requested; 0: the group's
	// Lives are the scripts of its attempts: the first until it succeeds or is dead, another each time it is redriven. What is not scripted succeeds.
	Lives [][]Attempt
}

// script returns what happens at an attempt.
func (m *Message) script(life, attempt int) Attempt {
	if life < 1 || life > len(m.Lives) || attempt < 1 || attempt > len(m.Lives[life-1]) {
		return Attempt{End: Succeed}
	}
	return m.Lives[life-1][attempt-1]
}

// What a step of a plan does.
const (
	Produce = "produce" // the next N messages
	Start   = "start"   // one more instance
	Stop    = "stop"    // the N-th instance, as a deployment does
	Pause   = "pause"   // the group
	Resume  = "resume"
	Redrive = "redrive" // the dead letters that there are
	Discard = "discard"
	Compact = "compact" // away every message that has a later one of its key
	Lose    = "lose"    // the confirmations of the next N+1 calls to the store, whether they took effect or not
	Refuse  = "refuse"
)

// Step is something that is done to a group while its instances work.
type Step struct {
	After time.Duration // the step before
	Do    string
	N     int
}

// Point is a moment in the work of an instance.
type Point string

// Where an instance can die.
const (
	AtStart Point = "start" // a handler has begun
	AtEnd   Point = "end"   // a handler has done its work, and nobody was told
	AtCall  Point = "call"  // a call to the store is about to be sent
	AtReply Point = "reply" // a call has taken effect, and its reply is lost
)

// Death ends whichever instance comes to a point as the N-th of all. Cut: it lives on, without the store, until its leases are over and long after; else its handlers are gone with it.
type Death struct {
	At  Point
	N   int
	Cut bool
}

// Plan is a history before it is played.
type Plan struct {
	Seed        uint64
	Instances   int
	Handlers    int // of each instance
	BatchLimit  int
	Override    Order // of the group; "": each message's own
	Park        bool  // a dead ordered message keeps its successors waiting
	MaxAttempts int   // of the group
	Backoff     time.Duration
	MaxReclaims int
	Messages    []Message
	Steps       []Step
	Deaths      []Death
	// Settle are the operators' actions that follow once nothing moves any longer, each as soon as that is so again: Redrive or Discard.
	Settle []string
}

// Compacted says whether its stream keeps the newest message of each key only.
func (p *Plan) Compacted() bool {
	return slices.ContainsFunc(p.Steps, func(s Step) bool { return s.Do == Compact })
}

// OrderOf is the order in which a message runs.
func (p *Plan) OrderOf(m *Message) Order {
	if m.Key == "" {
		return Parallel
	}
	order := m.Order
	if p.Override != "" {
		order = p.Override
	}
	if order == "" {
		return Parallel
	}
	return order
}

// attemptsOf is how many failures make a dead letter of a message.
func (p *Plan) attemptsOf(m *Message) int {
	if m.MaxAttempts > 0 {
		return m.MaxAttempts
	}
	return p.MaxAttempts
}

// find returns a message by its name and its place.
func (p *Plan) find(name string) (*Message, int) {
	for i := range p.Messages {
		if p.Messages[i].Name == name {
			return &p.Messages[i], i
		}
	}
	return nil, -1
}

// String is the plan for a person who looks for what went wrong.
func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d instances with %d handlers, claims of %d, override %q, park %v, %d attempts, backoff %v, %d reclaims\n", p.Seed, p.Instances, p.Handlers, p.BatchLimit, p.Override, p.Park,
		p.MaxAttempts, p.Backoff, p.MaxReclaims)
	for i := range p.Messages {
		m := &p.Messages[i]
		fmt.Fprintf(&b, "  %s key %q %s, attempts %d:", m.Name, m.Key, p.OrderOf(m), p.attemptsOf(m))
		for life, attempts := range m.Lives {
			fmt.Fprintf(&b, " life %d", life+1)
			for _, a := range attempts {
				fmt.Fprintf(&b, " %s(%v", a.End, a.Takes)
				if a.Delays > 0 {
					fmt.Fprintf(&b, ", after %d delays of %v", a.Delays, a.Delay)
				}
				b.WriteString(")")
			}
		}
		b.WriteString("\n")
	}
	for _, s := range p.Steps {
		fmt.Fprintf(&b, "  after %v: %s %d\n", s.After, s.Do, s.N)
	}
	for _, d := range p.Deaths {
		fmt.Fprintf(&b, "  death at %s %d, cut %v\n", d.At, d.N, d.Cut)
	}
	fmt.Fprintf(&b, "  settle: %v\n", p.Settle)
	return b.String()
}
