package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Settings are what the checker has to know about a run.
type Settings struct {
	// Timeout is how long a handler may run before the product counts it as failed; zero: not judged.
	Timeout time.Duration
	// Lease is how long a lease is; zero: a run's lease is taken to have begun with the run.
	Lease time.Duration
	// Chaos says that faults were to happen, and messages to run again because of them. Without either the verdict is unknown.
	Chaos bool
}

// Check joins what was written down with what the tables hold. A nil snapshot makes the verdict unknown.
func Check(book *Book, snap *Snapshot, s Settings) *Report {
	c := &checker{s: s, book: book, intents: map[streamKey]intent{}, killed: map[string]bool{},
		r: &Report{Counts: map[Kind]int{}, Faults: map[string]int{}}}
	c.evidence()
	c.produced()
	if snap == nil {
		c.r.hole("there is no snapshot of the tables")
		snap = &Snapshot{}
	}
	runs := c.runs()
	seen := map[string]bool{}
	for i := range snap.Streams {
		s := &snap.Streams[i]
		seen[s.Name] = true
		c.gone = map[int64]bool{}
		stored := c.stored(s)
		c.order(s.Name, stored)
		c.handled(s, stored, runs)
	}
	for _, l := range book.Ledgers {
		for i := range l.Calls {
			if name := l.Calls[i].Stream; !seen[name] {
				seen[name] = true
				c.r.hole("stream %s is not in the snapshot", name)
			}
		}
		for i := range l.Runs {
			if name := l.Runs[i].Stream; !seen[name] {
				seen[name] = true
				c.r.hole("stream %s is not in the snapshot", name)
			}
		}
	}
	c.leases()
	if s.Chaos {
		if len(c.r.Faults) == 0 {
			c.r.doubt("no fault happened")
		}
		if c.r.RunAgain() == 0 {
			c.r.doubt("not one message ran again")
		}
	}
	if c.r.Confirmed == 0 {
		c.r.doubt("nothing was produced")
	}
	c.r.decide()
	return c.r
}

type checker struct {
	s       Settings
	book    *Book
	r       *Report
	intents map[streamKey]intent
	faults  []Fault // by time
	killed  map[string]bool
	gone    map[int64]bool // ids that were handled and are not stored, of the stream at hand
}

// streamKey names a message by its business id.
type streamKey struct{ stream, business string }

// intent is where a message was meant to be produced.
type intent struct {
	ledger *Ledger
	call   *Call
	index  int // in the call
}

// groupKey names a group.
type groupKey struct{ stream, group string }

// ran is one run and whose it was.
type ran struct {
	*Run
	ledger *Ledger
}

// since orders the runs of a message.
func (r ran) since() time.Time {
	if !r.Lease.IsZero() {
		return r.Lease
	}
	return r.Began
}

// evidence judges whether everything that was written down is there.
func (c *checker) evidence() {
	ledgers := map[string]*Ledger{}
	spawned := 0
	for _, l := range c.book.Ledgers {
		ledgers[l.Process.Name] = l
		c.r.Torn += l.Torn
		c.faults = append(c.faults, l.Faults...)
	}
	c.r.Processes = len(c.book.Ledgers)
	slices.SortStableFunc(c.faults, func(a, b Fault) int { return a.At.Compare(b.At) })
	for _, f := range c.faults {
		if f.isStart() {
			c.r.Faults[f.Kind]++
		}
		if f.Kind == Kill {
			c.killed[f.Target] = true
		}
	}
	for _, l := range c.book.Ledgers {
		for _, p := range l.Spawned {
			spawned++
			if ledgers[p.Name] == nil {
				c.r.hole("the ledger of process %s is missing", p.Name)
			}
			if !p.Exited {
				c.r.hole("nobody saw process %s end", p.Name)
			}
		}
		name := l.Process.Name
		switch {
		case l.Damage != "":
			c.r.hole("the ledger of process %s is damaged: %s", name, l.Damage)
		case l.Torn > 0 && !c.killed[name]:
			c.r.hole("the ledger of process %s ends in a torn record, and the process was not killed", name)
		case !l.Closed && !c.killed[name]:
			c.r.find(Finding{Kind: KindDied, Detail: "process " + name + c.status(name)})
		}
	}
	if len(c.book.Ledgers) == 0 {
		c.r.hole("there are no ledgers")
	} else if c.s.Chaos && spawned == 0 {
		c.r.hole("the ledger of the run itself, with its processes and faults, is missing")
	}
}

func (c *checker) status(name string) string {
	for _, l := range c.book.Ledgers {
		for _, p := range l.Spawned {
			if p.Name == name && p.Status != "" {
				return ": " + p.Status
			}
		}
	}
	return ""
}

// produced takes the producers' side.
func (c *checker) produced() {
	for _, l := range c.book.Ledgers {
		for i := range l.Calls {
			call := &l.Calls[i]
			n := len(call.Messages)
			c.r.Calls++
			c.r.Intended += n
			switch call.Outcome {
			case Confirmed:
				c.r.Confirmed += n
			case Refused:
				c.r.Refused += n
			case RolledBack:
				c.r.RolledBack += n
			default:
				c.r.Unknown += n
			}
			for j, m := range call.Messages {
				key := streamKey{call.Stream, m.Business}
				if _, ok := c.intents[key]; ok {
					c.r.hole("business id %s was used twice by its producers", m.Business)
				}
				c.intents[key] = intent{l, call, j}
			}
		}
	}
}

// runs sorts the handlers' side by group, message and lease: a process that was frozen may write that a run began long after others had run the message again, but its
// lease is older than theirs.
func (c *checker) runs() map[groupKey][]ran {
	all := map[groupKey][]ran{}
	for _, l := range c.book.Ledgers {
		for i := range l.Runs {
			run := &l.Runs[i]
			key := groupKey{run.Stream, run.Group}
			all[key] = append(all[key], ran{run, l})
		}
	}
	for _, list := range all {
		slices.SortStableFunc(list, func(a, b ran) int { return cmp.Or(cmp.Compare(a.ID, b.ID), a.since().Compare(b.since())) })
	}
	return all
}

// storedStream is what a stream's tables say.
type storedStream struct {
	byBusiness map[string]int64 // 0: in the inbox
	byID       map[int64]*MessageRow
	ids        []int64
}

// stored compares what is in the tables with what was produced.
func (c *checker) stored(s *StreamRows) *storedStream {
	st := &storedStream{byBusiness: map[string]int64{}, byID: map[int64]*MessageRow{}}
	for _, rows := range [][]MessageRow{s.Messages, s.Inbox} {
		for i := range rows {
			m := &rows[i]
			c.r.Stored++
			if m.ID != 0 {
				st.byID[m.ID] = m
				st.ids = append(st.ids, m.ID)
			}
			if before, twice := st.byBusiness[m.Business]; twice {
				c.r.find(Finding{Kind: KindStoredTwice, Stream: s.Name, ID: m.ID, Business: m.Business, Detail: "also " + place(before)})
				continue
			}
			st.byBusiness[m.Business] = m.ID
			c.wanted(s.Name, m)
		}
	}
	if n := len(s.Inbox); n > 0 {
		c.r.doubt("%d messages of stream %s are in the inbox still", n, s.Name)
	}
	slices.Sort(st.ids)
	next := max(s.FirstID, 1)
	for _, id := range st.ids {
		if id > next {
			c.r.find(Finding{Kind: KindGap, Stream: s.Name, ID: next, Detail: fmt.Sprintf("%d ids are missing", id-next)})
		}
		next = max(next, id+1)
	}
	c.calls(s, st)
	return st
}

func place(id int64) string {
	if id == 0 {
		return "in the inbox"
	}
	return fmt.Sprintf("under id %d", id)
}

// wanted judges whether a stored message was to be there.
func (c *checker) wanted(stream string, m *MessageRow) {
	in, ok := c.intents[streamKey{stream, m.Business}]
	f := Finding{Kind: KindInvented, Stream: stream, ID: m.ID, Business: m.Business}
	switch {
	case !ok:
		f.Detail = "stored, and nobody produced it"
	case in.call.Outcome == Refused || in.call.Outcome == RolledBack:
		f.Detail = "stored, though it was " + string(in.call.Outcome)
	case in.call.Messages[in.index].Key != m.Key:
		f.Kind, f.Detail = KindAltered, fmt.Sprintf("its key is %q, it was produced with %q", m.Key, in.call.Messages[in.index].Key)
	case in.call.Messages[in.index].Order != m.Order:
		f.Kind, f.Detail = KindAltered, fmt.Sprintf("it requests the order %q, it was produced with %q", m.Order, in.call.Messages[in.index].Order)
	default:
		if in.call.Outcome == Unknown {
			c.r.UnknownStored++
		}
		return
	}
	c.r.find(f)
}

// calls judges each call as a whole: all or nothing, in its own order, under the ids that were told. What was confirmed and is not stored is for handled to judge.
func (c *checker) calls(s *StreamRows, st *storedStream) {
	for _, l := range c.book.Ledgers {
		for i := range l.Calls {
			call := &l.Calls[i]
			if call.Stream != s.Name {
				continue
			}
			there, last := 0, int64(0)
			for j, m := range call.Messages {
				id, ok := st.byBusiness[m.Business]
				if !ok {
					continue
				}
				there++
				if id != 0 && id < last {
					c.r.find(Finding{Kind: KindOrder, Stream: s.Name, ID: id, Business: m.Business, Detail: fmt.Sprintf("its batch has id %d before it", last)})
				}
				last = max(last, id)
				if told := told(call, j); told != 0 && told != id {
					c.r.find(Finding{Kind: KindWrongID, Stream: s.Name, ID: id, Business: m.Business, Detail: fmt.Sprintf("told %d", told)})
				}
			}
			// Of a confirmed call each missing message is lost, which says more.
			if there > 0 && there < len(call.Messages) && call.Outcome == Unknown {
				c.r.find(Finding{Kind: KindSplit, Stream: s.Name, Business: call.Messages[0].Business, Detail: fmt.Sprintf("%d of %d messages are stored", there, len(call.Messages))})
			}
		}
	}
}

func told(call *Call, index int) int64 {
	if index < len(call.IDs) {
		return call.IDs[index]
	}
	return 0
}

// moment is the beginning or the confirmed end of a call.
type moment struct {
	at     time.Time
	line   int
	end    bool
	ledger *Ledger
	low    int64 // lowest and highest id that the call got
	high   int64
	name   string
}

// order judges P5: what was confirmed before another was called has the lower id. Within a process the order of its records decides, between processes the clock,
// which they share; should it have been set back meanwhile, only the former is judged.
func (c *checker) order(stream string, st *storedStream) {
	var all []moment
	sound := true
	for _, l := range c.book.Ledgers {
		var own []moment
		for i := range l.Calls {
			call := &l.Calls[i]
			if call.Stream != stream {
				continue
			}
			m := moment{at: call.Began, line: call.BeganAt, ledger: l}
			for _, msg := range call.Messages {
				id := st.byBusiness[msg.Business]
				if id == 0 {
					continue
				}
				if m.low == 0 || id < m.low {
					m.low, m.name = id, msg.Business
				}
				m.high = max(m.high, id)
			}
			if m.low == 0 {
				continue
			}
			own = append(own, m)
			if call.Outcome == Confirmed {
				m.at, m.line, m.end = call.Ended, call.EndedAt, true
				own = append(own, m)
			}
		}
		slices.SortFunc(own, func(a, b moment) int { return cmp.Compare(a.line, b.line) })
		sound = sound && slices.IsSortedFunc(own, func(a, b moment) int { return a.at.Compare(b.at) })
		all = append(all, own...)
	}
	flagged := map[string]bool{}
	sweep := func(list []moment) {
		var highest moment
		for _, m := range list {
			switch {
			case m.end && m.high > highest.high:
				highest = m
			case !m.end && m.low < highest.high && !flagged[m.name]:
				flagged[m.name] = true
				c.r.find(Finding{Kind: KindOrder, Stream: stream, ID: m.low, Business: m.name,
					Detail: fmt.Sprintf("called by %s after id %d had been confirmed to %s", m.ledger.Process.Name, highest.high, highest.ledger.Process.Name)})
			}
		}
	}
	for from := 0; from < len(all); {
		to := from
		for to < len(all) && all[to].ledger == all[from].ledger {
			to++
		}
		sweep(all[from:to])
		from = to
	}
	if sound {
		// At the same instant the beginning comes first: then neither was before the other.
		slices.SortStableFunc(all, func(a, b moment) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(b2i(a.end), b2i(b.end))) })
		sweep(all)
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
