package ledger

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Verdict is what a check comes to.
type Verdict string

// What a check can come to.
const (
	Pass       Verdict = "pass"
	Fail       Verdict = "fail"
	NotDecided Verdict = "unknown"
)

// Kind is a way in which ledgers and tables can disagree.
type Kind string

// The kinds of findings. All but KindUndelivered are broken promises.
const (
	KindLost        Kind = "lost"                    // confirmed or stored, and neither handled nor dead nor waiting
	KindInvented    Kind = "invented"                // stored or handled, and not produced
	KindAltered     Kind = "altered"                 // not what was produced
	KindStoredTwice Kind = "stored twice"            // one business id under two ids
	KindSplit       Kind = "split batch"             // a part of a call is stored
	KindWrongID     Kind = "told a wrong id"         // confirmed under an id that it does not have
	KindGap         Kind = "gap in ids"              // an id that is not there, with higher ones that are
	KindOrder       Kind = "out of order"            // produced later, under a lower id
	KindKeyOrder    Kind = "out of key order"        // an ordered key's message ran before a lower one was through
	KindKeyTogether Kind = "two of a key at once"    // an exclusive or ordered message ran while another one of its key did
	KindOverlap     Kind = "run under a valid lease" // run while another run's lease on the message was valid
	KindStale       Kind = "recorded by stale lease" // a lease vanished before its end, or a failure was recorded twice
	KindNoCause     Kind = "dead without cause"      // a dead letter of a message that never failed
	KindDuplicate   Kind = "run again unexplained"   // handled again, and nothing that happened explains it
	KindDied        Kind = "died by itself"          // a process that ended without having been killed
	KindUndelivered Kind = "undelivered"             // still waiting: the check is not complete
)

// kinds are all of them, in the order of the report.
func kinds() []Kind {
	return []Kind{KindLost, KindInvented, KindAltered, KindStoredTwice, KindSplit, KindWrongID, KindGap, KindOrder, KindKeyOrder, KindKeyTogether, KindOverlap, KindStale, KindNoCause,
		KindDuplicate, KindDied, KindUndelivered}
}

// Cause explains why a message was handled again.
type Cause string

// What explains that a message was handled again: something that happened between the start of one run and the start of the next, while the first one's lease
// stood or within a second after it.
const (
	ByKill       Cause = "its process was killed"
	ByFreeze     Cause = "its process was frozen past its lease"
	ByServer     Cause = "the server crashed"
	ByConnection Cause = "its connection was cut"
	ByExpiry     Cause = "its lease ran out" // and the product said so
	ByOvertime   Cause = "it outlived its timeout"
)

// Finding is one disagreement.
type Finding struct {
	Kind          Kind
	Stream, Group string
	ID            int64
	Business      string
	Detail        string
}

func (f Finding) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:", f.Kind)
	for _, part := range []struct{ name, value string }{{"stream", f.Stream}, {"group", f.Group}, {"message", f.Business}} {
		if part.value != "" {
			fmt.Fprintf(&b, " %s %s", part.name, part.value)
		}
	}
	if f.ID != 0 {
		fmt.Fprintf(&b, " id %d", f.ID)
	}
	if f.Detail != "" {
		fmt.Fprintf(&b, " (%s)", f.Detail)
	}
	return b.String()
}

// GroupReport is what happened in one group.
type GroupReport struct {
	Stream, Group string
	Handled       int // messages with a success
	Runs          int // handlers started
	Failures      int // runs that ended in an error that is retried
	Delays        int
	Abandoned     int
	Cut           int // runs that had no end, because their process had one
	RunAgain      int // successes beyond the first of a message
	Dead          int
	Lost          int
	Undelivered   int
	Keys          int           // with messages that must not run at once
	Keyed         int           // runs of such messages
	Outlived      int           // of Keyed, runs that were not over when their lease or their timeout ended: from then on they are not judged
	Explained     map[Cause]int // of RunAgain
}

// Report is what a check found.
type Report struct {
	Verdict   Verdict
	Reasons   []string // why it is unknown
	Counts    map[Kind]int
	Findings  []Finding // the first of each kind
	Processes int
	Torn      int // records without an end
	Faults    map[string]int

	Calls, Intended, Confirmed, Refused, Unknown, RolledBack int // of messages, but for Calls
	UnknownStored                                            int // of Unknown, what turned out to be stored
	Stored                                                   int
	Groups                                                   []GroupReport

	incomplete bool // the evidence has a hole, so no finding can be trusted either
}

// keep is how many findings of a kind are listed; all are counted.
const keep = 10

func (r *Report) find(f Finding) {
	r.Counts[f.Kind]++
	if r.Counts[f.Kind] <= keep {
		r.Findings = append(r.Findings, f)
	}
}

// doubt notes why the verdict cannot be pass.
func (r *Report) doubt(format string, args ...any) {
	r.Reasons = append(r.Reasons, fmt.Sprintf(format, args...))
}

// hole notes that evidence is missing.
func (r *Report) hole(format string, args ...any) {
	r.incomplete = true
	r.doubt(format, args...)
}

func (r *Report) decide() {
	broken := false
	for kind, n := range r.Counts {
		broken = broken || n > 0 && kind != KindUndelivered
	}
	switch {
	case r.incomplete:
		r.Verdict = NotDecided
	case broken:
		r.Verdict = Fail
	case len(r.Reasons) > 0 || r.Counts[KindUndelivered] > 0:
		r.Verdict = NotDecided
	default:
		r.Verdict = Pass
	}
}

// RunAgain is how many successes there were beyond the first of each message and group.
func (r *Report) RunAgain() (n int) {
	for _, g := range r.Groups {
		n += g.RunAgain
	}
	return n
}

// Dead is how many dead letters there are.
func (r *Report) Dead() (n int) {
	for _, g := range r.Groups {
		n += g.Dead
	}
	return n
}

// String is the whole report, for people.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "processes        %d, %d records torn\n", r.Processes, r.Torn)
	fmt.Fprintf(&b, "faults           %s\n", orNone(list(r.Faults)))
	fmt.Fprintf(&b, "produced         %d messages in %d calls: %d confirmed, %d refused, %d rolled back, %d unknown (%d of them stored); %d stored\n",
		r.Intended, r.Calls, r.Confirmed, r.Refused, r.RolledBack, r.Unknown, r.UnknownStored, r.Stored)
	for _, g := range r.Groups {
		fmt.Fprintf(&b, "group %-10s handled %d in %d runs: %d failed, %d delayed, %d abandoned, %d cut off; %d dead; %d run again%s\n",
			g.Group, g.Handled, g.Runs, g.Failures, g.Delays, g.Abandoned, g.Cut, g.Dead, g.RunAgain, because(g.Explained))
		if g.Keys > 0 {
			fmt.Fprintf(&b, "                 %d runs of %d keys in line, %d of which outlived lease or timeout\n", g.Keyed, g.Keys, g.Outlived)
		}
	}
	for _, kind := range kinds() {
		fmt.Fprintf(&b, "%-24s %d\n", kind, r.Counts[kind])
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "  %s\n", f)
	}
	for _, reason := range r.Reasons {
		fmt.Fprintf(&b, "not decided: %s\n", reason)
	}
	fmt.Fprintf(&b, "verdict          %s\n", r.Verdict)
	return b.String()
}

func because(explained map[Cause]int) string {
	if text := list(explained); text != "" {
		return " (" + text + ")"
	}
	return ""
}

func list[K ~string](counts map[K]int) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", string(k), counts[k]))
	}
	return strings.Join(parts, ", ")
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
