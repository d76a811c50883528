package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// state is what the tables say of a message in a group.
type state struct {
	dead  *DeadRow
	waits bool // it is not settled
}

// line is the messages of one key that must not run at once in a group.
type line struct {
	s    *StreamRows
	g    *GroupRows
	rep  *GroupReport
	list []keyed // ascending by id
}

// keyed is one of them.
type keyed struct {
	*MessageRow
	ordered bool
	runs    []ran // by lease
	dead    *DeadRow
	// settledBy is the run that settled it, through when: from then on its successors may start. Nil and zero: not known, and not yet.
	settledBy *Run
	through   time.Time
}

// keys judges P6. Whether a message is in a line follows from its key and from its order, which is the group's or its own; parallel ones wait for none, and none waits for them.
func (c *checker) keys(empty *line, st *storedStream, byID map[int64][]ran, stateOf func(int64) state) {
	lines := map[string]*line{}
	for _, id := range st.ids {
		m := st.byID[id]
		order := cmp.Or(empty.g.KeyOrder, m.Order)
		if m.Key == "" || order != Ordered && order != Exclusive {
			continue
		}
		l := lines[m.Key]
		if l == nil {
			l = &line{s: empty.s, g: empty.g, rep: empty.rep}
			lines[m.Key] = l
		}
		k := keyed{MessageRow: m, ordered: order == Ordered, runs: byID[id]}
		k.settle(stateOf(id))
		l.list = append(l.list, k)
	}
	empty.rep.Keys = len(lines)
	for _, key := range slices.Sorted(maps.Keys(lines)) {
		c.sequence(lines[key])
		c.together(lines[key])
	}
}

// settle finds out since when a message keeps none waiting: since its recorded success or its death. A success that was followed by another one was not recorded (its process died first, or its lease was lost), so the
// last one counts.
func (k *keyed) settle(s state) {
	switch {
	case s.waits:
	case s.dead != nil:
		k.dead = s.dead
		k.through = s.dead.DiedAt
		if i := len(k.runs) - 1; i >= 0 && k.runs[i].Result != OK {
			k.settledBy = k.runs[i].Run
		}
	default:
		for i := range k.runs {
			if k.runs[i].Result == OK {
				k.settledBy, k.through = k.runs[i].Run, k.runs[i].Ended
			}
		}
	}
}

// sequence judges that no ordered message starts before every lower ordered one is through.
func (c *checker) sequence(l *line) {
	var lower []*keyed
	var through time.Time // when all of lower were
	open := false         // some of them are not through
	for i := range l.list {
		k := &l.list[i]
		if !k.ordered {
			continue
		}
		for _, r := range k.runs {
			if !open && !r.Began.Before(through) || r.late() {
				continue
			}
			if before := k.overtook(r, lower); before != nil {
				c.r.find(Finding{Kind: KindKeyOrder, Stream: l.s.Name, Group: l.g.Name, ID: k.ID, Business: k.Business,
					Detail: fmt.Sprintf("key %q: %v, before id %d was through at %s", k.Key, r, before.ID, clock(before.through))})
				break
			}
		}
		lower = append(lower, k)
		open = open || k.through.IsZero()
		if k.through.After(through) {
			through = k.through
		}
	}
}

// overtook returns a lower message that a run should have waited for; nil: there is none.
func (k *keyed) overtook(r ran, lower []*keyed) *keyed {
	for _, before := range lower {
		if (before.through.IsZero() || r.Began.Before(before.through)) && !k.behind(r, before) {
			return before
		}
	}
	return nil
}

// sameLease is by how much two runs can be told different ends of one lease, as the product computes it anew from two clocks.
const sameLease = time.Millisecond

// behind says that a run followed the end of a lower message under the same lease, in one instance: that goes on in memory, and their results are recorded together or in their order. So if the lower one was
// not recorded, this one was not either.
func (k *keyed) behind(r ran, before *keyed) bool {
	var last *Run // of the lower message in this process before the run began
	for _, x := range before.runs {
		if x.ledger == r.ledger && x.Began.Before(r.Began) && (last == nil || x.Began.After(last.Began)) {
			last = x.Run
		}
	}
	if last == nil || last.Ended.IsZero() || last.Ended.After(r.Began) || last.Lease.IsZero() || last.Lease.Sub(r.Lease).Abs() > sameLease {
		return false
	}
	if last == before.settledBy {
		return true // also by a failure that was its last
	}
	return r.Run != k.settledBy && before.over(last)
}

// over says that a run was to be a message's last.
func (k *keyed) over(r *Run) bool {
	return r.Result == OK || r.Result == Terminal || k.dead != nil && r.Result == Failed && r.Attempt >= k.dead.Attempts
}

// late says that a run began after its lease, as a process may be frozen between the product's decision and the handler's first word.
func (r ran) late() bool { return !r.Lease.IsZero() && !r.Began.Before(r.Lease) }

// stretch is the time in which a run has its key for itself.
type stretch struct {
	ran
	*keyed
	until time.Time
}

// together judges that no two exclusive or ordered messages of a key run at once.
func (c *checker) together(l *line) {
	var all []stretch
	for i := range l.list {
		k := &l.list[i]
		for _, r := range k.runs {
			until, outlived := c.until(r)
			l.rep.Keyed++
			if outlived {
				l.rep.Outlived++
			}
			if !r.late() {
				all = append(all, stretch{r, k, until})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b stretch) int { return a.Began.Compare(b.Began) })
	var last stretch // the one that ends last of those before
	for _, x := range all {
		// Two runs of one message are judged by their leases.
		if last.keyed != nil && x.Began.Before(last.until) && x.keyed != last.keyed {
			c.r.find(Finding{Kind: KindKeyTogether, Stream: l.s.Name, Group: l.g.Name, ID: x.keyed.ID, Business: x.Business,
				Detail: fmt.Sprintf("key %q: %v, while id %d ran (%v)", x.Key, x.ran, last.keyed.ID, last.ran)})
		}
		if last.keyed == nil || x.until.After(last.until) {
			last = x
		}
	}
}

// until is when a run let go of its key: when it ended, or when it died with its process, and at the latest when its lease or its timeout ended. From then on others may run whether it has noticed or not: it outlived.
func (c *checker) until(r ran) (until time.Time, outlived bool) {
	if until = r.Ended; until.IsZero() {
		until = c.died(r)
	}
	for _, bound := range []time.Time{r.Lease, c.writtenOff(r)} {
		if !bound.IsZero() && (until.IsZero() || bound.Before(until)) {
			until, outlived = bound, true
		}
	}
	return until, outlived
}

// died is when a run's process was killed; zero: it was not.
func (c *checker) died(r ran) time.Time {
	for i := range c.faults {
		if f := &c.faults[i]; f.Kind == Kill && f.Target == r.ledger.Process.Name {
			return f.At
		}
	}
	return time.Time{}
}

// writtenOff is when a run that does not end counts as failed at the earliest; zero: that is not judged.
func (c *checker) writtenOff(r ran) time.Time {
	if c.s.Timeout == 0 {
		return time.Time{}
	}
	return r.Began.Add(c.s.Timeout)
}
