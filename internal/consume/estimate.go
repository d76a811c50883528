package consume

import (
	"slices"
	"time"
)

// estimate is how long a handler is expected to run. It follows a rise quickly and a fall slowly: to claim too much costs a lease, to claim
// too little only a round trip.
type estimate struct {
	value int64 // 0: nothing is known
	ages  []int64
}

func (e *estimate) sample(d int64) {
	d = max(d, 1)
	switch {
	case e.value == 0:
		e.value = d
	case d > e.value:
		e.value += (d - e.value + 1) / 2
	default:
		e.value -= (e.value - d) / 16
	}
}

// startable says how many messages the slots are expected to start within so many nanoseconds from now, those in the queue included.
//
// A slot that has run for longer than the estimate is taken to need as long again. When more than half of the slots have done so, it is not
// they that are odd but the estimate that is old. Before anything is known, only free slots count.
func (m *machine) startable(now instant, within int64) int {
	if within < 0 {
		return 0
	}
	e := &m.est
	e.ages = e.ages[:0]
	for i := range m.slots {
		if s := &m.slots[i]; s.busy {
			e.ages = append(e.ages, now.mono-s.task.began)
		}
	}
	free := len(m.slots) - len(e.ages)
	if e.value == 0 {
		return free
	}
	each := e.value
	if len(e.ages) > len(m.slots)/2 {
		slices.Sort(e.ages)
		each = max(each, e.ages[len(e.ages)-1-len(m.slots)/2])
	}
	const enough = 1 << 30
	n := min(int64(free)*(within/each+1), enough)
	for _, age := range e.ages {
		left := age
		if age <= each {
			left = each - age
		}
		if left <= within {
			n = min(n+(within-left)/each+1, enough)
		}
	}
	if len(m.retries) > 0 || m.look.dueAt <= now.mono {
		n = (n + 1) / 2
	}
	return int(n)
}

// claimSize says how many fresh messages to ask for; 0: none.
func (m *machine) claimSize(now instant) int {
	m.lowWater = -1
	if m.stop.phase != active || m.look.paused || m.gate.closed || m.upcoming(now) >= m.o.QueueSize {
		return 0
	}
	can := m.startable(now, int64(m.o.QueueMargin)/2)
	n := can - m.queued
	target := min(m.size, can)
	if n < 1 || m.queued > 0 && 2*n < target {
		// Waiting until half of a claim's size is wanted spares claims of a message each.
		m.lowWater = max(can-(target+1)/2, 0)
		return 0
	}
	return max(min(n, m.size, m.o.BatchLimit), m.o.BatchMin)
}

// linger is how long a range whose last message was started counts as one that is about to end. A longer one has a slow message in it, and
// must not keep the other slots from getting work.
const linger = int64(20 * time.Millisecond)

// upcoming counts the ranges that the queue's size bounds.
//
// Nor must one of which only lines are left: they run one message after the other. But there is an end to these, too.
func (m *machine) upcoming(now instant) int {
	n, lines := 0, 0
	for _, r := range m.spans {
		if r.stale != notStale {
			continue
		}
		switch {
		case !r.read || r.suspect || r.waiting > 0 || r.left > 0 && r.lined == 0 && now.mono-r.lastStart < linger:
			n++
		case r.lined > 0:
			lines++
		}
	}
	if lines > 2*m.o.QueueSize {
		return m.o.QueueSize
	}
	return n
}

// grow adjusts the size of the next claim to one that was filled.
func (m *machine) grow(asked int) { m.size = min(2*asked, m.o.BatchLimit) }

func (m *machine) shrink() {
	m.size = max(1, min(m.size, max(m.lastAsk, 1))/2)
}
