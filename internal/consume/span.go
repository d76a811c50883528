package consume

import (
	"slices"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// The states of a message in a range.
const (
	msgWaiting uint8 = iota // for a worker
	msgLined                // for one before it in the line of its key
	msgGiven                // not started, and not to be: it is given back
	msgRunning
	msgFinished
	msgSkipped // finished under an earlier lease, or erased, or recorded already
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
	waiting   int // below limit, not started, and to start as soon as there is a worker
	lined     int // not started, in line behind another
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
	sent        bool // a call that records it, or a part of it, is on its way

	// Of a range that holds keys.
	keyed     bool
	override  delivery.KeyOrder   // the group's order at the claim; "": each message's own
	order     []delivery.KeyOrder // by message; "": it is in no line
	keys      map[string]int      // messages in lines that have not ended, those that are given back included
	free      []string            // keys all of whose messages here have ended, until that is recorded
	ready     []int               // messages whose turn in line has come
	unsaid    int64               // since when something has ended that is not recorded; 0: nothing has
	partialAt int64               // when it may be worth while to record that although the range goes on
	shun      map[string]bool     // until it is read: keys whose messages (true: all, false: the ordered ones) are to wait
	fitAt     int64               // when the lengths of its lines are looked at again
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
		keyed: r.Keyed, override: r.KeyOrder, partialAt: never,
	}
}

// takeFresh starts the next message of the queue for which enough lease remains.
func (m *machine) takeFresh(si int, now instant, s *start) bool {
	for len(m.queue) > 0 {
		r := m.queue[0]
		i, ok := r.first()
		if !ok {
			m.dequeue()
			continue
		}
		if r.parted(now) {
			m.suspect(r, now)
			continue
		}
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
		if i == r.next {
			r.next++
		}
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

// first finds the message to start next: one whose turn in line has come, else the first that waits.
func (r *span) first() (int, bool) {
	for len(r.ready) > 0 {
		i := r.ready[0]
		if i < r.limit && r.state[i] == msgWaiting {
			return i, true
		}
		r.ready = r.ready[1:]
	}
	for r.next < r.limit && r.state[r.next] != msgWaiting {
		r.next++
	}
	return r.next, r.next < r.limit
}

// enqueue notes that one more message of a range waits for a worker.
func (m *machine) enqueue(r *span) {
	if r.waiting > 1 && !r.suspect && r.stale == notStale && !r.gone {
		m.queued++ // it is in the queue
		return
	}
	m.requeue()
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
	order := delivery.KeyOrder("")
	if r.order != nil {
		order = r.order[t.i]
	}
	if v != nil && v.interrupted {
		r.state[t.i] = msgGiven
		r.partial = true
		if order != "" {
			m.leaveLine(r.msgs[t.i].Key, r, nil, t.i, withdrew)
		}
		return
	}
	r.state[t.i] = msgFinished
	r.ran++
	how := passed
	if v != nil {
		// Judged even where the result is dropped: the attempt took place and is counted.
		o, due := m.outcome(t, r.msgs[t.i].ID, false, now, v)
		o.Order = order
		how = departs(&o)
		o.Parks = m.parks(&o)
		if !r.gone {
			r.outcomes = append(r.outcomes, pending{o, due})
		}
	}
	if order != "" {
		m.endedOfKey(r, r.msgs[t.i].Key)
		m.leaveLine(r.msgs[t.i].Key, r, nil, t.i, how)
	}
}

// departs says how a message with this outcome leaves its line. Behind an ordered one's death, too, nothing ordered starts until that is recorded: the next one's handler may commit its own transaction, and if the instance
// died then, the dead one would run again after it.
func departs(o *delivery.Outcome) departure {
	if o.Order == delivery.Ordered && (o.Kind == delivery.Failed || o.Kind == delivery.Delayed || o.Kind == delivery.Dead) {
		return failed
	}
	return passed
}

// parks says whether a dead letter keeps its key.
func (m *machine) parks(o *delivery.Outcome) bool {
	return m.limits.Park && o.Kind == delivery.Dead && o.Order == delivery.Ordered
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
		m.quit(r)
	} else {
		r.stale = staleSay
		m.quitLines(r)
	}
	m.requeue()
	m.kick()
}

// cut gives back what of a range is at or behind the message with this index.
func (m *machine) cut(r *span, limit int) {
	r.limit = max(limit, r.next)
	r.giveBack = true
	m.withdraw(r, func(i int) bool { return i >= r.limit })
	r.recount()
}

// quit gives back what of a range was not started.
func (m *machine) quit(r *span) {
	m.withdraw(r, func(int) bool { return true })
	m.cut(r, r.next)
}

func (r *span) recount() {
	r.waiting, r.lined, r.left = 0, 0, 0
	for i, state := range r.state {
		if i >= r.limit && state != msgRunning { // one of a line may have started before others with lower ids
			continue
		}
		switch state {
		case msgWaiting:
			r.waiting++
			r.left++
		case msgLined:
			r.lined++
			r.left++
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
	m.latest = now.mono
	m.lineUpSpan(r)
	r.recount()
	m.counts.Claimed += int64(r.waiting + r.lined)
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
// What was in line behind it may go on, unless a message of it was left.
func (m *machine) drop(r *span) {
	r.gone = true
	m.spans = slices.DeleteFunc(m.spans, func(x *span) bool { return x == r })
	m.recorded(r, r.allKeys())
	m.requeue()
}

// lose forgets a range that is not ours any longer.
func (m *machine) lose(r *span, now instant) {
	m.counts.LeaseLost++
	m.event(Event{Code: diag.LeaseLost, Kind: KindLeaseLost, Low: r.ref.Low, High: r.high}, now)
	m.latest = now.mono
	r.gone = true
	m.quitLines(r)
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
		if !r.read || r.gone || r.suspect || r.stale != notStale || r.waiting+r.lined == 0 {
			continue
		}
		spare := r.remaining(now) - m.needed(int64(min(m.plain.Timeout, timeoutCap(r.ceiling))))
		if r.lined > 0 && spare < margin/2 && r.fitAt <= now.mono {
			r.fitAt = now.mono + margin/16
			m.fitLines(r, spare/2)
		}
		rest := r.waiting + r.lined
		keep := rest
		switch {
		case m.gate.closed && !m.gate.mine && spare < margin/4:
			keep = 0
		case !m.gate.closed && spare < margin/2 && m.startable(now, spare) < before+rest:
			keep = max(m.startable(now, spare/2)-before, m.o.BatchMin-r.next, 0)
		}
		if keep < rest {
			m.counts.GivenBack += int64(rest - keep)
			m.keepOnly(r, keep)
			changed = true
		}
		before += rest
	}
	if changed {
		m.requeue()
	}
}

// keepOnly gives back all but so many of the messages of a range that were not started.
func (m *machine) keepOnly(r *span, keep int) {
	if keep == 0 {
		m.quit(r)
		return
	}
	limit := 0
	for n := 0; n < keep && limit < r.limit; limit++ {
		if s := r.state[limit]; s == msgWaiting || s == msgLined {
			n++
		}
	}
	m.cut(r, limit)
}

// fitLines gives back the ends of those lines of a range that would take longer than this, one message after the other.
func (m *machine) fitLines(r *span, within int64) {
	each := m.est.value
	if each == 0 {
		return
	}
	ahead := make(map[string]int64)
	late := make(map[int]bool)
	for i := range r.limit {
		if r.order[i] == "" || r.state[i] > msgRunning || r.state[i] == msgGiven {
			continue
		}
		key := r.msgs[i].Key
		ahead[key]++
		if r.state[i] == msgLined && i >= m.o.BatchMin && ahead[key]*each > within {
			late[i] = true
		}
	}
	if len(late) == 0 {
		return
	}
	m.counts.GivenBack += int64(len(late))
	r.giveBack = true
	m.shrink()
	m.withdraw(r, func(i int) bool { return late[i] })
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
	for _, r := range m.spans {
		if !r.read || r.gone || r.suspect || r.stale != notStale || r.waiting+r.lined == 0 {
			continue
		}
		half := r.ends(now) - m.needed(int64(min(m.plain.Timeout, timeoutCap(r.ceiling)))) - int64(m.o.QueueMargin)/2
		if half > now.mono {
			at = min(at, half)
		} else {
			at = min(at, now.mono+int64(m.o.QueueMargin)/16)
		}
	}
	return at
}
