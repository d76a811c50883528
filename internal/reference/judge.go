package reference

import (
	"fmt"
	"slices"
)

// Rule is what a trace can break.
type Rule string

// The rules.
const (
	Invented   Rule = "invented"     // what runs was produced
	Twice      Rule = "twice"        // a message never runs twice at once
	Overlap    Rule = "overlap"      // exclusive and ordered ones of a key never overlap
	Sequence   Rule = "sequence"     // an ordered one starts when every lower ordered one of its key has a recorded success or is dead
	Counted    Rule = "counted"      // the number of an attempt is the recorded failures plus one; what has ended does not run again
	Unexcused  Rule = "unexcused"    // a message runs again unrecorded only if its instance died or lost its hold
	Flagged    Rule = "flagged"      // what is redriven after its successors went on is told so, and nothing else is
	Lost       Rule = "lost"         // every message has an outcome
	WrongEnd   Rule = "wrong end"    // namely the one that its script leads to
	Waits      Rule = "waits"        // a message waits in the end only for a dead one that parks its key
	Unfinished Rule = "unfinished"   // a handler whose instance lives ends
	Uncounted  Rule = "uncounted"    // what was passed over, because it had been removed, is counted
	Buried     Rule = "not yet dead" // only what is dead is redriven or discarded
)

// Violation is a rule that a history broke.
type Violation struct {
	Rule     Rule
	At       int // place in the trace; -1: at the end
	Messages []string
	Text     string
}

func (v Violation) String() string { return fmt.Sprintf("%s (event %d): %s", v.Rule, v.At, v.Text) }

// judge is a trace under examination.
type judge struct {
	plan  *Plan
	trace *Trace
	final *Final

	lives   map[string]*life
	keys    map[string][]*life // in the order of the plan
	spans   map[int]*span
	open    []*span
	starts  map[string][]*span
	gone    map[int]int // instances: since when
	deaths  int
	excused map[hold]bool
	found   []Violation
}

// hold is an instance's hold on a message.
type hold struct {
	instance int
	message  string
}

// Judge returns what a history that was played broke. A nil final is not looked at.
func Judge(p *Plan, t *Trace, final *Final) []Violation {
	j := &judge{
		plan: p, trace: t, final: final, lives: make(map[string]*life), keys: make(map[string][]*life), spans: make(map[int]*span),
		starts: make(map[string][]*span), gone: make(map[int]int), excused: make(map[hold]bool),
	}
	losses := j.survey()
	for i := range p.Messages {
		m := &p.Messages[i]
		l := &life{message: m, place: i, order: p.OrderOf(m), most: p.attemptsOf(m), number: 1, states: []state{{}}, losses: losses[m.Name] + j.deaths}
		j.lives[m.Name] = l
		if m.Key != "" {
			j.keys[m.Key] = append(j.keys[m.Key], l)
		}
	}
	for i := range t.Events {
		j.replay(i)
	}
	j.lastRuns()
	if final != nil {
		j.ends()
	}
	return j.found
}

func (j *judge) broke(rule Rule, at int, messages []string, format string, args ...any) {
	j.found = append(j.found, Violation{rule, at, messages, fmt.Sprintf(format, args...)})
}

// survey looks at what is only known afterwards: when runs end, and who loses holds. It returns how many holds on each message were.
func (j *judge) survey() map[string]int {
	losses := make(map[string]int)
	for i, e := range j.trace.Events {
		switch e.Kind {
		case Started:
			j.spans[e.Run] = &span{Event: e, from: i, to: len(j.trace.Events)}
		case Ended:
			s := j.spans[e.Run]
			s.to, s.ended, s.act, s.late = i, true, e.Act, e.Late
		case Died, CutOff:
			j.deaths++
			j.gone[e.Instance] = i
			for _, s := range j.spans {
				if e.Kind == Died && s.Instance == e.Instance && !s.ended {
					s.to = i
				}
			}
		case Excused:
			j.excused[hold{e.Instance, e.Message}] = true
			losses[e.Message]++
		case Sent, Redriven, Discarded, Removed:
		}
	}
	return losses
}

// replay takes the event at a place.
func (j *judge) replay(at int) {
	e := j.trace.Events[at]
	switch e.Kind {
	case Started:
		j.start(at, j.spans[e.Run])
	case Ended:
		j.close(func(s *span) bool { return s.Run == e.Run })
	case Sent:
		s := j.spans[e.Run]
		s.sent = true
		if l := j.lives[e.Message]; l != nil && l.latest == s {
			l.records(s.act, !j.trace.Strict && j.doomed(s, len(j.trace.Events)))
		}
	case Died:
		j.close(func(s *span) bool { return s.Instance == e.Instance })
	case Redriven, Discarded:
		j.operate(at, e)
	case Removed:
		if l := j.lives[e.Message]; l != nil {
			l.removed = true
		}
	case CutOff, Excused:
	}
}

func (j *judge) close(which func(*span) bool) { j.open = slices.DeleteFunc(j.open, which) }

// doomed says whether what a run did may be lost: its instance is gone at a place of the trace, or has lost the hold at any time.
func (j *judge) doomed(s *span, at int) bool {
	since, gone := j.gone[s.Instance]
	return gone && since < at || j.excused[hold{s.Instance, s.Message}] || s.late
}

func (j *judge) start(at int, s *span) {
	l := j.lives[s.Message]
	if l == nil {
		j.broke(Invented, at, []string{s.Message}, "%s was never produced", s.Message)
		return
	}
	j.alone(at, l, s)
	if before := l.latest; before != nil && before.ended && !before.sent && !j.doomed(before, at) {
		j.broke(Unexcused, at, []string{s.Message}, "run %d of %s ended and was not recorded, and its instance lives", before.Run, s.Message)
	}
	if instead := l.starts(s.Attempt); instead != "" {
		j.broke(Counted, at, []string{s.Message}, "attempt %d of %s starts, possible were %s", s.Attempt, s.Message, instead)
	} else if !s.Aside && s.Attempt != 1 {
		j.broke(Counted, at, []string{s.Message}, "attempt %d of %s on the main line", s.Attempt, s.Message)
	}
	j.flag(at, l, s)
	j.sequence(at, l, s)
	l.latest = s
	j.open = append(j.open, s)
	j.starts[s.Message] = append(j.starts[s.Message], s)
}

// alone checks that nothing runs beside a message that must not.
func (j *judge) alone(at int, l *life, s *span) {
	for _, other := range j.open {
		switch o := j.lives[other.Message]; {
		case other.late || s.late || o == nil:
		case o == l:
			j.broke(Twice, at, []string{s.Message}, "%s starts on i%d while it runs on i%d", s.Message, s.Instance, other.Instance)
		case l.order.inLine() && o.order.inLine() && l.message.Key == o.message.Key:
			j.broke(Overlap, at, []string{s.Message, other.Message}, "%s (%s) starts on i%d while %s (%s) of its key runs on i%d", s.Message, l.order, s.Instance, other.Message, o.order, other.Instance)
		}
	}
}

// flag checks what the handler is told of the order.
func (j *judge) flag(at int, l *life, s *span) {
	if s.OutOfOrder && (l.order != Ordered || l.number == 1 || j.plan.Park) {
		j.broke(Flagged, at, []string{s.Message}, "%s is said to be out of order: %s, life %d, park %v", s.Message, l.order, l.number, j.plan.Park)
	}
	if s.OutOfOrder || !l.passed {
		return
	}
	for _, other := range j.keys[l.message.Key] {
		// Since when it is redriven is passed over: who started before this run, did so before the redrive or beside it.
		if other.order == Ordered && other.place > l.place && l.wentOn(other) {
			j.broke(Flagged, at, []string{s.Message, other.message.Name}, "%s runs after %s without a word", s.Message, other.message.Name)
			return
		}
	}
}

// wentOn says whether a successor had started when this one was redriven.
func (l *life) wentOn(successor *life) bool { return slices.Contains(l.successors, successor) }

// sequence checks that every lower ordered message of the key is done with.
func (j *judge) sequence(at int, l *life, s *span) {
	if l.order != Ordered || l.passed {
		return
	}
	resolved := func(s state) bool { return s.end == succeeded || s.end == discarded || s.dead() && !j.plan.Park }
	for _, lower := range j.keys[l.message.Key] {
		if lower.place >= l.place {
			return
		}
		if lower.order != Ordered || lower.passed || lower.removed || lower.any(resolved) {
			continue
		}
		if before := lower.latest; before != nil && before.ended && before.Lease == s.Lease && lower.pending(resolved) {
			continue // in one line, what has ended is recorded together with what follows
		}
		if before := lower.latest; before != nil && before.late {
			continue
		}
		j.broke(Sequence, at, []string{s.Message, lower.message.Name}, "%s starts before %s is done with: %v", s.Message, lower.message.Name, lower.possible())
	}
}

func (j *judge) operate(at int, e Event) {
	l := j.lives[e.Message]
	if l == nil {
		j.broke(Invented, at, []string{e.Message}, "%s was never produced", e.Message)
		return
	}
	if !l.any(state.dead) {
		j.broke(Buried, at, []string{e.Message}, "%s is %s, possible are %v", e.Message, e.Kind, l.possible())
	}
	if e.Kind == Discarded {
		l.states = []state{{end: discarded}}
		return
	}
	l.reborn()
	l.passed = l.order == Ordered && !j.plan.Park
	l.successors = nil
	for _, other := range j.keys[l.message.Key] {
		if other.order == Ordered && other.place > l.place && len(j.starts[other.message.Name]) > 0 {
			l.successors = append(l.successors, other)
		}
	}
}

// lastRuns: what runs again runs again in order, so the last runs are in order.
func (j *judge) lastRuns() {
	for _, line := range j.keys {
		var before *span
		for _, l := range line {
			if l.order != Ordered {
				continue
			}
			last := j.lastOf(l)
			if last == nil || l.removed && !last.sent { // removed before it could run again
				continue
			}
			if before != nil && last.from < before.to && !last.late && !before.late {
				j.broke(Sequence, last.from, []string{last.Message, before.Message}, "the last run of %s, %d, is not behind that of %s, %d", last.Message, last.Run, before.Message, before.Run)
			}
			if before == nil || last.to > before.to {
				before = last
			}
		}
	}
	for _, s := range j.spans {
		if _, gone := j.gone[s.Instance]; !s.ended && !gone {
			j.broke(Unfinished, s.from, []string{s.Message}, "run %d of %s has no end", s.Run, s.Message)
		}
	}
}

// lastOf is the last run that has a place in the order.
func (j *judge) lastOf(l *life) (last *span) {
	for _, s := range j.starts[l.message.Name] {
		if s.Life == 1 || j.plan.Park {
			last = s
		}
	}
	return last
}

// ends compares what the store holds in the end.
func (j *judge) ends() {
	superseded := 0
	for i := range j.plan.Messages {
		name := j.plan.Messages[i].Name
		l := j.lives[name]
		letter, dead := j.final.Dead[name]
		switch {
		case slices.Contains(j.final.Open, name):
			j.broke(Lost, -1, []string{name}, "%s has no outcome: %v", name, l.possible())
		case slices.Contains(j.final.Waiting, name):
			if !j.final.parks(j.plan, name) {
				j.broke(Waits, -1, []string{name}, "%s waits, and nothing parks its key", name)
			}
		case dead:
			want := state{failures: letter.Attempts, end: "dead: " + letter.Reason}
			if !slices.Contains(l.possible(), want) {
				j.broke(WrongEnd, -1, []string{name}, "%s is %v, possible are %v", name, want, l.possible())
			}
		case l.any(func(s state) bool { return s.end == succeeded || s.end == discarded }):
		case l.removed: // one that dies then leaves no letter: there is nothing to copy
			if !l.any(state.dead) {
				superseded++
			}
		default:
			rule := WrongEnd
			if l.latest == nil || l.any(func(s state) bool { return s.end == "" }) {
				rule = Lost
			}
			j.broke(rule, -1, []string{name}, "%s is neither dead nor waits, possible are %v", name, l.possible())
		}
	}
	if j.final.Superseded >= 0 && j.final.Superseded < superseded {
		j.broke(Uncounted, -1, nil, "%d removed messages were passed over, counted were %d", superseded, j.final.Superseded)
	}
	for name := range j.final.Dead {
		if j.lives[name] == nil {
			j.broke(Invented, -1, []string{name}, "%s is dead and was never produced", name)
		}
	}
}
