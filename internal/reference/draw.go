package reference

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Scale is what a plan is drawn from, so that one that is played in real time is short.
type Scale struct {
	Messages int // at most
	Takes    []time.Duration
	Delays   []time.Duration
	Backoffs []time.Duration
	Pauses   []time.Duration // between steps
	// Deaths is in how many of a hundred plans an instance dies.
	Deaths int
	// Lossy plans lose confirmations of calls that took effect, and calls.
	Lossy bool
	// Keyless plans have no keys, unattended ones no operator.
	Keyless, Unattended bool
	// Compacted is how many of a hundred plans are of streams that keep the newest message of each key only.
	Compacted int
}

// drawer draws from one seed.
type drawer struct {
	*rand.Rand
	scale Scale
}

// Draw makes the plan of a seed.
func Draw(seed uint64, scale Scale) *Plan {
	d := drawer{rand.New(rand.NewPCG(seed, 0x5eed)), scale}
	p := &Plan{
		Seed: seed, Instances: 3 + d.IntN(2), Handlers: 1 + d.IntN(4), BatchLimit: pick(d, 1, 3, 5, 1000), Override: pick(d, "", "", "", Ordered, Exclusive, Parallel),
		Park: d.chance(30), MaxAttempts: 1 + d.IntN(4), Backoff: pick(d, scale.Backoffs...), MaxReclaims: pick(d, 0, 1, 3),
	}
	d.messages(p)
	d.steps(p)
	if d.chance(scale.Deaths) {
		for range pick(d, 1, 1, 2) {
			p.Deaths = append(p.Deaths, Death{At: pick(d, AtStart, AtEnd, AtCall, AtReply), N: 1 + d.IntN(len(p.Messages)+2), Cut: d.chance(30)})
		}
	}
	for range d.IntN(3) {
		if scale.Unattended {
			break
		}
		p.Settle = append(p.Settle, pick(d, Redrive, Discard))
	}
	return p
}

func pick[T any](d drawer, list ...T) T { return list[d.IntN(len(list))] }

// chance is true in so many of a hundred cases.
func (d drawer) chance(percent int) bool { return d.IntN(100) < percent }

func (d drawer) messages(p *Plan) {
	n := 1 + d.IntN(min(pick(d, 4, 8, 16, d.scale.Messages), d.scale.Messages))
	keys := 1 + d.IntN(4)
	// Most plans are mostly of one order: mixed ones rarely have long lines.
	mostly := pick(d, Ordered, Ordered, Exclusive, Parallel)
	for i := range n {
		m := Message{Name: fmt.Sprintf("m%d", i+1), Order: mostly}
		if d.chance(20) {
			m.Order = pick(d, "", Parallel, Exclusive, Ordered)
		}
		if !d.scale.Keyless && !d.chance(10) {
			m.Key = fmt.Sprintf("k%d", d.IntN(keys))
		}
		if m.Key == "" {
			m.Order = ""
		}
		if d.chance(20) {
			m.MaxAttempts = 1 + d.IntN(5)
		}
		m.Lives = [][]Attempt{d.life(), d.life()}
		p.Messages = append(p.Messages, m)
	}
}

// life is what the attempts of one life do, until one succeeds, is terminal, or there are no more.
func (d drawer) life() (all []Attempt) {
	trouble := pick(d, 10, 10, 40, 80)
	for {
		a := Attempt{Takes: pick(d, d.scale.Takes...), End: Succeed}
		if d.chance(10) {
			a.Delays, a.Delay = 1+d.IntN(2), pick(d, d.scale.Delays...)
		}
		if d.chance(trouble) {
			a.End = pick(d, Fail, Fail, Fail, Panic, Terminal)
		}
		all = append(all, a)
		if a.End == Succeed || a.End == Terminal || len(all) == 6 {
			return all
		}
	}
}

func (d drawer) steps(p *Plan) {
	left := len(p.Messages)
	produce := func(after time.Duration) {
		n := 1 + d.IntN(left)
		left -= n
		p.Steps = append(p.Steps, Step{After: after, Do: Produce, N: n})
	}
	if d.chance(70) {
		produce(0)
	}
	paused, compacted := false, d.chance(d.scale.Compacted)
	for range d.IntN(8) {
		s := Step{After: pick(d, d.scale.Pauses...), N: d.IntN(p.Instances)}
		s.Do = pick(d, Produce, Produce, Start, Stop, Pause, Redrive, Redrive, Discard)
		if d.scale.Lossy && d.chance(40) {
			s.Do = pick(d, Lose, Refuse)
		}
		if compacted && d.chance(50) {
			s.Do = Compact
		}
		switch {
		case paused:
			s.Do, paused = Resume, false
		case s.Do == Pause:
			paused = true
		}
		if s.Do == Produce {
			if left > 0 {
				produce(s.After)
			}
			continue
		}
		if !d.scale.Unattended || s.Do != Redrive && s.Do != Discard {
			p.Steps = append(p.Steps, s)
		}
	}
	if left > 0 {
		p.Steps = append(p.Steps, Step{After: pick(d, d.scale.Pauses...), Do: Produce, N: left})
	}
}
