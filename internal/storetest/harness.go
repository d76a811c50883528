package storetest

import (
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

// State is what the tables of a group hold.
type State struct {
	Claimed    int64
	Claims     []Claim    // by Low
	Deliveries []Delivery // by ID
	Dead       []DeadLetter
	Done       []int64
	Attempts   []AttemptRow // as they were written
}

// Claim is an open range.
type Claim struct {
	Low, High        int64
	Token            delivery.Token
	Reclaims, Stale  int
	Excused, Expired bool
	Keys             int // that it holds
}

// Delivery is a message off the main line.
type Delivery struct {
	ID         int64
	Running    bool
	Waiting    bool // for its key
	Attempt    int
	Solo       bool
	Error      string
	Order      delivery.KeyOrder // Exclusive, Ordered or ""
	OutOfOrder bool
}

// DeadLetter is a delivery whose attempts ended.
type DeadLetter struct {
	ID       int64
	Reason   delivery.Reason
	Error    string
	Attempts int
	Payload  []byte
	Key      string
	Parks    bool // its key
}

// AttemptRow is an attempt that did not succeed.
type AttemptRow struct {
	ID      int64
	Attempt int
	Kind    delivery.Kind
	Error   string
}

// Harness is a store with what a test needs to set it up and to look into it. Everything but Store fails the test when it fails.
type Harness interface {
	Store() consume.Store
	// NewStream makes an empty stream for JSON payloads.
	NewStream(t testing.TB) (stream int)
	// NewGroup makes a group at the beginning of a stream.
	NewGroup(t testing.TB, stream int, ceiling time.Duration, maxReclaims int) (group int)
	// Append appends messages with the next ids and returns the last id. Of a message Payload, Key, RoutingKey, Headers and Options are used.
	Append(t testing.TB, stream int, msgs ...delivery.Message) int64
	// Remove takes messages out, as compaction does; Redact erases them in place; Retain removes every message below an id and raises first_id.
	Remove(t testing.TB, stream int, ids ...int64)
	Redact(t testing.TB, stream int, ids ...int64)
	Retain(t testing.TB, stream int, first int64)
	// ExpireAll moves the deadlines of the ranges and deliveries that a group holds into the past; DueAll its pending deliveries' due times.
	ExpireAll(t testing.TB, group int)
	DueAll(t testing.TB, group int)
	SetPaused(t testing.TB, group int, paused bool)
	// SetConfig stores another config, a JSON object, and raises its version by one.
	SetConfig(t testing.TB, group int, config []byte, ceiling time.Duration)
	// Seek moves the group so that it goes on behind this id: the epoch is raised, its claims are deleted, and the deliveries and marks above it.
	Seek(t testing.TB, group int, claimed int64)
	// FinishDelivery removes a running delivery as the transaction of a handler does, without the group's lock.
	FinishDelivery(t testing.TB, group int, id int64)
	// Redrive, Discard and DiscardDeliveries are what operators do with dead letters and with deliveries that do not run.
	Redrive(t testing.TB, group int, ids ...int64)
	Discard(t testing.TB, group int, ids ...int64)
	DiscardDeliveries(t testing.TB, group int, ids ...int64)
	// SweepKeys wakes what waits for keys that nobody holds.
	SweepKeys(t testing.TB, group int) (woken int)
	// Drop deletes the group.
	Drop(t testing.TB, group int)
	State(t testing.TB, group int) State
}

// memoryHarness is the memory store under the suite.
type memoryHarness struct{ m *Memory }

// NewMemoryHarness wraps a memory store for Conformance.
func NewMemoryHarness() Harness { return memoryHarness{NewMemory()} }

func (h memoryHarness) Store() consume.Store         { return h.m }
func (h memoryHarness) NewStream(testing.TB) int     { return h.m.AddStream() }
func (h memoryHarness) Drop(_ testing.TB, group int) { h.m.Drop(group) }

func (h memoryHarness) NewGroup(_ testing.TB, stream int, ceiling time.Duration, maxReclaims int) int {
	return h.m.AddGroup(stream, ceiling, maxReclaims)
}

func (h memoryHarness) Append(_ testing.TB, stream int, msgs ...delivery.Message) int64 {
	return h.m.Append(stream, msgs...)
}

func (h memoryHarness) Remove(_ testing.TB, stream int, ids ...int64) { h.m.Remove(stream, ids...) }
func (h memoryHarness) Redact(_ testing.TB, stream int, ids ...int64) { h.m.Redact(stream, ids...) }
func (h memoryHarness) Retain(_ testing.TB, stream int, first int64)  { h.m.Retain(stream, first) }
func (h memoryHarness) ExpireAll(_ testing.TB, group int)             { h.m.ExpireAll(group) }
func (h memoryHarness) DueAll(_ testing.TB, group int)                { h.m.DueAll(group) }

func (h memoryHarness) FinishDelivery(_ testing.TB, group int, id int64) {
	h.m.FinishDelivery(group, id)
}

func (h memoryHarness) Redrive(_ testing.TB, group int, ids ...int64) { h.m.Redrive(group, ids...) }
func (h memoryHarness) Discard(_ testing.TB, group int, ids ...int64) { h.m.Discard(group, ids...) }
func (h memoryHarness) SweepKeys(_ testing.TB, group int) int         { return h.m.SweepKeys(group) }

func (h memoryHarness) DiscardDeliveries(_ testing.TB, group int, ids ...int64) {
	h.m.DiscardDeliveries(group, ids...)
}

func (h memoryHarness) SetPaused(_ testing.TB, group int, paused bool) { h.m.SetPaused(group, paused) }

func (h memoryHarness) SetConfig(_ testing.TB, group int, config []byte, ceiling time.Duration) {
	h.m.SetConfig(group, config, ceiling)
}

func (h memoryHarness) Seek(_ testing.TB, group int, claimed int64) { h.m.Seek(group, claimed) }
func (h memoryHarness) State(_ testing.TB, group int) State         { return h.m.State(group) }
