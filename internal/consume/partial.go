package consume

import (
	"slices"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

// What has ended in a range that holds keys is recorded although the range goes on, because the keys' next messages may wait for it, here or on another instance: after
// partialAfter if the range will take partialWorth or more from then on, and after partialAtLast in any case. It costs a call, and a row for each message above the first that has not
// ended; so a range that is about to end is recorded as a whole.
const (
	partialAfter  = int64(20 * time.Millisecond)
	partialWorth  = int64(100 * time.Millisecond)
	partialAtLast = int64(250 * time.Millisecond)
)

// partialSent is a partial record that is on its way.
type partialSent struct {
	span     *span
	ref      delivery.RangeRef
	prefix   int64
	outcomes []int64 // ids
	done     []int   // indexes of what gets marks
	keys     []string
}

// recordSoon has what has ended in a range recorded at once, if that is worth while: a message of another range of ours waits for it.
func (m *machine) recordSoon(r *span) {
	if r.unsaid != 0 && r.partialAt > m.latest && m.takes(r) >= partialWorth {
		r.partialAt = m.latest
		m.kick()
	}
}

// unsaidEnd notes that something has ended in a range that is not recorded.
func (m *machine) unsaidEnd(r *span) {
	if r.unsaid == 0 {
		r.unsaid = max(m.latest, 1)
		r.partialAt = r.unsaid + partialAfter
		m.kick()
	}
}

// takes is how long a range is expected to go on: its messages share the slots, but for the longest line.
func (m *machine) takes(r *span) int64 {
	longest := 0
	for _, left := range r.keys {
		longest = max(longest, left)
	}
	return m.est.value * int64(max(longest, (r.left+len(m.slots)-1)/len(m.slots)))
}

// partialDue says whether a range is to be recorded in part.
func (m *machine) partialDue(r *span, now instant) bool {
	if r.partialAt > now.mono || !r.read || r.gone || r.sent || r.suspect || r.stale != notStale {
		return false
	}
	if last := r.unsaid + partialAtLast; last > now.mono && m.takes(r) < partialWorth {
		r.partialAt = last
		return false
	}
	return true
}

// partial makes the record of what has ended in a range. It says false if that sets no key free and tells of nothing that has failed.
func (m *machine) partial(r *span, now instant) (delivery.Partial, partialSent, bool) {
	r.unsaid, r.partialAt = 0, never
	first := 0
	for first < len(r.msgs) && r.state[first] >= msgFinished {
		first++
	}
	p := delivery.Partial{RangeRef: r.ref, Prefix: r.ref.Low, Keys: slices.Clone(r.free)}
	if first > 0 && first < len(r.msgs) {
		p.Prefix = max(p.Prefix, r.msgs[first].ID-1)
	}
	sent := partialSent{span: r, ref: r.ref, prefix: p.Prefix, keys: p.Keys}
	for _, o := range r.outcomes {
		if o.Order == "" && o.ID > p.Prefix {
			continue // nobody waits for it
		}
		out := o.Outcome
		out.DueIn = dueIn(o.due, now)
		p.Outcomes = append(p.Outcomes, out)
		sent.outcomes = append(sent.outcomes, o.ID)
	}
	if len(p.Keys) == 0 && len(p.Outcomes) == 0 {
		return p, sent, false
	}
	for i := first; i < len(r.msgs); i++ {
		if r.state[i] == msgFinished && r.order[i] != "" {
			p.Done = append(p.Done, r.msgs[i].ID)
			sent.done = append(sent.done, i)
		}
	}
	return p, sent, true
}

// partialDone takes the confirmation of a partial record.
func (m *machine) partialDone(s *partialSent) {
	r := s.span
	r.sent = false
	r.ref.Low = max(r.ref.Low, s.prefix)
	n := 0 // of those that were sent, which are in the same order
	r.outcomes = slices.DeleteFunc(r.outcomes, func(o pending) bool {
		if n < len(s.outcomes) && o.ID == s.outcomes[n] {
			n++
			return true
		}
		return false
	})
	for _, i := range s.done {
		r.state[i] = msgSkipped // it has its mark
	}
	r.free = r.free[len(s.keys):]
	m.recorded(r, s.keys)
	if r.left == 0 {
		m.kick()
	}
}
