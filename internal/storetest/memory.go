// Package storetest is the engine's store in memory, and the suite that it and the one on Postgres must both pass.
//
// The memory store follows the procedure of the real one step by step: record, record deliveries, give back, hand out deliveries, take over,
// hand out fresh ids. It uses the clock of the time package, so that it runs in a synctest bubble, and it can be told to fail.
package storetest

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// Memory is a store in memory.
type Memory struct {
	mu      sync.Mutex
	latency time.Duration
	streams []*stream
	groups  []*group
	faults  []Fault
	calls   map[Op]int
	onWork  func(*delivery.WorkRequest, *delivery.WorkReply)
}

type stream struct {
	messages []delivery.Message // ascending; what was removed is absent
	head     int64
	first    int64
	gone     bool
}

type group struct {
	stream      int
	ceiling     time.Duration
	maxReclaims int
	config      []byte
	version     int
	paused      bool
	gone        bool
	epoch       int64
	claimed     int64
	claims      []*claim // by low
	deliveries  map[int64]*row
	dead        []letter // by id
	done        map[int64]bool
	attempts    []AttemptRow
	alive       map[uuid.UUID]time.Time
	tokens      float64 // of its rate, at tokensAt
	tokensAt    time.Time
	wakers      []*Waker
}

type claim struct {
	low, high      int64
	token          delivery.Token
	expires        time.Time
	ceiling        time.Duration
	reclaims       int
	stale          int
	excused, again bool
	instance       uuid.UUID
	messages       int64              // -1: at most high - low
	keys           []string           // that its exclusive and ordered messages hold
	keyOrder       *delivery.KeyOrder // the group's at the claim; nil: each message's
}

type row struct {
	id         int64
	running    bool
	waiting    bool // for its key
	due        time.Time
	attempt    int
	solo       bool
	token      delivery.Token
	expires    time.Time
	ceiling    time.Duration
	err        string
	key        string // of an exclusive or ordered one, else ""
	ordered    bool
	outOfOrder bool
}

type letter struct {
	DeadLetter
	options []byte // of the message
	parks   string // the key that it parks; "": none
}

// order says how the delivery waits for those of its key.
func (d *row) order() delivery.KeyOrder {
	switch {
	case d.key == "":
		return ""
	case d.ordered:
		return delivery.Ordered
	default:
		return delivery.Exclusive
	}
}

// giveBack takes the delivery from its holder.
func (d *row) giveBack(due time.Time) {
	d.running, d.token, d.expires, d.ceiling, d.due = false, delivery.Token{}, time.Time{}, 0, due
}

// put adds a delivery, unless there is one for the message.
func (g *group) put(d *row) bool {
	if g.deliveries[d.id] != nil {
		return false
	}
	g.deliveries[d.id] = d
	return true
}

var _ consume.Store = (*Memory)(nil)

// NewMemory makes an empty store.
func NewMemory() *Memory { return &Memory{calls: make(map[Op]int)} }

// SetLatency makes every call take so long.
func (m *Memory) SetLatency(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.latency = d
}

// OnWork has f called, under the store's mutex, with every Work that took effect.
func (m *Memory) OnWork(f func(*delivery.WorkRequest, *delivery.WorkReply)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.onWork = f
}

// AddStream makes a stream and returns its id.
func (m *Memory) AddStream() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.streams = append(m.streams, &stream{first: 1})
	return len(m.streams)
}

// AddGroup makes a group at the beginning of a stream and returns its id.
func (m *Memory) AddGroup(stream int, ceiling time.Duration, maxReclaims int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.groups = append(m.groups, &group{
		stream: stream, ceiling: ceiling, maxReclaims: maxReclaims, epoch: 1, version: 1,
		deliveries: make(map[int64]*row), done: make(map[int64]bool), alive: make(map[uuid.UUID]time.Time),
	})
	return len(m.groups)
}

// Append appends messages, gives them the next ids, and wakes the groups of the stream. It returns the last id.
func (m *Memory) Append(streamID int, msgs ...delivery.Message) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.streams[streamID-1]
	now := time.Now()
	for _, msg := range msgs {
		s.head++
		msg.ID = s.head
		msg.AppendedAt = now
		if msg.ProducedAt.IsZero() {
			msg.ProducedAt = now
		}
		if msg.SchemaVersion == 0 {
			msg.SchemaVersion = 1
		}
		s.messages = append(s.messages, msg)
	}
	for _, g := range m.groups {
		if g.stream == streamID {
			g.wake()
		}
	}
	return s.head
}

// Messages makes n messages with a small payload.
func Messages(n int) []delivery.Message {
	list := make([]delivery.Message, n)
	for i := range list {
		list[i].Payload = []byte(`{"n":1}`)
	}
	return list
}

// Remove takes messages out of a stream, as compaction does.
func (m *Memory) Remove(streamID int, ids ...int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.streams[streamID-1]
	s.messages = slices.DeleteFunc(s.messages, func(x delivery.Message) bool { return slices.Contains(ids, x.ID) })
}

// Redact erases messages in place.
func (m *Memory) Redact(streamID int, ids ...int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.streams[streamID-1]
	for i := range s.messages {
		if slices.Contains(ids, s.messages[i].ID) {
			s.messages[i].Payload, s.messages[i].Headers, s.messages[i].Redacted = nil, nil, true
		}
	}
}

// Retain removes every message below an id, as retention does.
func (m *Memory) Retain(streamID int, first int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.streams[streamID-1]
	s.first = first
	s.messages = slices.DeleteFunc(s.messages, func(x delivery.Message) bool { return x.ID < first })
}

// SetPaused pauses or resumes a group.
func (m *Memory) SetPaused(groupID int, paused bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.groups[groupID-1]
	g.paused = paused
	g.wake()
}

// SetConfig stores another config for a group.
func (m *Memory) SetConfig(groupID int, config []byte, ceiling time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.groups[groupID-1]
	g.config, g.ceiling = config, ceiling
	g.version++
}

// Seek moves a group so that it goes on behind this id. Going back, what is open at or below it is given back; going forward, it is passed over.
func (m *Memory) Seek(groupID int, claimed int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.groups[groupID-1]
	g.epoch++
	back := claimed <= g.claimed
	g.claims = slices.DeleteFunc(g.claims, func(c *claim) bool { return !back || c.low >= claimed })
	for _, c := range g.claims {
		c.high, c.token, c.expires, c.excused, c.messages = min(c.high, claimed), uuid.New(), time.Now(), true, -1
	}
	for id := range g.deliveries {
		if id > claimed {
			delete(g.deliveries, id)
		}
	}
	for id := range g.done {
		if !back || id > claimed {
			delete(g.done, id)
		}
	}
	g.claimed = claimed
	g.wake()
}

// Drop deletes a group.
func (m *Memory) Drop(groupID int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.groups[groupID-1]
	g.gone = true
	g.wake()
}

// ExpireAll moves the deadlines of everything that a group holds into the past.
func (m *Memory) ExpireAll(groupID int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	past := time.Now().Add(-time.Millisecond)
	g := m.groups[groupID-1]
	for _, c := range g.claims {
		c.expires = past
	}
	for _, d := range g.deliveries {
		if d.running {
			d.expires = past
		}
	}
}

// DueAll moves the due times of a group's deliveries into the past.
func (m *Memory) DueAll(groupID int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	past := time.Now().Add(-time.Millisecond)
	for _, d := range m.groups[groupID-1].deliveries {
		if !d.running && !d.waiting {
			d.due = past
		}
	}
}

// FinishDelivery removes a running delivery, as the transaction of a handler does.
func (m *Memory) FinishDelivery(groupID int, id int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.groups[groupID-1]
	if d := g.deliveries[id]; d != nil && d.running {
		delete(g.deliveries, id)
	}
}

// State shows what a group's tables hold.
func (m *Memory) State(groupID int) State {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.groups[groupID-1]
	now := time.Now()
	st := State{Claimed: g.claimed, Attempts: slices.Clone(g.attempts)}
	for _, d := range g.dead {
		d.Parks = d.parks != ""
		st.Dead = append(st.Dead, d.DeadLetter)
	}
	for _, c := range g.claims {
		st.Claims = append(st.Claims, Claim{
			Low: c.low, High: c.high, Token: c.token, Reclaims: c.reclaims, Stale: c.stale, Excused: c.excused, Expired: !c.expires.After(now), Keys: len(c.keys),
		})
	}
	for _, d := range g.deliveries {
		st.Deliveries = append(st.Deliveries, Delivery{ID: d.id, Running: d.running, Waiting: d.waiting, Attempt: d.attempt, Solo: d.solo, Error: d.err, Order: d.order(), OutOfOrder: d.outOfOrder})
	}
	slices.SortFunc(st.Deliveries, func(a, b Delivery) int { return cmp.Compare(a.ID, b.ID) })
	for id := range g.done {
		st.Done = append(st.Done, id)
	}
	slices.Sort(st.Done)
	return st
}

// Remaining is what remains, by the store's clock, of the lease under which a message of a group is held.
func (m *Memory) Remaining(groupID int, id int64) (time.Duration, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.groups[groupID-1]
	if d := g.deliveries[id]; d != nil {
		return time.Until(d.expires), d.running
	}
	for _, c := range g.claims {
		if id > c.low && id <= c.high {
			return time.Until(c.expires), true
		}
	}
	return 0, false
}

// Calls says how often an operation was called.
func (m *Memory) Calls(op Op) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[op]
}

// Alive says how many instances of a group have said that they live.
func (m *Memory) Alive(groupID int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.groups[groupID-1].alive)
}

// Read returns the messages with ids in (low, high].
func (m *Memory) Read(ctx context.Context, streamID int, low, high int64) ([]delivery.Message, error) {
	var list []delivery.Message
	err := m.enter(ctx, OpRead, func() error {
		s := m.streams[streamID-1]
		if s.gone {
			return &diag.Error{Code: diag.StreamNotFound, Op: "read"}
		}
		at, _ := s.find(low + 1)
		for ; at < len(s.messages) && s.messages[at].ID <= high; at++ {
			list = append(list, s.messages[at])
		}
		return nil
	})
	return list, err
}

// ReadIDs returns the messages of deliveries.
func (m *Memory) ReadIDs(ctx context.Context, streamID, groupID int, ids []int64) ([]delivery.Message, error) {
	var list []delivery.Message
	err := m.enter(ctx, OpReadIDs, func() error {
		s := m.streams[streamID-1]
		for _, id := range slices.Sorted(slices.Values(ids)) {
			if at, ok := s.find(id); ok {
				list = append(list, s.messages[at])
			}
		}
		return nil
	})
	return list, err
}

func (s *stream) find(id int64) (int, bool) {
	return slices.BinarySearchFunc(s.messages, id, func(x delivery.Message, id int64) int { return cmp.Compare(x.ID, id) })
}

// Held returns what is held under tokens.
func (m *Memory) Held(ctx context.Context, groupID int, tokens []delivery.Token) (*delivery.Held, error) {
	held := &delivery.Held{}
	err := m.enter(ctx, OpHeld, func() error {
		g := m.groups[groupID-1]
		now := time.Now()
		for _, c := range g.claims {
			if slices.Contains(tokens, c.token) {
				r := g.handed(c)
				r.Lease = c.expires.Sub(now)
				held.Ranges = append(held.Ranges, *r)
			}
		}
		for _, id := range sortedKeys(g.deliveries) {
			if d := g.deliveries[id]; d.running && slices.Contains(tokens, d.token) {
				held.Deliveries = append(held.Deliveries, delivery.Claimed{
					ID: id, Token: d.token, Attempt: d.attempt, Solo: d.solo, Lease: d.expires.Sub(now), Ceiling: d.ceiling, Order: d.order(), OutOfOrder: d.outOfOrder,
				})
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return held, nil
}

// Beat says that an instance lives.
func (m *Memory) Beat(ctx context.Context, groupID int, instance uuid.UUID) error {
	return m.enter(ctx, OpBeat, func() error {
		m.groups[groupID-1].alive[instance] = time.Now()
		return nil
	})
}

// Leave says that an instance has stopped.
func (m *Memory) Leave(ctx context.Context, groupID int, instance uuid.UUID) error {
	return m.enter(ctx, OpLeave, func() error {
		delete(m.groups[groupID-1].alive, instance)
		return nil
	})
}

func sortedKeys[V any](m map[int64]V) []int64 {
	keys := make([]int64, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
