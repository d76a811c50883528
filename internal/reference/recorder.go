package reference

import (
	"slices"
	"sync"
	"time"
)

// Recorder keeps the trace of a history that is played, tells handlers what to do, and says when an instance dies. Its methods may be called from any goroutine.
type Recorder struct {
	plan *Plan

	mu      sync.Mutex
	trace   Trace
	runs    []run // by number, from 1
	reached map[Point]int
	gone    map[int]Kind // instances: Died or CutOff
	lives   map[string]int
	delayed map[told]int
	deaths  int
	calm    bool // nobody dies any more
}

// told is what delays are counted by.
type told struct {
	message       string
	life, attempt int
}

// run is one that was begun.
type run struct {
	instance     int
	message      string
	lease        string
	act          Act
	begun, ended bool
	sent         bool
}

// NewRecorder begins an empty trace of a plan. Strict: see Trace.
func NewRecorder(p *Plan, strict bool) *Recorder {
	return &Recorder{
		plan: p, trace: Trace{Strict: strict}, runs: make([]run, 1),
		reached: make(map[Point]int), gone: make(map[int]Kind), lives: make(map[string]int), delayed: make(map[told]int),
	}
}

// Begin is what a handler knows when it starts.
type Begin struct {
	Instance   int
	Message    string
	Lease      string
	Attempt    int
	Aside      bool
	OutOfOrder bool
}

// Task is what the handler is to do.
type Task struct {
	Run   int // 0: nothing, its instance is dead
	Takes time.Duration
	Act   Act
	Delay time.Duration // to ask for, if Act is Delay
}

// Begin notes that a handler has started.
func (r *Recorder) Begin(b Begin) Task {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone[b.Instance] == Died {
		return Task{}
	}
	m, _ := r.plan.find(b.Message)
	if m == nil {
		m = &Message{Name: b.Message} // what was invented is for the judge
	}
	life := r.lives[b.Message] + 1
	a := m.script(life, b.Attempt)
	task := Task{Run: len(r.runs), Takes: a.Takes, Act: a.End, Delay: a.Delay}
	if r.delayed[told{b.Message, life, b.Attempt}] < a.Delays {
		task.Act = Delay
	}
	r.runs = append(r.runs, run{instance: b.Instance, message: b.Message, lease: b.Lease, act: task.Act, begun: true})
	r.trace.Events = append(r.trace.Events, Event{
		Kind: Started, Instance: b.Instance, Message: b.Message, Run: task.Run, Lease: b.Lease, Life: life, Attempt: b.Attempt, Aside: b.Aside, OutOfOrder: b.OutOfOrder,
	})
	if task.Act == Delay {
		r.delayed[told{b.Message, life, b.Attempt}]++
	}
	return task
}

// End notes that the handler of a run has done its work. It says false if its instance is dead.
func (r *Recorder) End(number int, late bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := &r.runs[number]
	if r.gone[one.instance] == Died || one.ended {
		return false
	}
	one.ended = true
	r.trace.Events = append(r.trace.Events, Event{Kind: Ended, Instance: one.instance, Message: one.message, Run: number, Act: one.act, Late: late})
	return true
}

// Sent notes that the results of an instance under a lease go to the store; covers says of which messages.
func (r *Recorder) Sent(instance int, lease string, covers func(message string) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for number := range r.runs {
		one := &r.runs[number]
		if one.ended && !one.sent && one.instance == instance && one.lease == lease && covers(one.message) {
			one.sent = true
			r.trace.Events = append(r.trace.Events, Event{Kind: Sent, Instance: instance, Message: one.message, Run: number})
		}
	}
}

// Reached says whether an instance that comes to a point dies there. It notes the death.
func (r *Recorder) Reached(instance int, at Point) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calm || r.gone[instance] != "" {
		return false
	}
	r.reached[at]++
	i := slices.IndexFunc(r.plan.Deaths, func(d Death) bool { return d.At == at && d.N == r.reached[at] })
	if i < 0 {
		return false
	}
	kind := Died
	if r.plan.Deaths[i].Cut {
		kind = CutOff
	}
	r.gone[instance] = kind
	r.deaths++
	r.trace.Events = append(r.trace.Events, Event{Kind: kind, Instance: instance})
	return true
}

// Left notes that an instance has stopped and could not reach the store to the end: as good as cut off.
func (r *Recorder) Left(instance int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone[instance] == "" {
		r.gone[instance] = CutOff
		r.trace.Events = append(r.trace.Events, Event{Kind: CutOff, Instance: instance})
	}
}

// Calm ends the time in which instances die.
func (r *Recorder) Calm() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calm = true
}

// Gone says that an instance is dead or cut off, Dead that it is dead.
func (r *Recorder) Gone(instance int) bool { return r.fate(instance) != "" }

// Dead says that an instance is dead: nothing of it is seen any more.
func (r *Recorder) Dead(instance int) bool { return r.fate(instance) == Died }

func (r *Recorder) fate(instance int) Kind {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gone[instance]
}

// Deaths is how many instances have died or were cut off as the plan says.
func (r *Recorder) Deaths() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.deaths
}

// Excuse notes that an instance knows of a hold that has ended too early.
func (r *Recorder) Excuse(instance int, messages ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range messages {
		r.trace.Events = append(r.trace.Events, Event{Kind: Excused, Instance: instance, Message: m})
	}
}

// Operate notes that dead letters are about to be redriven or discarded. They must be dead.
func (r *Recorder) Operate(action string, messages ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range messages {
		kind := Discarded
		if action == Redrive {
			kind = Redriven
			r.lives[m]++
		}
		r.trace.Events = append(r.trace.Events, Event{Kind: kind, Message: m})
	}
}

// Removed notes that messages are about to be removed from the stream.
func (r *Recorder) Removed(messages ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range messages {
		r.trace.Events = append(r.trace.Events, Event{Kind: Removed, Message: m})
	}
}

// Trace returns what was seen so far.
func (r *Recorder) Trace() *Trace {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &Trace{Events: slices.Clone(r.trace.Events), Strict: r.trace.Strict}
}
