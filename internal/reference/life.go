package reference

import (
	"fmt"
	"slices"
)

// state is what can be recorded of a message in its present life.
type state struct {
	failures int
	end      string // "": more is to come
}

// The ends. A dead one's is "dead" with the reason behind it.
const (
	succeeded = "succeeded"
	discarded = "discarded"
	exhausted = "dead: exhausted"
	terminal  = "dead: terminal"
)

func (s state) dead() bool { return s.end == exhausted || s.end == terminal }

func (s state) String() string {
	if s.end == "" {
		return fmt.Sprintf("%d failures", s.failures)
	}
	return fmt.Sprintf("%s, %d failures", s.end, s.failures)
}

// next is what an attempt makes of a state, once it is recorded.
func (s state) next(act Act, most int) state {
	switch act {
	case Succeed:
		s.end = succeeded
	case Terminal:
		s.failures, s.end = s.failures+1, terminal
	case Fail, Panic:
		s.failures++
		if s.failures >= most {
			s.end = exhausted
		}
	case Delay:
	}
	return s
}

// life is one message's way through the group: the states that what was seen so far allows. There is more than one only where a death left open whether a result was recorded.
type life struct {
	message *Message
	place   int
	order   Order
	most    int // failures that make a dead letter
	number  int // of its life
	states  []state
	// losses bounds how many leases may have ended under it: one that ended while it was to run alone counts as a failure, though nobody saw one.
	losses int
	latest *span
	// removed: it may end without a word, in any of its states.
	removed bool
	// successors are those that had started when it was redriven.
	successors []*life
	passed     bool // redriven while its successors did not wait for it: it has no place in the order any more
}

// span is a run as a part of the trace.
type span struct {
	Event    // its start
	from, to int
	ended    bool // by itself, not by a death
	act      Act
	late     bool
	sent     bool
}

// possible are the states, with the failures that leases may have added.
func (l *life) possible() []state {
	all := slices.Clone(l.states)
	for _, s := range l.states {
		if s.end != "" {
			continue
		}
		for n := 1; n <= l.losses; n++ {
			more := state{failures: s.failures + n}
			if more.failures >= l.most {
				all = append(all, state{failures: l.most, end: exhausted})
				break
			}
			all = append(all, more)
		}
	}
	return all
}

// starts takes a run of an attempt. It says what was possible instead if that was not.
func (l *life) starts(attempt int) string {
	possible := l.possible()
	l.states = slices.DeleteFunc(slices.Clone(possible), func(s state) bool { return s.end != "" || s.failures != attempt-1 })
	if len(l.states) > 0 {
		return ""
	}
	l.states = []state{{failures: attempt - 1}} // as if, to go on
	return fmt.Sprint(possible)
}

// records takes the result of a run. Unsure: it may have been refused.
func (l *life) records(act Act, unsure bool) {
	var all []state
	for _, s := range l.states {
		all = append(all, s.next(act, l.most))
		if unsure {
			all = append(all, s)
		}
	}
	l.states = all
}

// reborn begins another life.
func (l *life) reborn() {
	l.number++
	l.states, l.latest = []state{{}}, nil
}

// any says whether one of the possible states is such.
func (l *life) any(is func(state) bool) bool { return slices.ContainsFunc(l.possible(), is) }

// pending says whether one of the states would be such if the latest run were recorded.
func (l *life) pending(is func(state) bool) bool {
	return slices.ContainsFunc(l.states, func(s state) bool { return is(s.next(l.latest.act, l.most)) })
}
