package consume

import (
	"bytes"
	"time"

	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// machine decides. Its caller serialises the calls and carries out the effects that they leave.
type machine struct {
	o      Options
	names  names
	random func() float64
	token  func() delivery.Token
	hooked bool // somebody wants an event for every attempt

	limits   delivery.Limits
	plain    *delivery.Policy // of a message that requests nothing
	parsed   []byte           // the request that was parsed last, and what it came to
	parsedAs *delivery.Policy
	// what it requests of its key
	parsedOrder delivery.KeyOrder
	version     int
	epoch       int64

	slots          []slot
	running        int // slots taken
	runningRetries int
	lastRetry      bool // what was started last, where both kinds wait

	spans   []*span // open ranges in order of claim
	queue   []*span // those with messages to start
	queued  int     // messages to start
	parcels []*parcel
	retries []*parcel // those with deliveries to start
	waiting int       // deliveries to start
	solo    *parcel
	results []deliveryDone
	freed   []string // keys of deliveries that their handlers' transactions ended

	keyed  bool // messages were seen that hold their keys
	lines  map[string]*line
	lined  int   // messages that wait in lines
	heads  int   // how many messages could start at once of those deliveries that were last read and had waited for their keys
	latest int64 // the monotonic time of what is being decided

	est      estimate
	size     int // of the next claim, as far as growth allows
	lastAsk  int
	lowWater int // when the queue falls to this a claim is worth while; -1: no such level
	keep     keeping
	avgBytes int64

	look  look
	calls calls
	gate  gateState
	stop  stopState

	counts Counts
	fx     effects
}

// names is what events are labelled with.
type names struct {
	stream, group     string
	streamID, groupID int
	instance          uuid.UUID
}

// slot is the right to run one handler.
type slot struct {
	busy bool
	gen  uint64 // tells the attempt that a worker began from a later one, after an abandonment
	task task
}

// task is what a slot runs: a message of a range, or one of a parcel.
type task struct {
	span     *span
	parcel   *parcel
	i        int
	policy   *delivery.Policy
	timeout  int64
	failures int
	began    int64
	hardAt   int64
}

// start is what a worker needs to run a message.
type start struct {
	slot        int
	gen         uint64
	message     *delivery.Message
	attempt     int
	redelivered bool
	leaseEnds   int64 // by the wall clock
	began       int64
	timeout     time.Duration
	token       delivery.Token
	delivery    bool // off the main line
	outOfOrder  bool
}

// effects is what the caller of the machine is to do.
type effects struct {
	any         bool
	kick        bool // the loop has something to decide
	wake        int  // so many more workers have something to do
	watch       bool // the watchdog's next moment came nearer
	gateIdle    bool // nothing runs and the gate is closed
	gateRelease bool
	announce    bool // other instances are to look: deliveries were woken
	cancelRuns  bool // end the handlers' contexts with ErrStopping
	cancelCall  bool // end the call to the store
	events      []Event
}

// gateState is what a session knows of the client's gate.
type gateState struct {
	closed bool  // nothing starts but a solo run of ours
	mine   bool  // nothing else runs
	queued bool  // we have asked and not withdrawn
	asked  bool  // and are to be told
	askAt  int64 // else when to ask again
}

type phase int

const (
	active phase = iota
	stopping
	halted
)

type stopState struct {
	phase     phase
	deadline  int64 // when running handlers are cancelled
	cancelled bool
	drained   int64 // when the last handler ended; 0: some run
	tries     int
	fatal     error
}

// The session is alive for so long after its last beat.
const beatEvery = 15 * time.Second

func newMachine(o Options, n names, limits delivery.Limits, version int, random func() float64, token func() delivery.Token, now instant) *machine {
	m := &machine{o: o.withDefaults(), names: n, random: random, token: token, version: version, lines: make(map[string]*line)}
	m.slots = make([]slot, m.o.Handlers)
	m.size = min(m.o.Handlers, m.o.BatchLimit)
	m.lowWater = -1
	m.configure(limits, m.o.MaxReclaims)
	m.look = look{fresh: true, soon: true, woken: true, dueAt: never, soloAt: never, expiryAt: now.mono,
		takenAt: now.mono - lookEvery, returnedAt: now.mono - lookEvery, workedAt: now.mono - lookEvery}
	m.calls.beatAt = now.mono
	m.calls.flushAt = never
	return m
}

// configure applies the group's settings to what starts from now on.
func (m *machine) configure(limits delivery.Limits, maxReclaims int) {
	plain := limits.Resolve(delivery.Policy{})
	m.limits, m.plain = limits, &plain
	m.keyed = m.keyed || limits.KeyOrder.InLine()
	m.parsed, m.parsedAs = nil, nil
	if maxReclaims > 0 {
		m.o.MaxReclaims = maxReclaims
	}
}

// policy resolves what a message requests. Messages of one stream tend to request the same.
func (m *machine) policy(msg *delivery.Message) *delivery.Policy {
	if len(msg.Options) == 0 {
		return m.plain
	}
	if m.parsedAs != nil && bytes.Equal(msg.Options, m.parsed) {
		return m.parsedAs
	}
	// What cannot be read requests nothing: the message is sound, and the group's settings are within the limits.
	request, err := delivery.DecodeRequest(msg.Options)
	if err != nil {
		request = delivery.Policy{}
	}
	p := m.limits.Resolve(request)
	m.parsed, m.parsedAs, m.parsedOrder = msg.Options, &p, request.KeyOrder
	return &p
}

// needed is the lease that must remain to start a handler with this timeout.
func (m *machine) needed(timeout int64) int64 {
	return timeout + int64(m.o.TimeoutGrace) + int64(m.o.RecordMargin)
}

// take finds something to start on a free slot. It says false if there is nothing.
func (m *machine) take(si int, now instant, s *start) bool {
	if m.stop.phase != active {
		return false
	}
	if m.gate.closed {
		return m.gate.mine && m.solo != nil && m.takeParcel(m.solo, si, now, s)
	}
	retry, fresh := len(m.retries) > 0, len(m.queue) > 0
	if retry && fresh && m.retries[0].displaced {
		// Older than what is fresh, and never run: each takes its turn.
		for len(m.retries) > 0 && m.retries[0].displaced {
			if m.takeParcel(m.retries[0], si, now, s) {
				return true
			}
		}
		retry = len(m.retries) > 0
	}
	if retry && fresh {
		// Each kind gets half of the slots while both wait; within that they take turns.
		half := (len(m.slots) + 1) / 2
		switch {
		case m.runningRetries >= half:
			retry = false
		case m.running-m.runningRetries >= half:
			fresh = false
		case m.lastRetry:
			retry = false
		}
	} else if fresh && m.keeps(now) {
		m.kick()
		return false
	}
	if retry {
		for len(m.retries) > 0 {
			if m.takeParcel(m.retries[0], si, now, s) {
				return true
			}
		}
	}
	if (fresh || !retry) && m.takeFresh(si, now, s) {
		return true
	}
	for len(m.retries) > 0 {
		if m.takeParcel(m.retries[0], si, now, s) {
			return true
		}
	}
	if m.look.fresh || m.look.dueAt <= now.mono {
		m.kick()
	}
	return false
}

// keeps says whether a slot is kept idle for a delivery that is due but not claimed yet. That is worth while only where handlers run so much
// longer than a claim takes that the slot would not be free again soon, and not for long: the store may be away.
func (m *machine) keeps(now instant) bool {
	if m.look.dueAt > now.mono || m.est.value <= keepAbove || m.runningRetries+m.waiting >= m.keepMost() {
		return false
	}
	if m.keep.until == 0 {
		m.keep.until = now.mono + keepFor
	}
	return now.mono < m.keep.until
}

// keepMost is how many slots retries have a claim to while fresh work waits. A single slot goes to each kind in turn.
func (m *machine) keepMost() int {
	if len(m.slots) == 1 && !m.lastRetry {
		return 1
	}
	return len(m.slots) / 2
}

// keeping is since when slots are kept for deliveries.
type keeping struct {
	until int64 // 0: they are not; in the past: it took too long, until the store has answered
	over  bool  // the workers have been told
}

const (
	keepAbove = int64(20 * time.Millisecond)
	keepFor   = int64(time.Second)
)

// begin puts a task on a slot.
func (m *machine) begin(si int, now instant, t task, timeout time.Duration) *slot {
	s := &m.slots[si]
	s.busy = true
	s.gen++
	t.began = now.mono
	t.timeout = int64(timeout)
	t.hardAt = now.mono + t.timeout + int64(m.o.TimeoutGrace)
	s.task = t
	m.running++
	if t.hardAt < m.calls.watchAt || m.calls.watchAt == 0 {
		m.calls.watchAt = t.hardAt
		m.fx.watch, m.fx.any = true, true
	}
	return s
}

// finish takes the result of the attempt that runs on a slot.
func (m *machine) finish(si int, now instant, v *verdict) {
	m.latest = now.mono
	s := &m.slots[si]
	t := s.task
	s.busy = false
	s.task = task{}
	m.running--
	took := now.mono - t.began
	if v == nil || v.recorded {
		m.counts.Succeeded++
	}
	if v == nil || !v.interrupted {
		m.est.sample(took)
	}
	if t.parcel != nil {
		if !t.parcel.displaced {
			m.runningRetries--
		}
		m.finishParcel(&t, now, v)
	} else {
		m.finishSpan(&t, now, v)
	}
	if v != nil && v.panicked {
		m.event(Event{Code: diag.HandlerPanicked, Kind: KindPanicked, Message: t.message().ID, Attempt: t.failures + 1, Err: v.err}, now)
	}
	if m.hooked && (v == nil || !v.interrupted) {
		m.attemptEvent(&t, now, took, v)
	}
	if m.running == 0 {
		if m.gate.closed {
			m.fx.gateIdle, m.fx.any = true, true
		}
		if m.stop.phase != active {
			m.stop.drained = max(now.mono, 1)
			m.fx.watch = true
			m.kick()
		}
	}
}

// outcome makes of a verdict what is recorded. Due is the moment from which a retry counts, by the monotonic clock.
func (m *machine) outcome(t *task, id int64, solo bool, now instant, v *verdict) (o delivery.Outcome, due int64) {
	o = delivery.Outcome{ID: id, Kind: v.kind, Attempt: t.failures, Reason: v.reason, Error: v.text, Key: t.message().Key, Solo: solo}
	switch v.kind {
	case delivery.Failed:
		o.Attempt++
		if o.Attempt >= t.policy.MaxAttempts {
			o.Kind, o.Reason = delivery.Dead, delivery.Exhausted
			break
		}
		m.counts.Failed++
		due = now.mono + int64(min(t.policy.Backoff(o.Attempt, m.random()), maxWait))
	case delivery.Delayed:
		m.counts.Delayed++
		due = now.mono + int64(v.delay)
	case delivery.Dead:
		o.Attempt++
	}
	if o.Kind == delivery.Dead {
		m.died(t, &o, now, v.err)
	}
	return o, due
}

// maxWait bounds a backoff, so that no sum of times overflows.
const maxWait = 100 * 365 * 24 * time.Hour

// expire ends what is past its time, frees the slots and says when to look again; never: nothing is timed. Abandoned slots need new workers.
func (m *machine) expire(now instant) (abandoned []int, next int64) {
	next = never
	st := &m.stop
	if st.phase == stopping && m.running > 0 {
		if !st.cancelled && now.mono >= st.deadline {
			st.cancelled = true
			m.fx.cancelRuns, m.fx.any = true, true
		}
		if st.cancelled {
			next = st.deadline + int64(m.o.TimeoutGrace)
		} else {
			next = st.deadline
		}
	}
	writtenOff := st.cancelled && now.mono >= st.deadline+int64(m.o.TimeoutGrace)
	for si := range m.slots {
		s := &m.slots[si]
		if !s.busy {
			continue
		}
		if now.mono < s.task.hardAt && !writtenOff {
			next = min(next, s.task.hardAt)
			continue
		}
		m.abandon(si, now, now.mono >= s.task.hardAt)
		abandoned = append(abandoned, si)
	}
	m.calls.watchAt = next
	if next == never {
		m.calls.watchAt = 0
	}
	if st.phase == stopping && m.running == 0 && m.calls.out {
		// A call that hangs must not hold up the stop.
		if at := st.drained + int64(m.o.RecordMargin); now.mono >= at {
			m.fx.cancelCall, m.fx.any = true, true
		} else {
			next = min(next, at)
		}
	}
	return abandoned, next
}

// abandon writes an attempt off. A stop that writes it off counts no failure: the message is free at once for another instance.
func (m *machine) abandon(si int, now instant, timedOut bool) {
	s := &m.slots[si]
	t := &s.task
	id := t.message().ID
	v := &verdict{kind: delivery.Failed, abandoned: true}
	if timedOut {
		v.text = hardTimeoutText(time.Duration(t.timeout)+m.o.TimeoutGrace, id)
	} else {
		v.interrupted = true
		v.text = "stopping: goroutine abandoned"
	}
	v.err = textError(v.text)
	m.counts.Abandoned++
	m.event(Event{Code: diag.Abandoned, Kind: KindAbandoned, Message: id, Attempt: t.failures + 1, Duration: time.Duration(now.mono - t.began), Err: v.err}, now)
	s.gen++
	m.finish(si, now, v)
}

// textError is an error that is its text.
type textError string

func (e textError) Error() string { return string(e) }

func (t *task) message() *delivery.Message {
	if t.parcel != nil {
		return t.parcel.items[t.i].message
	}
	return &t.span.msgs[t.i]
}

func (m *machine) kick() { m.fx.kick, m.fx.any = true, true }

// startables is how many messages wait for nothing but a worker.
func (m *machine) startables() int {
	switch {
	case m.stop.phase != active:
		return 0
	case !m.gate.closed:
		return m.queued + m.waiting
	case m.gate.mine && m.solo != nil:
		return 1
	}
	return 0
}

func (m *machine) wake(n int) { m.fx.wake, m.fx.any = m.fx.wake+n, true }

func (m *machine) event(e Event, now instant) {
	e.Stream, e.Group, e.Instance = m.names.stream, m.names.group, m.names.instance
	e.At = time.Unix(0, now.wall)
	m.fx.events = append(m.fx.events, e)
	m.fx.any = true
}

// effects hands out what has come together, and begins anew.
func (m *machine) effects() effects {
	fx := m.fx
	m.fx = effects{}
	return fx
}
