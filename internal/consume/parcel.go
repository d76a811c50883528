package consume

import (
	"slices"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// parcel is some deliveries that were claimed together: one token, one lease, but each is recorded for itself.
type parcel struct {
	lease
	token     delivery.Token
	solo      bool
	displaced bool // some of it has not run yet: it waited for its key. It is older than what is fresh, and no retry
	items     []item
	next      int
	waiting   int // not started
	lined     int // not started, in line behind another
	ready     []int
	running   int
	open      int // not acknowledged by the store yet
	read      bool
	readAt    int64
	readTries int
	giveBack  bool
	suspect   bool
	gone      bool
}

type item struct {
	delivery.Claimed
	message *delivery.Message
	state   uint8
}

// deliveryDone is the outcome of a delivery that waits to be recorded.
type deliveryDone struct {
	parcel *parcel
	pending
}

func (m *machine) newParcel(claimed []delivery.Claimed, sent instant) *parcel {
	p := &parcel{token: claimed[0].Token, solo: claimed[0].Solo, items: make([]item, len(claimed)), open: len(claimed)}
	p.lease = lease{taken: sent, length: int64(claimed[0].Lease)}
	for i, c := range claimed {
		p.items[i].Claimed = c
		p.length = min(p.length, int64(c.Lease))
		p.displaced = p.displaced || c.Order != "" && c.Attempt == 0 && !c.Solo
	}
	slices.SortFunc(p.items, func(a, b item) int { return int(min(max(a.ID-b.ID, -1), 1)) })
	return p
}

func (p *parcel) ids() []int64 {
	ids := make([]int64, len(p.items))
	for i := range p.items {
		ids[i] = p.items[i].ID
	}
	return ids
}

// parcelRead hands over the messages of deliveries. Those that are absent were removed: their deliveries end.
func (m *machine) parcelRead(p *parcel, msgs []delivery.Message, now instant) {
	if p.gone || p.read {
		return
	}
	p.read = true
	bytes := int64(0)
	m.latest = now.mono
	var parked map[string]bool // keys whose head was found dead, which is not recorded yet
	for i := range p.items {
		it := &p.items[i]
		at, ok := slices.BinarySearchFunc(msgs, it.ID, func(a delivery.Message, id int64) int { return int(min(max(a.ID-id, -1), 1)) })
		if !ok || msgs[at].Redacted {
			it.state = msgFinished
			m.counts.Superseded++
			m.settleItem(p, pending{Outcome: delivery.Outcome{ID: it.ID, Kind: delivery.Succeeded, Attempt: it.Attempt}})
			continue
		}
		it.message = &msgs[at]
		bytes += int64(len(it.message.Payload) + len(it.message.Headers))
		if policy := m.policy(it.message); it.Attempt >= policy.MaxAttempts {
			// The last attempt ended with its process.
			it.state = msgFinished
			o := delivery.Outcome{ID: it.ID, Kind: delivery.Dead, Attempt: it.Attempt, Reason: delivery.Exhausted, Error: diedAlone, Solo: it.Solo}
			m.died(&task{parcel: p, i: i, policy: policy, failures: it.Attempt}, &o, now, textError(diedAlone))
			o.Key, o.Order = it.message.Key, it.Order
			o.Parks = m.parks(&o)
			if departs(&o) == failed {
				if parked == nil {
					parked = make(map[string]bool)
				}
				parked[o.Key] = true
			}
			m.settleItem(p, pending{Outcome: o})
			continue
		}
		switch {
		case it.Order == "" || p.solo:
			p.waiting++
		case parked[it.message.Key] || !m.lineUp(it.message.Key, place{parcel: p, i: i, ordered: it.Order == delivery.Ordered}):
			it.state = msgFinished
			m.counts.Waiting++
			m.settleItem(p, pending{Outcome: delivery.Outcome{ID: it.ID, Kind: delivery.Waits}})
		case it.state == msgLined:
			p.lined++
			m.lined++
		default:
			p.waiting++
		}
		m.keyed = m.keyed || it.Order != ""
	}
	m.sawBytes(bytes, len(msgs))
	m.counts.Claimed += int64(p.waiting + p.lined)
	if len(m.results) > 0 {
		m.calls.flushAt = now.mono
	}
	switch {
	case !p.solo:
	case !m.gate.mine:
		p.giveBack = true // the gate was given up meanwhile
	case p.waiting == 0:
		m.endSolo()
	default:
		m.solo = p
	}
	if p.displaced {
		m.heads = p.waiting
	}
	m.requeueRetries()
	m.wake(p.waiting)
	m.kick()
}

const diedAlone = "the lease expired while it ran alone; no attempt is left"

// settleItem keeps the outcome of a delivery until it is recorded.
func (m *machine) settleItem(p *parcel, o pending) { m.results = append(m.results, deliveryDone{p, o}) }

func (m *machine) requeueRetries() {
	m.retries = m.retries[:0:0]
	m.waiting = 0
	for _, p := range m.parcels {
		if p.read && !p.gone && !p.suspect && !p.giveBack && !p.solo && p.waiting > 0 {
			m.retries = append(m.retries, p)
			m.waiting += p.waiting
		}
	}
}

// takeParcel starts the next delivery of a parcel. If it says false, the parcel has left the queue.
func (m *machine) takeParcel(p *parcel, si int, now instant, s *start) bool {
	i, ok := p.first()
	if !ok || p.giveBack || p.suspect || p.gone {
		m.leaveQueue(p)
		return false
	}
	if p.parted(now) {
		// The gate is not kept closed for a question.
		p.giveBack, p.suspect = p.solo, !p.solo
		m.event(Event{Code: diag.ClocksParted, Kind: KindClocksParted, Message: p.items[i].ID}, now)
		m.leaveQueue(p)
		m.kick()
		return false
	}
	it := &p.items[i]
	policy := m.policy(it.message)
	timeout := policy.Timeout
	if it.Ceiling > 0 {
		timeout = min(timeout, it.Ceiling)
	}
	remaining := p.remaining(now)
	if remaining < m.needed(int64(timeout)) {
		p.giveBack = true
		m.leaveQueue(p)
		m.kick()
		return false
	}
	it.state = msgRunning
	if i == p.next {
		p.next++
	}
	p.waiting--
	p.running++
	if !p.solo {
		m.waiting--
	}
	if p.solo {
		m.solo = nil // the gate opens when it has ended
	} else if p.waiting == 0 {
		m.leaveQueue(p)
		m.kick()
	}
	if !p.displaced {
		m.runningRetries++
		m.lastRetry = true
	}
	slot := m.begin(si, now, task{parcel: p, i: i, policy: policy, failures: it.Attempt}, timeout)
	*s = start{slot: si, gen: slot.gen, message: it.message, attempt: it.Attempt + 1, redelivered: true, leaseEnds: now.wall + remaining, began: now.mono, timeout: timeout, token: p.token, delivery: true, outOfOrder: it.OutOfOrder}
	return true
}

// first finds the delivery to start next: one whose turn in line has come, else the first that waits.
func (p *parcel) first() (int, bool) {
	for len(p.ready) > 0 {
		if i := p.ready[0]; p.items[i].state == msgWaiting {
			return i, true
		}
		p.ready = p.ready[1:]
	}
	for p.next < len(p.items) && p.items[p.next].state != msgWaiting {
		p.next++
	}
	return p.next, p.next < len(p.items)
}

// leaveQueue takes a parcel out of the queue; a solo one is not in it.
func (m *machine) leaveQueue(p *parcel) {
	if p.solo {
		m.endSolo()
		return
	}
	if len(m.retries) > 0 && m.retries[0] == p {
		m.retries[0] = nil
		m.retries = m.retries[1:]
		m.waiting -= p.waiting
	}
}

func (m *machine) finishParcel(t *task, now instant, v *verdict) {
	p, it := t.parcel, &t.parcel.items[t.i]
	p.running--
	if p.solo {
		m.endSolo()
		p.giveBack = p.waiting > 0 // one was asked for
	}
	if v != nil && v.interrupted {
		it.state = msgWaiting
		p.waiting++
		p.giveBack = true
		p.next = min(p.next, t.i)
		m.kick()
		return
	}
	it.state = msgFinished
	o := pending{Outcome: delivery.Outcome{ID: it.ID, Kind: delivery.Succeeded, Attempt: it.Attempt, Key: it.message.Key, Order: it.Order}}
	switch {
	case v == nil:
		m.settleItem(p, o)
	case v.recorded:
		// Its row is gone. Who waits for its key is woken by a call that says so.
		if it.Order != "" {
			m.freed = append(m.freed, it.message.Key)
		}
		m.acknowledge(p, 1)
		m.kick()
	default:
		o.Outcome, o.due = m.outcome(t, it.ID, it.Solo, now, v)
		o.Order = it.Order
		o.Parks = m.parks(&o.Outcome)
		m.settleItem(p, o)
	}
	if it.Order != "" && !p.solo {
		m.leaveLine(it.message.Key, nil, p, t.i, departs(&o.Outcome))
	}
	// A parcel is recorded at once when all of it has ended, else what has ended is recorded together after a moment.
	if p.waiting+p.lined == 0 && p.running == 0 {
		m.calls.flushAt = now.mono
		m.kick()
	} else {
		m.flushSoon()
	}
}

// flushSoon has results of deliveries recorded within a moment.
func (m *machine) flushSoon() {
	if m.calls.flushAt == never {
		m.calls.flushAt = m.latest + flushAfter
		m.kick()
	}
}

const flushAfter = int64(5 * time.Millisecond)

// retrySize says how many deliveries to ask for. One is claimed only for a slot that is free, or kept for it; where handlers are so quick that
// a slot will be free within a moment, for that one too.
// Wakes says that the call may wake some.
func (m *machine) retrySize(now instant, wakes bool) int {
	if m.stop.phase != active || m.look.paused || m.gate.closed || m.look.dueAt > now.mono && !wakes {
		return 0
	}
	for _, p := range m.parcels {
		if !p.read && !p.giveBack {
			return 0 // one is being fetched
		}
	}
	share := len(m.slots)
	if m.queued > 0 {
		share = (share + 1) / 2
	}
	n := min(share-m.runningRetries, len(m.slots)-m.running)
	if each := m.est.value; each > 0 && each < int64(ahead) {
		quick := min(int64(share)*int64(ahead)/each, int64(m.o.BatchLimit), maxRetries)
		if m.avgBytes > 0 {
			quick = min(quick, max(m.o.MaxBatchBytes/m.avgBytes, 1))
		}
		n = max(n, int(quick))
	}
	return max(n-m.waiting, 0)
}

// busy says that deliveries which waited for their keys will keep every slot at work: fresh messages come after them, and to claim these now would only set more of them waiting.
func (m *machine) busy(now instant) bool {
	if !m.keyed {
		return false
	}
	waiting := 0
	for _, p := range m.retries {
		if p.displaced {
			waiting += p.waiting
		}
	}
	return waiting >= len(m.slots) || m.look.dueAt <= now.mono && m.heads >= len(m.slots)
}

// followers says how many deliveries may be handed out behind the heads of their lines: as many as one slot is expected to run in half of the queue margin.
func (m *machine) followers(heads int) int {
	if !m.keyed {
		return 0
	}
	n := m.o.BatchLimit
	if each := m.est.value; each > 0 {
		n = int(min(int64(n), int64(m.o.QueueMargin)/2/each*int64(heads)))
	} else {
		n = min(n, heads)
	}
	if m.avgBytes > 0 {
		n = int(min(int64(n), m.o.MaxBatchBytes/m.avgBytes))
	}
	return max(n-m.lined, 0)
}

const (
	ahead      = 50 * time.Millisecond
	maxRetries = 500
)

// releasable says that a parcel can hand back what it has not started.
func (p *parcel) releasable() bool {
	return p.giveBack && !p.gone && !p.suspect && p.running == 0
}

func (m *machine) dropParcel(p *parcel) {
	p.gone = true
	for i := range p.items {
		if p.read && p.items[i].state < msgRunning && p.items[i].state != msgGiven {
			m.unline(p, i)
		}
	}
	m.parcels = slices.DeleteFunc(m.parcels, func(x *parcel) bool { return x == p })
	if m.solo == p {
		m.endSolo()
	}
	m.requeueRetries()
}

// unline takes a delivery that was not started out of its line; it has ended, or is given back.
func (m *machine) unline(p *parcel, i int) {
	it := &p.items[i]
	if it.state == msgLined {
		p.lined--
		m.lined--
	} else {
		p.waiting--
	}
	it.state = msgGiven
	if it.message == nil {
		return
	}
	if l := m.lines[it.message.Key]; l != nil {
		l.places = slices.DeleteFunc(l.places, func(x place) bool { return x.parcel == p && x.i == i })
		m.advance(l)
	}
}

// endSolo opens the gate again: what had to run alone has ended, or does not run.
func (m *machine) endSolo() {
	m.solo = nil
	m.gate.mine, m.gate.asked, m.gate.queued = false, false, false
	m.fx.gateRelease, m.fx.any = true, true
	m.kick()
}

// soloBusy says that a solo delivery is claimed and has not ended.
func (m *machine) soloBusy() bool {
	return slices.ContainsFunc(m.parcels, func(p *parcel) bool {
		return p.solo && (p.running > 0 || !p.giveBack && (!p.read || p.waiting > 0))
	})
}
