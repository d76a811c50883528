package consume

import (
	"maps"
	"slices"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

// line is what is held here of one key whose messages wait for each other: those that have not ended, in the order in which they may run.
//
// It outlives its places while the store does not know what became of one. Until a success is recorded, its range could be taken over by somebody who runs
// the message again: so the key's next message of another range starts only then. And a range that was claimed before the store learnt that one has failed,
// or was given back, may still bring messages of the key here; they wait in the store instead.
type line struct {
	key        string
	places     []place
	unrecorded []*span  // hold a message of the key that ended well
	broken     []breach // hold one that did not
}

// place is where a message of a line is held.
type place struct {
	span    *span
	parcel  *parcel
	i       int
	ordered bool
}

// breach is a range with a message that those behind it in the line must not pass: the ordered ones after a failure, all after it was left or given back.
type breach struct {
	span *span
	all  bool
}

// departure is how a message leaves its line.
type departure int

const (
	passed   departure = iota // the next may follow
	failed                    // the ordered ones behind it must wait
	withdrew                  // it has not ended: all behind it must wait
)

func (p place) state() *uint8 {
	if p.parcel != nil {
		return &p.parcel.items[p.i].state
	}
	return &p.span.state[p.i]
}

func (p place) in(r *span, q *parcel) bool { return p.span == r && p.parcel == q }

// lineUp gives a message its place at the end of its key's line. It says false if one before it does not let it pass.
func (m *machine) lineUp(key string, p place) bool {
	l := m.lineOf(key)
	if slices.ContainsFunc(l.broken, func(b breach) bool { return b.all || p.ordered }) {
		return false
	}
	l.places = append(l.places, p)
	if len(l.places) > 1 || !l.free(p) {
		*p.state() = msgLined
	}
	return true
}

// lineOf returns the line of a key, a new one if there is none.
func (m *machine) lineOf(key string) *line {
	l := m.lines[key]
	if l == nil {
		l = &line{key: key}
		m.lines[key] = l
	}
	return l
}

// free says that nothing outside the range of the first place is still to be recorded.
func (l *line) free(p place) bool {
	return !slices.ContainsFunc(l.unrecorded, func(r *span) bool { return r != p.span })
}

// leaveLine takes a message out of its line, and lets the next one start or sets those behind it waiting.
func (m *machine) leaveLine(key string, r *span, q *parcel, i int, how departure) {
	l := m.lines[key]
	if l == nil {
		return
	}
	at := slices.IndexFunc(l.places, func(p place) bool { return p.in(r, q) && p.i == i })
	if at < 0 {
		return // its range was left
	}
	behind := slices.Clone(l.places[at+1:])
	l.places = slices.Delete(l.places, at, at+1)
	switch {
	case how == passed && r != nil:
		if !slices.Contains(l.unrecorded, r) {
			l.unrecorded = append(l.unrecorded, r)
		}
	case how != passed:
		if r != nil {
			l.breaks(r, how == withdrew)
		}
		for _, p := range behind {
			if p.ordered || how == withdrew {
				m.park(l, p)
			}
		}
	}
	m.advance(l)
}

func (l *line) breaks(r *span, all bool) {
	for i := range l.broken {
		if l.broken[i].span == r {
			l.broken[i].all = l.broken[i].all || all
			return
		}
	}
	l.broken = append(l.broken, breach{r, all})
}

// advance lets the first of a line start, if it may.
func (m *machine) advance(l *line) {
	if len(l.places) == 0 {
		if len(l.unrecorded)+len(l.broken) == 0 {
			delete(m.lines, l.key)
		}
		return
	}
	p := l.places[0]
	if *p.state() != msgLined {
		return
	}
	if !l.free(p) {
		for _, r := range l.unrecorded {
			if r != p.span {
				m.recordSoon(r)
			}
		}
		return
	}
	*p.state() = msgWaiting
	m.lined--
	if q := p.parcel; q != nil {
		q.lined--
		q.waiting++
		q.ready = append(q.ready, p.i)
		m.requeueRetries()
	} else {
		r := p.span
		r.lined--
		r.waiting++
		r.ready = append(r.ready, p.i)
		m.enqueue(r)
	}
	m.wake(1)
}

// park ends a message that must not pass one before it: it will wait in the store. It never runs at this moment, as only the first of a line does.
func (m *machine) park(l *line, p place) {
	at := slices.IndexFunc(l.places, func(x place) bool { return x.in(p.span, p.parcel) && x.i == p.i })
	if at < 0 || *p.state() == msgRunning {
		return
	}
	l.places = slices.Delete(l.places, at, at+1)
	if q := p.parcel; q != nil {
		it := &q.items[p.i]
		if it.state == msgLined {
			q.lined--
			m.lined--
		} else {
			q.waiting--
		}
		it.state = msgFinished
		m.counts.Waiting++
		m.settleItem(q, pending{Outcome: delivery.Outcome{ID: it.ID, Kind: delivery.Waits}})
		m.requeueRetries()
		m.flushSoon()
		return
	}
	r := p.span
	if r.state[p.i] == msgLined {
		r.lined--
		m.lined--
	} else {
		r.waiting--
	}
	r.left--
	m.setWaiting(r, p.i)
	m.requeue()
	if r.left == 0 {
		m.kick()
	}
}

// setWaiting gives a message of a range that is in no line the outcome that it waits in the store.
func (m *machine) setWaiting(r *span, i int) {
	msg := &r.msgs[i]
	r.state[i] = msgFinished
	m.counts.Waiting++
	r.outcomes = append(r.outcomes, pending{Outcome: delivery.Outcome{ID: msg.ID, Kind: delivery.Waits, Key: msg.Key, Order: r.order[i]}})
	if r.order[i] == delivery.Ordered {
		// Until the store knows that it waits, it does not set waiting what is claimed behind it: the one before it may be recorded as dead by then.
		m.lineOf(msg.Key).breaks(r, false)
	}
	m.endedOfKey(r, msg.Key)
}

// endedOfKey counts down the messages of a key in a range. What has ended is recorded soon, though the range goes on.
func (m *machine) endedOfKey(r *span, key string) {
	r.keys[key]--
	if r.keys[key] == 0 {
		r.free = append(r.free, key)
	}
	m.unsaidEnd(r)
}

// recorded lets go of a range in the lines of these keys, because the store knows what became of its messages of them.
func (m *machine) recorded(r *span, keys []string) {
	for _, key := range keys {
		l := m.lines[key]
		if l == nil {
			continue
		}
		l.unrecorded = slices.DeleteFunc(l.unrecorded, func(x *span) bool { return x == r })
		for _, b := range l.broken {
			if b.span == r {
				m.shun(key, b.all)
			}
		}
		l.broken = slices.DeleteFunc(l.broken, func(b breach) bool { return b.span == r })
		m.advance(l)
	}
}

// shun marks a key in the ranges that were claimed and are not read, and in the one that a call may bring which is out: what they bring of it must wait, although
// the store did not know that when it handed them out.
func (m *machine) shun(key string, all bool) {
	mark := func(keys *map[string]bool) {
		if *keys == nil {
			*keys = make(map[string]bool)
		}
		(*keys)[key] = (*keys)[key] || all
	}
	for _, x := range m.spans {
		if !x.read && !x.gone {
			mark(&x.shun)
		}
	}
	if m.calls.out || m.calls.inDoubt != nil {
		mark(&m.calls.shun)
	}
}

// shuns says whether a message of a range that has been read must wait.
func (r *span) shuns(key string, ordered bool) bool {
	all, ok := r.shun[key]
	return ok && (all || ordered)
}

// lineUpSpan finds the messages of a range that hold their keys, and gives each its place.
func (m *machine) lineUpSpan(r *span) {
	if !r.keyed {
		return
	}
	m.keyed = true
	r.order = make([]delivery.KeyOrder, len(r.msgs))
	r.keys = make(map[string]int)
	for i := range r.msgs {
		if r.state[i] != msgWaiting {
			continue
		}
		if o := m.orderOf(r, &r.msgs[i]); o.InLine() {
			r.order[i] = o
			r.keys[r.msgs[i].Key]++
		}
	}
	for i := range r.msgs {
		if r.order[i] == "" {
			continue
		}
		key, ordered := r.msgs[i].Key, r.order[i] == delivery.Ordered
		switch {
		case r.shuns(key, ordered) || !m.lineUp(key, place{span: r, i: i, ordered: ordered}):
			m.setWaiting(r, i)
		case r.state[i] == msgLined:
			m.lined++
		}
	}
	r.shun = nil
}

// orderOf is the order of a message of a range, by the group's order at its claim.
func (m *machine) orderOf(r *span, msg *delivery.Message) delivery.KeyOrder {
	if msg.Key == "" {
		return ""
	}
	if r.override != "" {
		return r.override
	}
	if len(msg.Options) == 0 {
		return ""
	}
	m.policy(msg)
	return m.parsedOrder
}

// withdraw takes messages of a range that were not started, those for which it is asked, out of their lines: they are given back, and so is the key to
// whoever gets them. Of each key they must be the last ones of the range.
func (m *machine) withdraw(r *span, asked func(i int) bool) {
	if r.order == nil {
		return
	}
	affected := make(map[string]bool)
	for i := range r.msgs {
		if r.order[i] == "" || !asked(i) || r.state[i] != msgLined && r.state[i] != msgWaiting {
			continue
		}
		if r.state[i] == msgLined {
			m.lined--
		}
		r.state[i] = msgGiven
		affected[r.msgs[i].Key] = true
	}
	for _, key := range slices.Sorted(maps.Keys(affected)) {
		m.breakLine(key, r, func(p place) bool { return *p.state() == msgGiven })
	}
	if len(affected) > 0 {
		// They may lie below the limit, where all others end with an outcome.
		r.partial = true
		r.recount()
		m.requeue()
	}
}

// breakLine takes places of a range out of a line; what is behind the range waits.
func (m *machine) breakLine(key string, r *span, leaves func(place) bool) {
	l := m.lines[key]
	if l == nil {
		return
	}
	l.breaks(r, true)
	last := -1
	for at, p := range l.places {
		if p.span == r {
			last = at
		}
	}
	behind := slices.Clone(l.places[last+1:])
	l.places = slices.DeleteFunc(l.places, func(p place) bool { return p.span == r && leaves(p) })
	for _, p := range behind {
		m.park(l, p)
	}
	m.advance(l)
}

// quitLines takes a range out of all its lines: nothing of it will be recorded by us. What is behind it waits.
func (m *machine) quitLines(r *span) {
	for _, key := range r.allKeys() {
		if l := m.lines[key]; l != nil {
			l.unrecorded = slices.DeleteFunc(l.unrecorded, func(x *span) bool { return x == r })
			m.breakLine(key, r, func(place) bool { return true })
		}
	}
	m.lined -= r.lined
	r.lined = 0
	for i := range r.state {
		if r.state[i] == msgLined {
			r.state[i] = msgGiven
		}
	}
}

// allKeys are the keys that a range held when it was read.
func (r *span) allKeys() []string { return slices.Sorted(maps.Keys(r.keys)) }
