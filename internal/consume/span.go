package consume

import (
	"slices"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// The states of a message in a range.
const (
	msgWaiting uint8 = iota
	msgRunning
	msgFinished
	msgSkipped // finished under an earlier lease, or erased
)

type staleness int

const (
	notStale  staleness = iota
	staleSay            // the store is to be told
	staleSaid           // left to its expiry
	staleFree           // to be released instead of left
)

// span is an open range of ours.
type span struct {
	lease
	ref         delivery.RangeRef
	high        int64
	ceiling     int64
	redelivered bool
	done        []int64

	msgs      []delivery.Message
	state     []uint8
	next      int // the first that may still be started
	limit     int // from here on nothing is started: the rest is given back
	waiting   int // below limit, not started
	left      int // below limit, without an outcome
	running   int
	ran       int
	outcomes  []pending
	lastStart int64

	read      bool
	readAt    int64
	readTries int

	stale       staleness
	staleBefore int  // how often it went stale before it was ours
	giveBack    bool // surrender what is not finished as soon as nothing runs
	partial     bool // something below limit has no outcome and gets none
	suspect     bool // the clocks parted: the store is to be asked
	gone        bool // no longer ours: results are dropped
	sent        bool // a call that records it is on its way
}

// pending is an outcome that waits to be recorded, and the moment from which its retry is due.
type pending struct {
	delivery.Outcome
	due int64
}

func (m *machine) newSpan(r *delivery.Range, sent instant) *span {
	return &span{
		lease: lease{taken: sent, length: int64(r.Lease)}, ref: delivery.RangeRef{Low: r.Low, Token: r.Token}, high: r.High,
		ceiling: int64(r.Ceiling), redelivered: r.Again || r.Reclaims > 0 || r.Stale > 0, done: r.Done, staleBefore: r.Stale,
	}
}

// takeFresh starts the next message of the queue for which enough lease remains.
func (m *machine) takeFresh(si int, now instant, s *start) bool {
	for len(m.queue) > 0 {
		r := m.queue[0]
		for r.next < r.limit && r.state[r.next] != msgWaiting {
			r.next++
		}
		if r.next >= r.limit {
			m.dequeue()
			continue
		}
		if r.parted(now) {
			m.suspect(r, now)
			continue
		}
		i := r.next
		msg := &r.msgs[i]
		p := m.policy(msg)
		// A claim keeps the ceiling that its lease was computed with.
		timeout := p.Timeout
		if r.ceiling > 0 {
			timeout = min(timeout, time.Duration(r.ceiling))
		}
		remaining, needed := r.remaining(now), m.needed(int64(timeout))
		if remaining < needed {
			m.leave(r, now, remaining, needed)
			continue
		}
		r.state[i] = msgRunning
		r.next++
		r.waiting--
		r.running++
		r.lastStart = now.mono
		m.queued--
		if r.waiting == 0 {
			m.dequeue()
			m.kick()
		} else if m.queued == m.lowWater {
			m.kick()
		}
		m.lastRetry = false
		slot := m.begin(si, now, task{span: r, i: i, policy: p}, timeout)
		*s = start{slot: si, gen: slot.gen, message: msg, attempt: 1, redelivered: r.redelivered, leaseEnds: now.wall + remaining, began: now.mono, timeout: timeout, token: r.ref.Token}
		return true
	}
	return false
}

func (m *machine) dequeue() {
	m.queue[0] = nil
	m.queue = m.queue[1:]
}

// requeue rebuilds the queue after something rare changed it.
func (m *machine) requeue() {
	m.queue = m.queue[:0:0]
	m.queued = 0
	for _, r := range m.spans {
		if r.read && !r.gone && !r.suspect && r.stale == notStale && r.waiting > 0 {
			m.queue = append(m.queue, r)
			m.queued += r.waiting
		}
	}
}

func (m *machine) finishSpan(t *task, now instant, v *verdict) {
	r := t.span
	r.running--
	r.left--
	if r.left == 0 {
		m.kick()
	}
	if v != nil && v.interrupted {
		r.state[t.i] = msgWaiting
		r.partial = true
		return
	}
	r.state[t.i] = msgFinished
	r.ran++
	if v != nil {
		// Judged even where the result is dropped: the attempt took place and is counted.
		o, due := m.outcome(t, r.msgs[t.i].ID, false, now, v)
		if !r.gone {
			r.outcomes = append(r.outcomes, pending{o, due})
		}
	}
}

// leave gives up on a range for want of lease time. What ran of it may run again, after its expiry.
func (m *machine) leave(r *span, now instant, remaining, needed int64) {
	m.counts.Stale++
	i := r.next
	for i < r.limit && r.state[i] != msgWaiting {
		i++
	}
	e := Event{Code: diag.InsufficientLease, Kind: KindStale, Low: r.ref.Low, High: r.high, Remaining: time.Duration(remaining), Needed: time.Duration(needed)}
	if i < len(r.msgs) {
		e.Message = r.msgs[i].ID
	}
	m.event(e, now)
	m.shrink()
	if m.o.ReleaseStale && r.ran+r.running > 0 {
		r.stale = staleFree
		m.cut(r, r.next)
	} else {
		r.stale = staleSay
	}
	m.requeue()
	m.kick()
}

// cut gives back what of a range is at or behind the message with this index.
func (m *machine) cut(r *span, limit int) {
	r.limit = max(limit, r.next)
	r.giveBack = true
	r.recount()
}

func (r *span) recount() {
	r.waiting, r.left = 0, 0
	for i := range r.limit {
		switch r.state[i] {
		case msgWaiting:
			if i >= r.next {
				r.waiting++
				r.left++
			}
		case msgRunning:
			r.left++
		}
	}
}

// readDone hands over the messages of a range. Ids that are not among them were removed, and count as finished.
func (m *machine) readDone(r *span, msgs []delivery.Message, now instant) {
	if r.gone || r.read {
		return
	}
	r.read = true
	r.msgs = msgs
	r.state = make([]uint8, len(msgs))
	r.limit = len(msgs)
	m.counts.Superseded += (r.high - r.ref.Low) - int64(len(msgs))
	bytes := int64(0)
	for i := range msgs {
		bytes += int64(len(msgs[i].Payload) + len(msgs[i].Headers))
		if msgs[i].Redacted {
			r.state[i] = msgSkipped
			m.counts.Superseded++
		} else if _, ok := slices.BinarySearch(r.done, msgs[i].ID); ok {
			r.state[i] = msgSkipped
		}
	}
	m.sawBytes(bytes, len(msgs))
	r.recount()
	m.counts.Claimed += int64(r.waiting)
	if r.giveBack { // while it was read
		m.cut(r, 0)
	}
	m.requeue()
	m.wake(r.waiting)
	if r.left == 0 {
		m.kick()
	}
}

func (m *machine) sawBytes(bytes int64, n int) {
	if n > 0 {
		m.avgBytes += (bytes/int64(n) - m.avgBytes) / 4
	}
}

// finished says that a range can be recorded or surrendered now.
func (r *span) finished() bool {
	if r.gone || r.sent || r.suspect || r.running > 0 || r.stale == staleSay || r.stale == staleSaid {
		return false
	}
	if !r.read {
		return r.giveBack
	}
	return r.left == 0
}

// whole says that every message of a finished range has an outcome.
func (r *span) whole() bool {
	if !r.read {
		return false
	}
	if r.limit == len(r.msgs) && !r.partial {
		return true
	}
	return !slices.ContainsFunc(r.state, func(s uint8) bool { return s < msgFinished })
}

// result is what records a whole range.
func (r *span) result(now instant) delivery.RangeResult {
	return delivery.RangeResult{RangeRef: r.ref, Outcomes: r.dueOutcomes(now)}
}

// surrender gives back the rest: what is finished below the first message that is not is the prefix, what is finished above it gets marks.
func (r *span) surrender(now instant) delivery.Surrender {
	s := delivery.Surrender{RangeRef: r.ref, Prefix: r.ref.Low, Outcomes: r.dueOutcomes(now)}
	first := 0
	for first < len(r.msgs) && r.state[first] >= msgFinished {
		first++
	}
	if first < len(r.msgs) {
		s.Prefix = r.msgs[first].ID - 1
	}
	for i := first; i < len(r.msgs); i++ {
		if r.state[i] == msgFinished {
			s.Done = append(s.Done, r.msgs[i].ID)
		}
	}
	return s
}

// dueOutcomes counts the waits from now, as the store does.
func (r *span) dueOutcomes(now instant) []delivery.Outcome {
	if len(r.outcomes) == 0 {
		return nil
	}
	list := make([]delivery.Outcome, len(r.outcomes))
	for i, p := range r.outcomes {
		list[i] = p.Outcome
		list[i].DueIn = dueIn(p.due, now)
	}
	return list
}

func dueIn(due int64, now instant) time.Duration { return time.Duration(max(due-now.mono, 0)) }

// drop forgets a range.
func (m *machine) drop(r *span) {
	r.gone = true
	m.spans = slices.DeleteFunc(m.spans, func(x *span) bool { return x == r })
	m.requeue()
}

// lose forgets a range that is not ours any longer.
func (m *machine) lose(r *span, now instant) {
	m.counts.LeaseLost++
	m.event(Event{Code: diag.LeaseLost, Kind: KindLeaseLost, Low: r.ref.Low, High: r.high}, now)
	m.drop(r)
}

func (m *machine) suspect(r *span, now instant) {
	r.suspect = true
	m.event(Event{Code: diag.ClocksParted, Kind: KindClocksParted, Low: r.ref.Low, High: r.high}, now)
	m.requeue()
	m.kick()
}

// trim gives back what cannot be started in time, long before it is too late: a claim is sized so that its last message starts within half of
// the queue margin; when that half is over and the rest will not do for what still waits, the estimate of its time was wrong. A range is never
// cut below BatchMin messages, but where another session's solo run keeps the gate closed.
func (m *machine) trim(now instant) {
	margin := int64(m.o.QueueMargin)
	before := 0
	changed := false
	for _, r := range m.spans {
		if !r.read || r.gone || r.suspect || r.stale != notStale || r.waiting == 0 {
			continue
		}
		spare := r.remaining(now) - m.needed(int64(min(m.plain.Timeout, timeoutCap(r.ceiling))))
		var keep int
		switch {
		case m.gate.closed && !m.gate.mine && spare < margin/4:
		case !m.gate.closed && spare < margin/2 && m.startable(now, spare) < before+r.waiting:
			keep = max(m.startable(now, spare/2)-before, 0)
			if floor := m.o.BatchMin - r.next; floor > keep {
				keep = floor
			}
		default:
			before += r.waiting
			continue
		}
		if keep < r.waiting {
			m.counts.GivenBack += int64(r.waiting - keep)
			limit := r.next
			for n := 0; n < keep; limit++ {
				if r.state[limit] == msgWaiting {
					n++
				}
			}
			m.cut(r, limit)
			changed = true
		}
		before += r.waiting
	}
	if changed {
		m.requeue()
	}
}

func timeoutCap(ceiling int64) time.Duration {
	if ceiling <= 0 {
		return time.Duration(1<<63 - 1)
	}
	return time.Duration(ceiling)
}

// trimAt says when trimming is to be considered again.
func (m *machine) trimAt(now instant) int64 {
	at := never
	for _, r := range m.queue {
		half := r.ends(now) - m.needed(int64(min(m.plain.Timeout, timeoutCap(r.ceiling)))) - int64(m.o.QueueMargin)/2
		if half > now.mono {
			at = min(at, half)
		} else {
			at = min(at, now.mono+int64(m.o.QueueMargin)/16)
		}
	}
	return at
}
