package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// handled judges each group of a stream.
func (c *checker) handled(s *StreamRows, st *storedStream, runs map[groupKey][]ran) {
	known := map[string]bool{}
	lost := map[string]bool{}
	for i := range s.Groups {
		g := &s.Groups[i]
		known[g.Name] = true
		c.group(s, g, st, runs[groupKey{s.Name, g.Name}], lost)
	}
	for key := range runs {
		if key.stream == s.Name && !known[key.group] {
			c.r.hole("group %s of stream %s is not in the snapshot", key.group, s.Name)
		}
	}
	if len(s.Groups) == 0 {
		c.r.doubt("stream %s has no group", s.Name)
		c.missing(s, "", st, nil, lost, &GroupReport{})
	}
	slices.SortFunc(c.r.Groups, func(a, b GroupReport) int {
		return cmp.Or(cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Group, b.Group))
	})
}

// group judges one group.
func (c *checker) group(s *StreamRows, g *GroupRows, st *storedStream, runs []ran, lost map[string]bool) {
	rep := GroupReport{Stream: s.Name, Group: g.Name, Dead: len(g.Dead), Explained: map[Cause]int{}}
	dead, waits := map[int64]*DeadRow{}, map[int64]bool{}
	for i := range g.Dead {
		dead[g.Dead[i].ID] = &g.Dead[i]
	}
	for _, id := range g.Deliveries {
		waits[id] = true
	}
	finished := map[int64]bool{}
	for _, id := range g.Done {
		finished[id] = true
	}
	waiting := func(id int64) bool {
		return id > g.Claimed || waits[id] || !finished[id] && slices.ContainsFunc(g.Claims, func(x Span) bool { return x.Low < id && id <= x.High })
	}
	done := map[string]bool{} // business ids with a success
	byID := map[int64][]ran{}
	for from := 0; from < len(runs); {
		to := from
		for to < len(runs) && runs[to].ID == runs[from].ID {
			to++
		}
		byID[runs[from].ID] = runs[from:to]
		c.message(s, g, st, runs[from:to], &rep, done)
		from = to
	}
	for _, id := range st.ids {
		m := st.byID[id]
		if _, intended := c.intents[streamKey{s.Name, m.Business}]; done[m.Business] || !intended {
			continue
		}
		f := Finding{Stream: s.Name, Group: g.Name, ID: id, Business: m.Business}
		switch d := dead[id]; {
		case d != nil:
			if !slices.ContainsFunc(byID[id], func(r ran) bool { return r.Result != OK && r.Result != Delayed }) {
				f.Kind, f.Detail = KindNoCause, fmt.Sprintf("%s after %d attempts", d.Reason, d.Attempts)
				c.r.find(f)
			}
		case waiting(id):
			rep.Undelivered++
			f.Kind = KindUndelivered
			c.r.find(f)
		default:
			rep.Lost++
			if !lost[m.Business] {
				lost[m.Business] = true
				f.Kind, f.Detail = KindLost, fmt.Sprintf("stored, %d runs and no success", len(byID[id]))
				c.r.find(f)
			}
		}
	}
	c.missing(s, g.Name, st, done, lost, &rep)
	if n := len(g.Claims) + len(g.Deliveries); n > 0 {
		c.r.doubt("group %s of stream %s was not drained: %d open ranges, %d deliveries", g.Name, s.Name, len(g.Claims), len(g.Deliveries))
	}
	if len(st.ids) > 0 && g.Claimed < st.ids[len(st.ids)-1] {
		c.r.doubt("group %s of stream %s was not drained: it stands at %d of %d", g.Name, s.Name, g.Claimed, st.ids[len(st.ids)-1])
	}
	c.attempts(s, g)
	c.keys(&line{s: s, g: g, rep: &rep}, st, byID, func(id int64) state { return state{dead: dead[id], waits: waiting(id)} })
	c.r.Groups = append(c.r.Groups, rep)
}

// missing judges what was confirmed and is stored nowhere. Where it was handled before it vanished, the gap that it leaves tells.
func (c *checker) missing(s *StreamRows, group string, st *storedStream, done map[string]bool, lost map[string]bool, rep *GroupReport) {
	for _, l := range c.book.Ledgers {
		for i := range l.Calls {
			call := &l.Calls[i]
			if call.Stream != s.Name || call.Outcome != Confirmed {
				continue
			}
			for j, m := range call.Messages {
				if _, ok := st.byBusiness[m.Business]; ok || done[m.Business] {
					continue
				}
				rep.Lost++
				if lost[m.Business] {
					continue
				}
				lost[m.Business] = true
				c.r.find(Finding{Kind: KindLost, Stream: s.Name, Group: group, ID: told(call, j), Business: m.Business, Detail: "confirmed, and stored nowhere"})
			}
		}
	}
}

// message judges the runs of one id in one group.
func (c *checker) message(s *StreamRows, g *GroupRows, st *storedStream, runs []ran, rep *GroupReport, done map[string]bool) {
	var ok []ran
	rep.Runs += len(runs)
	// What is not a run of this message is judged for itself, and stands for nothing.
	runs = slices.DeleteFunc(slices.Clone(runs), func(r ran) bool { return !c.genuine(s, g, st, r) })
	for i := range runs {
		// Whether it was committed the product may not know itself; if it was, the message did not run again.
		again := slices.ContainsFunc(runs, func(later ran) bool { return later.Began.After(runs[i].Began) })
		if again && runs[i].undone() {
			runs[i].Result = Delayed
		}
	}
	for _, r := range runs {
		switch {
		case r.Ended.IsZero():
			rep.Cut++
		case r.Result == OK:
			ok = append(ok, r)
			done[r.Message.Business] = true
		case r.Result == Failed:
			rep.Failures++
		case r.Result == Delayed:
			rep.Delays++
		case r.Result == Abandoned:
			rep.Abandoned++
		case r.Result == Altered:
			c.r.find(Finding{Kind: KindAltered, Stream: s.Name, Group: g.Name, ID: r.ID, Business: r.Message.Business, Detail: "its handler saw other contents"})
		}
	}
	if len(ok) > 0 {
		rep.Handled++
	}
	for i := 1; i < len(ok); i++ {
		rep.RunAgain++
		if why := c.explain(ok[i-1], ok[i]); why != "" {
			rep.Explained[why]++
		} else {
			c.r.find(Finding{Kind: KindDuplicate, Stream: s.Name, Group: g.Name, ID: ok[i].ID, Business: ok[i].Message.Business,
				Detail: fmt.Sprintf("%v, then %v", ok[i-1], ok[i])})
		}
	}
	for j := 1; j < len(runs); j++ {
		for i := range j {
			if c.overlaps(runs[i], runs[j]) {
				c.r.find(Finding{Kind: KindOverlap, Stream: s.Name, Group: g.Name, ID: runs[j].ID, Business: runs[j].Message.Business,
					Detail: fmt.Sprintf("%v, then %v", runs[i], runs[j])})
				break
			}
		}
	}
}

// undone says that the product told of a success that it did not see committed.
func (r ran) undone() bool {
	return r.Result == OK && slices.ContainsFunc(r.ledger.Events, func(e Event) bool {
		return e.Kind == ToldAgain && e.Stream == r.Stream && e.Group == r.Group && e.Message == r.ID && !e.At.Before(r.Ended) && e.At.Before(r.Ended.Add(undoing))
	})
}

// undoing is how long a commit may take to fail.
const undoing = 5 * time.Second

func (r ran) String() string {
	return fmt.Sprintf("attempt %d by %s at %s with lease until %s", r.Attempt, r.ledger.Process.Name, clock(r.Began), clock(r.Lease))
}

func clock(t time.Time) string {
	if t.IsZero() {
		return "?"
	}
	return t.Format("15:04:05.000")
}

// genuine judges whether what was handled is what was produced; false: it is another message.
func (c *checker) genuine(s *StreamRows, g *GroupRows, st *storedStream, r ran) bool {
	f := Finding{Kind: KindInvented, Stream: s.Name, Group: g.Name, ID: r.ID, Business: r.Message.Business}
	row := st.byID[r.ID]
	in, intended := c.intents[streamKey{s.Name, r.Message.Business}]
	elsewhere, stored := st.byBusiness[r.Message.Business]
	switch {
	case !intended:
		f.Detail = "handled, and nobody produced it"
	case row != nil && row.Business != r.Message.Business:
		f.Detail = fmt.Sprintf("handled under an id that belongs to %s", row.Business)
	case row == nil && stored:
		f.Detail = fmt.Sprintf("handled under an id that does not exist; it is stored %s", place(elsewhere))
	case row == nil:
		f.Kind, f.Detail = KindGap, "it was handled and is gone"
		if r.ID < st.last() || c.gone[f.ID] {
			return true // counted with the gap, or with another run
		}
		c.gone[f.ID] = true
	case in.call.Messages[in.index].Key != r.Message.Key:
		f.Kind, f.Detail = KindAltered, fmt.Sprintf("handled with key %q", r.Message.Key)
	default:
		return true
	}
	c.r.find(f)
	return f.Kind != KindInvented
}

func (st *storedStream) last() int64 {
	if len(st.ids) == 0 {
		return 0
	}
	return st.ids[len(st.ids)-1]
}

const (
	// slack is by how much a fault may be older than its effect: it is written down before it is done.
	slack = 500 * time.Millisecond
	// settling is how long after its lease a fault can still undo a record: what was recorded last may not have reached the disk.
	settling = time.Second
)

// window is the time in which something can have kept a run's success from being recorded for good: from its claim on, as a process may be frozen between the
// product's decision to start a handler and the handler's first word, and on a busy machine waits there.
func (c *checker) window(a, b ran) (from, to time.Time) {
	from, to = c.claimed(a.Began, a.Lease).Add(-slack), b.Began
	if end := a.Lease.Add(settling); !a.Lease.IsZero() && end.Before(to) {
		to = end
	}
	return from, to
}

// claimed is when a run's message was claimed, as far as that is known.
func (c *checker) claimed(began, lease time.Time) time.Time {
	if at := lease.Add(-c.s.Lease); !lease.IsZero() && c.s.Lease > 0 && at.Before(began) {
		return at
	}
	return began
}

// explain says why a message ran again after a success; empty: nothing explains it.
func (c *checker) explain(a, b ran) Cause {
	from, to := c.window(a, b)
	name := a.ledger.Process.Name
	told := func(kind string) bool {
		return slices.ContainsFunc(a.ledger.Events, func(e Event) bool {
			return e.Kind == kind && e.Stream == a.Stream && e.Group == a.Group && e.covers(a.ID) && !e.At.Before(from)
		})
	}
	switch {
	case c.hit(from, to, func(f *Fault) bool { return f.Kind == Kill && f.Target == name }):
		return ByKill
	case c.frozen(name, from, to):
		return ByFreeze
	case c.crashed(from, to):
		return ByServer
	case c.hit(from, to, func(f *Fault) bool { return f.Kind == TerminateConn && f.Target == name }):
		return ByConnection
	case told(ToldStale) || told(ToldLeaseLost):
		return ByExpiry
	case told(ToldAbandoned) || c.s.Timeout > 0 && a.Ended.Sub(a.Began) >= c.s.Timeout:
		return ByOvertime
	}
	return ""
}

func (c *checker) hit(from, to time.Time, is func(*Fault) bool) bool {
	for i := range c.faults {
		if f := &c.faults[i]; !f.At.Before(from) && !f.At.After(to) && is(f) {
			return true
		}
	}
	return false
}

// frozen says whether a process stood still at some time between.
func (c *checker) frozen(name string, from, to time.Time) bool {
	return c.during(from, to, func(f *Fault) bool { return f.Kind == Stop && f.Target == name },
		func(f *Fault) bool { return (f.Kind == Cont || f.Kind == Kill) && f.Target == name })
}

// crashed says whether the server went down, or was down, at some time between.
func (c *checker) crashed(from, to time.Time) bool {
	return c.during(from, to, (*Fault).serverWide, func(f *Fault) bool { return f.Kind == ServerStart })
}

func (c *checker) during(from, to time.Time, begins, ends func(*Fault) bool) bool {
	since := time.Time{}
	for i := range c.faults {
		f := &c.faults[i]
		switch {
		case f.At.After(to):
			return !since.IsZero()
		case begins(f):
			since = f.At
			if !f.At.Before(from) {
				return true
			}
		case ends(f):
			if !since.IsZero() && !f.At.Before(from) {
				return true
			}
			since = time.Time{}
		}
	}
	return !since.IsZero()
}

// overlaps judges P4: a message is nobody else's while a lease on it is valid. A is the run under the older lease. What ended the lease early is excluded: the run failed or asked for a delay, so
// that the message was free to be retried; its process was leaving, and gave it back; the server forgot the lease in a crash.
func (c *checker) overlaps(a, b ran) bool {
	if a.Lease.IsZero() || !b.Began.Before(a.Lease) || b.Attempt > a.Attempt {
		return false
	}
	ended := !a.Ended.IsZero() && !a.Ended.After(b.Began)
	if ended && a.Result != OK {
		return false
	}
	if !ended && !a.ledger.Leaving.IsZero() && !a.ledger.Leaving.After(b.Began) {
		return false
	}
	return !c.crashed(c.claimed(a.Began, a.Lease).Add(-slack), b.Began)
}

// leases judges what consumers were told: a lease that is lost before its end was taken by somebody who had no right to it.
func (c *checker) leases() {
	for _, l := range c.book.Ledgers {
		for i := range l.Events {
			e := &l.Events[i]
			if e.Kind != ToldLeaseLost {
				continue
			}
			began, until := c.heldUntil(l, e)
			// Where the outcome of a call is in doubt the product counts the lease as lost.
			from := c.claimed(began, until).Add(-slack)
			if !e.At.Before(until) || c.crashed(from, e.At) ||
				c.hit(from, e.At, func(f *Fault) bool { return f.Kind == TerminateConn && f.Target == l.Process.Name }) {
				continue
			}
			c.r.find(Finding{Kind: KindStale, Stream: e.Stream, Group: e.Group, ID: max(e.Message, e.Low+1),
				Detail: fmt.Sprintf("at %s process %s was told that its lease is lost, which stood until %s", clock(e.At), l.Process.Name, clock(until))})
		}
	}
}

// heldUntil says since when and until when a process held what an event is about. If it held it more than once, which of the leases is meant cannot be told, and
// the earliest counts.
func (c *checker) heldUntil(l *Ledger, e *Event) (began, until time.Time) {
	attempt := 0
	for i := range l.Runs {
		r := &l.Runs[i]
		if r.Stream != e.Stream || r.Group != e.Group || !e.covers(r.ID) || !r.Began.Before(e.At) || r.Lease.IsZero() {
			continue
		}
		// A delivery has a lease of its own each time: the one in question is that of its latest attempt.
		if e.Message != 0 && r.Attempt > attempt {
			attempt, until = r.Attempt, time.Time{}
		}
		if r.Attempt >= attempt && (until.IsZero() || r.Lease.Before(until)) {
			began, until = r.Began, r.Lease
		}
	}
	return began, until
}

// attempts judges that no failure was recorded twice.
func (c *checker) attempts(s *StreamRows, g *GroupRows) {
	seen := map[AttemptRow]bool{}
	for _, a := range g.Attempts {
		if seen[a] {
			c.r.find(Finding{Kind: KindStale, Stream: s.Name, Group: g.Name, ID: a.ID, Detail: fmt.Sprintf("its attempt %d was recorded twice", a.Attempt)})
		}
		seen[a] = true
	}
}
