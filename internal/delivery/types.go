// Package delivery holds the values that producing, consuming and storing share, and the pure rules about one message's way through a group.
package delivery

import (
	"time"

	"github.com/google/uuid"
)

// Token proves the ownership of a range or of a delivery. It is made by the client at random for one claim and never used again.
type Token = uuid.UUID

// KeyOrder says how messages of one key follow each other within a group.
type KeyOrder string

// The orders of a key. The zero value leaves it to the message.
const (
	Parallel  KeyOrder = "parallel"  // they do not wait for each other
	Exclusive KeyOrder = "exclusive" // one at a time, in any order
	Ordered   KeyOrder = "ordered"   // one at a time, each after all lower ones have succeeded or are dead
)

// InLine says whether messages of one key wait for each other.
func (o KeyOrder) InLine() bool { return o == Exclusive || o == Ordered }

// Message is one row of a log.
type Message struct {
	ID            int64
	Payload       []byte // nil: SQL NULL
	SchemaVersion int
	Key           string // "": none
	RoutingKey    string // "": none
	Headers       []byte // a JSON object of strings; nil: none
	Options       []byte // the producer's requested options as stored JSON; nil: none
	ProducedAt    time.Time
	AppendedAt    time.Time
	ScheduledAt   time.Time // zero: not scheduled
	Redacted      bool      // erased: passed over as finished
}

// RangeRef names an open range of a group and proves its ownership.
type RangeRef struct {
	Low   int64
	Token Token
}

// DeliveryRef names a claimed delivery and proves its ownership.
type DeliveryRef struct {
	ID    int64
	Token Token
}

// Range is a claimed range of ids (Low, High] under one lease.
type Range struct {
	Low, High int64
	Token     Token
	Reclaims  int           // takeovers that counted
	Stale     int           // how often a holder left it for want of lease time
	Again     bool          // it was claimed before: its messages may have run
	Done      []int64       // ids in it that finished under an earlier lease, ascending
	Lease     time.Duration // what the database granted, from its own clock at the claim
	Ceiling   time.Duration // the group's timeout ceiling with which Lease was computed
	Keyed     bool          // it holds keys: some of its messages are exclusive or ordered
	KeyOrder  KeyOrder      // the group's order at the claim, for a range that holds keys; "": each message's own
}

// Claimed is one delivery handed out: a message off the main line.
type Claimed struct {
	ID      int64
	Token   Token
	Attempt int  // failures recorded so far
	Solo    bool // must run alone in its process
	Lease   time.Duration
	Ceiling time.Duration
	Order   KeyOrder // Exclusive or Ordered: it waits for those of its key with lower ids that were handed out with it; "": for none
	// OutOfOrder: a dead letter of an ordered key that was sent again after its successors had gone on.
	OutOfOrder bool
}

// Kind is how an attempt ended.
type Kind string

// The ways in which an attempt ends.
const (
	Succeeded Kind = "ok"
	Failed    Kind = "retry" // due again after DueIn; Attempt counts it
	Delayed   Kind = "delay" // due again after DueIn, not counted as a failure
	Dead      Kind = "dead"  // automatic attempts ended
	Waits     Kind = "wait"  // no attempt: it was not started and waits for its key, off the main line
)

// Reason says why a delivery is dead.
type Reason string

// The reasons for which deliveries die.
const (
	Exhausted   Reason = "exhausted"   // MaxAttempts failures
	TerminalErr Reason = "terminal"    // the handler said so
	Undecodable Reason = "undecodable" // the payload could not be decoded
	Unversioned Reason = "version"     // another payload version and no converter
)

// Outcome is the result of one attempt.
type Outcome struct {
	ID      int64
	Kind    Kind
	Attempt int           // failures recorded so far, this one included if it failed
	DueIn   time.Duration // from now on, for Failed and Delayed
	Reason  Reason        // for Dead
	Error   string        // what the handler said, bounded and valid UTF-8
	Key     string        // the message's; "": none
	Order   KeyOrder      // Exclusive or Ordered if it holds its key; else ""
	Parks   bool          // for Dead: its key's ordered successors wait until an operator decides
	Solo    bool          // the retry must run alone (kept from the delivery)
}

// RangeResult records a range all of whose messages have an outcome. Outcomes holds only those that did not succeed.
type RangeResult struct {
	RangeRef
	Outcomes []Outcome
}

// DeliveryResult records one delivery.
type DeliveryResult struct {
	Token Token
	Outcome
}

// Surrender gives an open range back, free at once and uncounted: everything up to Prefix is finished, and the ids in Done above it.
type Surrender struct {
	RangeRef
	Prefix   int64 // the new low: Low ≤ Prefix < High
	Done     []int64
	Outcomes []Outcome // results that did not succeed, for finished ids
}

// Partial records a part of an open range that holds keys, which stays open: everything up to Prefix is finished, and the ids in Done above it; their results that did not succeed are in Outcomes. Keys are those
// that no unfinished message of the range has any longer: the range lets go of them, and who waits for them is woken. Repeating it is safe.
type Partial struct {
	RangeRef
	Prefix   int64 // the new low: Low ≤ Prefix < High
	Done     []int64
	Outcomes []Outcome
	Keys     []string
}

// WorkRequest asks the store, in one transaction under the group's lock, to record what is finished and to hand out what is next.
type WorkRequest struct {
	Group, Stream int
	Instance      uuid.UUID
	ConfigVersion int // of the config that the caller has; a newer one comes back in the reply

	Results    []RangeResult
	Deliveries []DeliveryResult
	Surrenders []Surrender
	Partials   []Partial
	// Holds are the tokens of open ranges whose keys the caller keeps in line itself: at a claim of a higher range they do not hold a key against it. By token and not by instance, because the caller may not know
	// of a range whose confirmation was lost.
	Holds []Token
	// Freed are keys of deliveries that ended with their handler's transaction, outside the group's lock, or that were found gone: who waits for them is woken.
	Freed   []string
	Stale   []RangeRef    // too little lease remained; the coming expiry is excused
	Release []DeliveryRef // deliveries handed back unstarted, uncounted: due at once, or waiting if they hold a key

	// RangeToken asks for one range, at most MaxMessages messages and MaxBytes bytes, at least one message. Zero: none wanted.
	RangeToken  Token
	MaxMessages int
	MaxBytes    int64
	// TakeOver looks for an expired range first (at most once a second); Floor is what the last look returned. RestToken is for
	// the rest of a range that is taken in parts, of which the caller takes at most PartMax messages.
	TakeOver    bool
	Floor       int64
	RestToken   Token
	PartMax     int
	MaxReclaims int
	// Free is how many messages the caller could start at once: a group that limits how many run hands out no more.
	Free int

	// DeliveryToken asks for at most Retries due deliveries; or, with Solo, for one solo delivery and no other. All get this token.
	DeliveryToken Token
	Retries       int
	Solo          bool
	// Followers is how many deliveries beyond Retries may be handed out that wait in line behind one of these for the same key; none with Solo.
	Followers int
	// LookExpired also returns expired deliveries to pending first (at most once a second).
	LookExpired bool

	// Margins is QueueMargin + TimeoutGrace + RecordMargin; the lease adds the group's ceiling.
	Margins time.Duration
}

// WorkReply says what became of a WorkRequest.
type WorkReply struct {
	Gone          bool // the group or its stream is deleted
	Paused        bool
	Epoch         int64
	ConfigVersion int
	Config        []byte // the group's stored config, if newer than the request's

	LostRanges     []RangeRef // results and surrenders that were refused: the token is gone
	LostDeliveries []int64
	Woken          int // deliveries that this call woke and did not hand out: other instances are to be told

	Range       *Range // handed out
	Deliveries  []Claimed
	BrokenUp    int   // messages of an expired range that became solo deliveries
	Floor       int64 // for the next TakeOver
	More        bool  // further ranges can be claimed at once
	Claimed     int64 // the group's frontier
	Passed      int64 // ids that this call passed over without handing out a range, because they were removed or erased
	LostFrom    int64 // position lost: ids (LostFrom, LostTo] are gone from the stream; 0, 0: nothing lost
	LostTo      int64
	Limited     time.Duration // the group's rate is used up: until the next message may start; 0: it is not
	NextDue     time.Duration // until the earliest pending delivery that is not solo is due (0: one is due now); negative: none
	NextSoloDue time.Duration // the same for solo ones
	NextExpiry  time.Duration // until the earliest open lease of another holder ends, if looked for; negative: none or not looked for
}

// Held is what is still held under given tokens, asked after a lost confirmation or when clocks parted.
type Held struct {
	Ranges     []Range   // Lease is what remains
	Deliveries []Claimed // Lease is what remains
}
