package reference

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// Each rule is shown a history that keeps it and histories that break it and no other.

// script makes a trace of lines:
//
//	start m1 i1 L1 1 [life 2] [aside] [flagged]
//	end m1 i1 succeed [late]
//	sent m1 i1
//	die i1 | cut i1
//	excuse m1 i1
//	redrive m1 | discard m1 | remove m1
func script(t *testing.T, strict bool, text string) *Trace {
	t.Helper()
	tr := &Trace{Strict: strict}
	runs, latest := 0, map[string]int{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		instance := func(s string) int {
			n, err := strconv.Atoi(strings.TrimPrefix(s, "i"))
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			return n
		}
		switch f[0] {
		case "start":
			runs++
			attempt, err := strconv.Atoi(f[4])
			if err != nil {
				t.Fatal(err)
			}
			e := Event{Kind: Started, Message: f[1], Instance: instance(f[2]), Lease: f[3], Attempt: attempt, Run: runs, Life: 1}
			rest := strings.Join(f[5:], " ")
			e.Aside, e.OutOfOrder = strings.Contains(rest, "aside"), strings.Contains(rest, "flagged")
			if strings.Contains(rest, "life 2") {
				e.Life = 2
			}
			latest[f[1]+f[2]] = runs
			tr.Events = append(tr.Events, e)
		case "end":
			tr.Events = append(tr.Events, Event{Kind: Ended, Message: f[1], Instance: instance(f[2]), Run: latest[f[1]+f[2]], Act: Act(f[3]), Late: len(f) > 4})
		case "sent":
			tr.Events = append(tr.Events, Event{Kind: Sent, Message: f[1], Instance: instance(f[2]), Run: latest[f[1]+f[2]]})
		case "excuse":
			tr.Events = append(tr.Events, Event{Kind: Excused, Message: f[1], Instance: instance(f[2])})
		default:
			kinds := map[string]Kind{"die": Died, "cut": CutOff, "redrive": Redriven, "discard": Discarded, "remove": Removed}
			e := Event{Kind: kinds[f[0]], Message: f[1]}
			if e.Kind == Died || e.Kind == CutOff {
				e.Message, e.Instance = "", instance(f[1])
			}
			tr.Events = append(tr.Events, e)
		}
	}
	return tr
}

// of makes a plan of messages, each "name key order": m1 k ordered. A dash is no key.
func of(messages ...string) *Plan {
	p := &Plan{MaxAttempts: 2}
	for _, text := range messages {
		f := strings.Fields(text)
		m := Message{Name: f[0], Key: strings.TrimPrefix(f[1], "-"), Order: Order(f[2])}
		p.Messages = append(p.Messages, m)
	}
	return p
}

func parking(p *Plan) *Plan {
	p.Park = true
	return p
}

type verdict struct {
	name   string
	plan   *Plan
	script string
	lax    bool // Sent is on its way, not recorded
	final  *Final
	rules  string // that are broken
}

func (v verdict) check(t *testing.T) {
	t.Run(v.name, func(t *testing.T) {
		tr := script(t, !v.lax, v.script)
		var rules []string
		found := Judge(v.plan, tr, v.final)
		for _, f := range found {
			if len(rules) == 0 || rules[len(rules)-1] != string(f.Rule) {
				rules = append(rules, string(f.Rule))
			}
		}
		if got := strings.Join(rules, ", "); got != v.rules {
			t.Errorf("broken are %q, want %q\n%v\n%s", got, v.rules, found, tr)
		}
	})
}

const both = `
	start m1 i1 A 1
	end m1 i1 succeed
	sent m1 i1
	start m2 i2 B 1
	end m2 i2 succeed
	sent m2 i2`

func TestJudgeOfWhatRuns(t *testing.T) {
	p := of("m1 - parallel", "m2 - parallel")
	for _, v := range []verdict{
		{name: "all is well", plan: p, script: both, final: &Final{}},
		{name: "invented", plan: p, script: both + "\nstart m9 i1 C 1\nend m9 i1 succeed", rules: "invented"},
		{name: "invented letter", plan: p, script: both, final: &Final{Dead: map[string]Letter{"m9": {}}}, rules: "invented"},
		{name: "lost", plan: p, script: "start m1 i1 A 1\nend m1 i1 succeed\nsent m1 i1", final: &Final{}, rules: "lost"},
		{name: "open in the end", plan: p, script: both, final: &Final{Open: []string{"m2"}}, rules: "lost"},
		{name: "succeeded and never recorded", plan: p, script: strings.TrimSuffix(both, "sent m2 i2"), final: &Final{}, rules: "lost"},
		{name: "dead without a failure", plan: p, script: both, final: &Final{Dead: map[string]Letter{"m2": {"exhausted", 2}}}, rules: "wrong end"},
		{name: "twice at once", plan: p, script: "start m1 i1 A 1\nstart m1 i2 B 1\nend m1 i1 succeed\nend m1 i2 succeed", rules: "twice, unexcused"},
		{name: "twice at once, but it outlived its timeout", plan: p, script: "start m1 i1 A 1\nstart m1 i2 B 1\nend m1 i1 succeed late\nend m1 i2 succeed"},
		{name: "no end", plan: p, script: "start m1 i1 A 1", rules: "unfinished"},
		{name: "no end, as its instance died", plan: p, script: "start m1 i1 A 1\ndie i1"},
	} {
		v.check(t)
	}
}

func TestJudgeOfAttempts(t *testing.T) {
	p := of("m1 - parallel")
	for _, v := range []verdict{
		{name: "a retry", plan: p, script: `
			start m1 i1 A 1
			end m1 i1 fail
			sent m1 i1
			start m1 i2 B 2 aside
			end m1 i2 succeed
			sent m1 i2`, final: &Final{}},
		{name: "not counted", plan: p, script: `
			start m1 i1 A 1
			end m1 i1 fail
			sent m1 i1
			start m1 i2 B 1 aside
			end m1 i2 succeed`, rules: "counted"},
		{name: "a delay that was counted", plan: p, script: `
			start m1 i1 A 1
			end m1 i1 delay
			sent m1 i1
			start m1 i2 B 2 aside
			end m1 i2 succeed`, rules: "counted"},
		{name: "again after a recorded success", plan: p, script: `
			start m1 i1 A 1
			end m1 i1 succeed
			sent m1 i1
			start m1 i2 B 1
			end m1 i2 succeed`, rules: "counted"},
		{name: "again unrecorded", plan: p, script: `
			start m1 i1 A 1
			end m1 i1 succeed
			start m1 i2 B 1
			end m1 i2 succeed
			sent m1 i2`, rules: "unexcused"},
		{name: "again unrecorded, after a death", plan: p, script: `
			start m1 i1 A 1
			end m1 i1 succeed
			die i1
			start m1 i2 B 1
			end m1 i2 succeed
			sent m1 i2`, final: &Final{}},
		{name: "again unrecorded, after a lost lease", plan: p, script: `
			start m1 i1 A 1
			end m1 i1 succeed
			start m1 i2 B 1
			end m1 i2 succeed
			sent m1 i2
			excuse m1 i1`, final: &Final{}},
		{name: "a retry on the main line", plan: p, script: `
			start m1 i1 A 1
			end m1 i1 fail
			sent m1 i1
			start m1 i2 B 2
			end m1 i2 succeed`, rules: "counted"},
		{name: "an attempt too many", plan: p, script: `
			start m1 i1 A 1
			end m1 i1 fail
			sent m1 i1
			start m1 i1 B 2 aside
			end m1 i1 fail
			sent m1 i1
			start m1 i1 C 3 aside
			end m1 i1 succeed`, rules: "counted"},
		{name: "dead", plan: p, script: `
			start m1 i1 A 1
			end m1 i1 panic
			sent m1 i1
			start m1 i1 B 2 aside
			end m1 i1 fail
			sent m1 i1`, final: &Final{Dead: map[string]Letter{"m1": {"exhausted", 2}}}},
		{name: "dead of something else", plan: p, script: `
			start m1 i1 A 1
			end m1 i1 terminal
			sent m1 i1`, final: &Final{Dead: map[string]Letter{"m1": {"exhausted", 1}}}, rules: "wrong end"},
		{name: "not dead after its attempts", plan: p, script: `
			start m1 i1 A 1
			end m1 i1 terminal
			sent m1 i1`, final: &Final{}, rules: "wrong end"},
		{name: "a lease that ended while it ran alone counts", plan: p, script: `
			start m1 i1 A 1 aside
			die i1
			start m1 i2 B 2 aside
			end m1 i2 succeed
			sent m1 i2`, final: &Final{}},
		{name: "two lives", plan: p, script: `
			start m1 i1 A 1
			end m1 i1 terminal
			sent m1 i1
			redrive m1
			start m1 i2 B 1 life 2 aside
			end m1 i2 succeed
			sent m1 i2`, final: &Final{}},
		{name: "redriven alive", plan: p, script: "start m1 i1 A 1\nend m1 i1 fail\nsent m1 i1\nredrive m1", rules: "not yet dead"},
		{name: "the count goes on in the second life", plan: p, script: `
			start m1 i1 A 1
			end m1 i1 terminal
			sent m1 i1
			redrive m1
			start m1 i2 B 2 life 2 aside
			end m1 i2 succeed`, rules: "counted"},
		{name: "discarded", plan: p, script: "start m1 i1 A 1\nend m1 i1 terminal\nsent m1 i1\ndiscard m1", final: &Final{}},
		{name: "a result that may have been refused", plan: p, lax: true, script: `
			start m1 i1 A 1
			end m1 i1 fail
			sent m1 i1
			die i1
			start m1 i2 B 1
			end m1 i2 succeed
			sent m1 i2`, final: &Final{}},
	} {
		v.check(t)
	}
}

func TestJudgeOfLines(t *testing.T) {
	overlap := "start m1 i1 A 1\nstart m2 i2 B 1\nend m1 i1 succeed\nsent m1 i1\nend m2 i2 succeed\nsent m2 i2"
	for _, v := range []verdict{
		{name: "parallel ones overlap", plan: of("m1 k parallel", "m2 k ordered"), script: overlap},
		{name: "ones without a key overlap", plan: of("m1 - ordered", "m2 - ordered"), script: overlap},
		{name: "ones of different keys overlap", plan: of("m1 k ordered", "m2 l ordered"), script: overlap},
		{name: "exclusive ones do not", plan: of("m1 k exclusive", "m2 k exclusive"), script: overlap, rules: "overlap"},
		{name: "exclusive and ordered ones do not", plan: of("m1 k ordered", "m2 k exclusive"), script: overlap, rules: "overlap"},
		{name: "exclusive ones in any order", plan: of("m2 k exclusive", "m1 k exclusive"), script: both, final: &Final{}},
		{name: "the group decides", plan: func() *Plan {
			p := of("m1 k parallel", "m2 k parallel")
			p.Override = Exclusive
			return p
		}(), script: overlap, rules: "overlap"},
		{name: "in order", plan: of("m1 k ordered", "m2 k ordered"), script: both, final: &Final{}},
		{name: "out of order", plan: of("m2 k ordered", "m1 k ordered"), script: both, rules: "sequence"},
		{name: "one failed, the next starts", plan: of("m1 k ordered", "m2 k ordered"), script: `
			start m1 i1 A 1
			end m1 i1 fail
			sent m1 i1
			start m2 i2 B 1
			end m2 i2 succeed
			sent m2 i2`, rules: "sequence"},
		{name: "one is delayed, the next starts", plan: of("m1 k ordered", "m2 k ordered"), script: `
			start m1 i1 A 1
			end m1 i1 delay
			start m2 i1 A 1
			end m2 i1 succeed
			sent m1 i1
			sent m2 i1`, rules: "sequence"},
		{name: "an exclusive one that failed keeps nobody waiting", plan: of("m1 k exclusive", "m2 k ordered"), script: `
			start m1 i1 A 1
			end m1 i1 fail
			sent m1 i1
			start m2 i2 B 1
			end m2 i2 succeed
			sent m2 i2`},
		{name: "one is dead, the next starts", plan: of("m1 k ordered", "m2 k ordered"), script: `
			start m1 i1 A 1
			end m1 i1 terminal
			sent m1 i1
			start m2 i2 B 1
			end m2 i2 succeed
			sent m2 i2`, final: &Final{Dead: map[string]Letter{"m1": {"terminal", 1}}}},
		{name: "a line under one lease", plan: of("m1 k ordered", "m2 k ordered"), script: `
			start m1 i1 A 1
			end m1 i1 succeed
			start m2 i1 A 1
			end m2 i1 succeed
			sent m1 i1
			sent m2 i1`, final: &Final{}},
		{name: "a success that is not recorded", plan: of("m1 k ordered", "m2 k ordered"), script: `
			start m1 i1 A 1
			end m1 i1 succeed
			start m2 i1 B 1
			end m2 i1 succeed
			sent m1 i1
			sent m2 i1`, rules: "sequence"},
		{name: "a line that died runs again in order", plan: of("m1 k ordered", "m2 k ordered"), script: `
			start m1 i1 A 1
			end m1 i1 succeed
			start m2 i1 A 1
			die i1
			start m1 i2 B 1
			end m1 i2 succeed
			start m2 i2 B 1
			end m2 i2 succeed
			sent m1 i2
			sent m2 i2`, final: &Final{}},
		{name: "a line that died goes on behind what nobody recorded", plan: of("m1 k ordered", "m2 k ordered"), script: `
			start m1 i1 A 1
			end m1 i1 succeed
			start m2 i1 A 1
			die i1
			start m2 i2 B 1
			end m2 i2 succeed
			sent m2 i2`, rules: "sequence"},
		{name: "a line that died runs again in the wrong order", plan: of("m1 k ordered", "m2 k ordered"), script: `
			start m1 i1 A 1
			end m1 i1 succeed
			start m2 i1 A 1
			end m2 i1 succeed
			sent m2 i1
			die i1
			start m1 i2 B 1
			end m1 i2 succeed
			sent m1 i2`, rules: "sequence"},
		{name: "the rest of a line, cut off, is still alone", plan: of("m1 k ordered", "m2 k ordered"), script: `
			start m1 i1 A 1
			cut i1
			start m1 i2 B 1
			end m1 i1 succeed
			end m1 i2 succeed
			sent m1 i2`, rules: "twice"},
	} {
		v.check(t)
	}
}

func TestJudgeOfDeadOnesInALine(t *testing.T) {
	died := `
		start m1 i1 A 1
		end m1 i1 terminal
		sent m1 i1
		`
	second := `
		start m2 i2 B 1
		end m2 i2 succeed
		sent m2 i2
		`
	letter := map[string]Letter{"m1": {"terminal", 1}}
	again := func(flag string) string {
		return fmt.Sprintf("\nstart m1 i1 C 1 life 2 aside %s\nend m1 i1 succeed\nsent m1 i1\n", flag)
	}
	for _, v := range []verdict{
		{name: "redriven after its successor", plan: of("m1 k ordered", "m2 k ordered"), script: died + second + "redrive m1" + again("flagged"), final: &Final{}},
		{name: "redriven without a word", plan: of("m1 k ordered", "m2 k ordered"), script: died + second + "redrive m1" + again(""), rules: "flagged"},
		{name: "redriven before its successor", plan: of("m1 k ordered", "m2 k ordered"), script: died + "redrive m1" + again("") + second, final: &Final{}},
		{name: "flagged for nothing", plan: of("m1 k ordered", "m2 k ordered"), script: "start m1 i1 A 1 flagged\nend m1 i1 succeed\nsent m1 i1" + second, rules: "flagged"},
		{name: "flagged and exclusive", plan: of("m1 k exclusive", "m2 k exclusive"), script: died + "redrive m1" + again("flagged") + second, rules: "flagged"},
		{name: "redriven beside its successor", plan: of("m1 k ordered", "m2 k ordered"),
			script: died + "redrive m1\nstart m2 i2 B 1\nstart m1 i1 C 1 life 2 aside\nend m1 i1 succeed\nend m2 i2 succeed", rules: "overlap"},
		{name: "a parked key", plan: parking(of("m1 k ordered", "m2 k ordered")), script: died, final: &Final{Dead: letter, Waiting: []string{"m2"}}},
		{name: "a parked key that goes on", plan: parking(of("m1 k ordered", "m2 k ordered")), script: died + second, rules: "sequence"},
		{name: "a parked key goes on when the letter is redriven", plan: parking(of("m1 k ordered", "m2 k ordered")), script: died + "redrive m1" + again("") + second, final: &Final{}},
		{name: "a parked key goes on before the redriven one", plan: parking(of("m1 k ordered", "m2 k ordered")), script: died + "redrive m1" + second + again(""), rules: "sequence"},
		{name: "a parked key goes on when the letter is discarded", plan: parking(of("m1 k ordered", "m2 k ordered")), script: died + "discard m1" + second, final: &Final{}},
		{name: "a parked one has its place when it is redriven", plan: parking(of("m1 k ordered", "m2 k ordered")), script: died + "redrive m1" + again("flagged") + second, rules: "flagged"},
		{name: "it waits for nobody", plan: of("m1 k ordered", "m2 k ordered"), script: died, final: &Final{Dead: letter, Waiting: []string{"m2"}}, rules: "waits"},
		{name: "another key waits", plan: parking(of("m1 k ordered", "m2 l ordered")), script: died, final: &Final{Dead: letter, Waiting: []string{"m2"}}, rules: "waits"},
		{name: "an exclusive one waits for a dead one", plan: parking(of("m1 k ordered", "m2 k exclusive")), script: died, final: &Final{Dead: letter, Waiting: []string{"m2"}}, rules: "waits"},
	} {
		v.check(t)
	}
}

func TestJudgeOfRemovedOnes(t *testing.T) {
	p := of("m1 k ordered", "m2 k ordered")
	second := "start m2 i2 B 1\nend m2 i2 succeed\nsent m2 i2"
	failed := "start m1 i1 A 1\nend m1 i1 fail\nsent m1 i1\n"
	for _, v := range []verdict{
		{name: "passed over", plan: p, script: "remove m1\n" + second, final: &Final{Superseded: 1}},
		{name: "passed over while it waited for a retry", plan: p, script: failed + "remove m1\n" + second, final: &Final{Superseded: 1}},
		{name: "passed over and not counted", plan: p, script: "remove m1\n" + second, final: &Final{}, rules: "uncounted"},
		{name: "passed over, who counted has died", plan: p, script: "remove m1\n" + second, final: &Final{Superseded: -1}},
		{name: "it died when it was gone", plan: p, script: "remove m1\nstart m1 i1 A 1\nend m1 i1 terminal\nsent m1 i1\n" + second, final: &Final{}},
		{name: "it was gone before it could run again", plan: p, script: `
			start m1 i1 A 1
			end m1 i1 succeed
			start m2 i1 A 1
			die i1
			start m1 i2 B 1
			end m1 i2 succeed
			sent m1 i2
			remove m2`, final: &Final{Superseded: 1}},
		{name: "passed over and still there", plan: p, script: second, final: &Final{Superseded: 1}, rules: "sequence, lost"},
		{name: "the newest is passed over", plan: p, script: failed + "remove m1\n", final: &Final{Superseded: 2}, rules: "lost"},
		{name: "an older one behind the newest", plan: p, script: "remove m1\n" + second + "\nstart m1 i1 A 1\nend m1 i1 succeed\nsent m1 i1", final: &Final{}, rules: "sequence"},
	} {
		v.check(t)
	}
}
