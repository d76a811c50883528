package consume

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// Config is what a session is made of.
type Config struct {
	Store  Store
	Waker  Waker
	Gate   *Gate   // of the client; nil: one of its own
	Strays *Strays // of the client; nil: one of its own
	Logger *slog.Logger
	Hooks  []Hook

	Stream, Group     string
	StreamID, GroupID int
	Instance          uuid.UUID // zero: a new one

	Limits        delivery.Limits // of the group's stored config
	ConfigVersion int
	// OnConfig reads a newer stored config. Nil: changes are not followed.
	OnConfig func(config []byte) (delivery.Limits, int, error)
	// Announce tells the group's other instances that deliveries wait for them. It returns at once. Nil: they find them by polling.
	Announce func()

	Handler Handler
	Options Options
}

// Session is one Consume call. It runs once.
type Session struct {
	c      Config
	log    *slog.Logger
	zero   time.Time // what instants count from
	clock  func() instant
	events *eventQueue // nil: nobody watches
	warns  limiter

	ctx    context.Context         // Consume's
	values context.Context         // its values without its end, for calls to the store
	base   context.Context         // the same for handlers, which a stop ends at last
	cancel context.CancelCauseFunc // ends the handlers' contexts

	mu         sync.Mutex
	m          *machine
	idle       sync.Cond // workers without work
	idlers     int
	staffed    int                // slots that have a worker: from the first on, as work for them came
	callCancel context.CancelFunc // of the call to the store that is out
	started    bool

	loop    chan struct{}  // holds at most one: decide again
	watch   chan struct{}  // the same for the watchdog
	workers sync.WaitGroup // those that are not abandoned
}

// NewSession prepares a session. A nil error means that Run can be called, once.
func NewSession(c Config) (*Session, error) {
	if err := c.Options.check(); err != nil {
		return nil, err
	}
	if c.Store == nil || c.Waker == nil || c.Handler == nil {
		return nil, &diag.Error{Code: diag.InvalidOption, Op: "consume", Detail: "store, waker and handler are required"}
	}
	if c.Gate == nil {
		c.Gate = &Gate{}
	}
	if c.Strays == nil {
		c.Strays = &Strays{}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Instance == uuid.Nil {
		c.Instance = uuid.New()
	}
	s := &Session{c: c, zero: time.Now(), loop: make(chan struct{}, 1), watch: make(chan struct{}, 1)}
	s.log = c.Logger.With("stream", c.Stream, "group", c.Group, "instance", c.Instance.String())
	s.clock = s.readClocks
	s.idle.L = &s.mu
	if len(c.Hooks) > 0 {
		s.events = newEventQueue()
	}
	n := names{stream: c.Stream, group: c.Group, streamID: c.StreamID, groupID: c.GroupID, instance: c.Instance}
	s.m = newMachine(c.Options, n, c.Limits, c.ConfigVersion, rand.Float64, uuid.New, s.clock())
	s.m.hooked = s.events != nil
	return s, nil
}

func (s *Session) readClocks() instant {
	now := time.Now()
	return instant{mono: int64(now.Sub(s.zero)), wall: now.UnixNano()}
}

// Health is a snapshot.
func (s *Session) Health() Health {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.m.health()
}

// Run consumes until ctx ends or waiting cannot mend what is wrong. It returns nil when ctx has ended.
func (s *Session) Run(ctx context.Context) error {
	if ctx.Err() != nil {
		return nil
	}
	s.mu.Lock()
	if s.started {
		s.mu.Unlock()
		return &diag.Error{Code: diag.AlreadyConsuming, Op: "consume", Object: s.m.object()}
	}
	s.started = true
	o, limits := s.m.o, s.m.limits
	s.mu.Unlock()

	began := time.Now()
	s.logStart(o, limits)
	s.ctx = ctx
	s.values = context.WithoutCancel(ctx)
	s.base, s.cancel = context.WithCancelCause(s.values)
	s.c.Gate.join(gateMember{s})

	var rest sync.WaitGroup
	quit := make(chan struct{})
	rest.Go(func() { s.guard(quit) })
	var drainer sync.WaitGroup
	if s.events != nil {
		drainer.Go(func() { s.events.drain(s.observe) })
	}
	s.talk()

	s.mu.Lock()
	s.m.stop.phase = halted
	s.idle.Broadcast()
	s.mu.Unlock()
	s.workers.Wait()
	close(quit)
	rest.Wait()
	s.c.Gate.leave(gateMember{s})
	s.cancel(ErrStopping)
	if s.events != nil {
		s.events.close()
		drainer.Wait()
	}
	s.mu.Lock()
	fatal, counts := s.m.stop.fatal, s.m.counts
	s.mu.Unlock()
	s.logStop(time.Since(began), counts, fatal)
	return fatal
}

// talk is the loop that talks to the store.
func (s *Session) talk() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	ended := s.ctx.Done()
	for {
		s.mu.Lock()
		now := s.clock()
		if s.ctx.Err() != nil {
			s.m.halt(now)
			ended = nil
		}
		a := s.m.next(now)
		s.flush()
		switch a.kind {
		case doEnd:
			s.leave()
			return
		case doWork:
			s.sendWork(a.call)
		case doSettle, doVerify:
			s.askHeld(a)
		case doRead:
			s.read(a.span)
		case doReadIDs:
			s.readIDs(a.parcel)
		case doBeat:
			s.beat()
		case doAskGate:
			s.askGate()
		case doWait:
			timer.Reset(time.Duration(min(a.until-now.mono, int64(time.Hour))))
			select {
			case <-timer.C:
			case <-s.loop:
			case <-ended:
			case <-s.c.Waker.C():
				s.mu.Lock()
				s.m.woke(s.clock())
				s.mu.Unlock()
			}
		}
	}
}

// callTimeout bounds every call to the store; in a stop, once the handlers have ended, RecordMargin does.
const callTimeout = 30 * time.Second

// callContext makes the context of a call to the store. It does not end with Consume's: what has run is to be recorded.
func (s *Session) callContext() (context.Context, context.CancelFunc) {
	timeout := callTimeout
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m.stop.phase != active && s.m.running == 0 {
		timeout = max(s.m.o.RecordMargin, time.Second)
	}
	ctx, cancel := context.WithTimeout(s.values, timeout)
	s.callCancel = cancel
	return ctx, cancel
}

func (s *Session) sendWork(c *call) {
	ctx, cancel := s.callContext()
	reply, err := s.c.Store.Work(ctx, c.req)
	cancel()
	var limits delivery.Limits
	var reclaims int
	newer := false
	if err == nil && reply.Config != nil && s.c.OnConfig != nil {
		var bad error
		if limits, reclaims, bad = s.c.OnConfig(reply.Config); bad == nil {
			newer = true
		} else {
			s.warn(diag.DeclarationChanged, "group's new config cannot be read; going on with the old one", "error", bad)
		}
	}
	s.mu.Lock()
	now := s.clock()
	switch {
	case err == nil:
		if newer {
			s.m.configure(limits, reclaims)
		}
		s.m.applied(c, reply, now)
	default:
		unknown, fatal := classify(err)
		if fatal {
			s.m.calls.out = false
			s.m.putBack(c, now)
			s.m.stop.tries++
			s.m.fail(err, now)
		} else {
			s.m.failed(c, err, unknown, now)
		}
	}
	s.flush()
	if c.wants && err == nil {
		s.c.Waker.Looked(reply.Range != nil || len(reply.Deliveries) > 0)
	}
}

// classify says what a failure of the store means: whether the call may have taken effect, and whether waiting cannot mend it. What is no
// error of ours, such as the end of the call's context, is taken for the worst that passes.
func classify(err error) (unknown, fatal bool) {
	e, ok := errors.AsType[*diag.Error](err)
	if !ok || errors.Is(err, context.Canceled) { // only the session ends its calls, so that none holds up a stop
		return true, false
	}
	return e.OutcomeUnknown, !e.Retryable && !e.OutcomeUnknown
}

func (s *Session) askHeld(a action) {
	ctx, cancel := s.callContext()
	s.mu.Lock()
	sent := s.clock()
	s.mu.Unlock()
	held, err := s.c.Store.Held(ctx, s.c.GroupID, a.tokens)
	cancel()
	s.mu.Lock()
	now := s.clock()
	switch {
	case err != nil:
		s.m.tripped(err, now)
		if _, fatal := classify(err); fatal {
			s.m.stop.tries++
			s.m.fail(err, now)
		}
	case a.kind == doSettle:
		s.m.settled(a.call, held, sent, now)
	default:
		s.m.verified(held, sent, now)
	}
	s.flush()
}

func (s *Session) read(r *span) {
	ctx, cancel := s.callContext()
	msgs, err := s.c.Store.Read(ctx, s.c.StreamID, r.ref.Low, r.high)
	cancel()
	s.mu.Lock()
	now := s.clock()
	if err == nil {
		s.m.readDone(r, msgs, now)
	} else if s.readable(err, now) {
		s.m.readFailed(r, now)
	}
	s.flush()
}

func (s *Session) readIDs(p *parcel) {
	ctx, cancel := s.callContext()
	msgs, err := s.c.Store.ReadIDs(ctx, s.c.StreamID, s.c.GroupID, p.ids())
	cancel()
	s.mu.Lock()
	now := s.clock()
	if err == nil {
		s.m.parcelRead(p, msgs, now)
	} else if s.readable(err, now) {
		s.m.parcelReadFailed(p, now)
	}
	s.flush()
}

// readable says whether a read that failed is worth repeating. mu is held.
func (s *Session) readable(err error, now instant) bool {
	if _, fatal := classify(err); fatal {
		s.m.fail(err, now)
		return false
	}
	s.m.calls.lastErr = diag.CodeOf(err)
	s.m.event(Event{Code: diag.ConsumeRetrying, Kind: KindRetrying, Err: err}, now)
	return true
}

// beat says that the instance lives. That it could not be said is no reason for anything, unless waiting cannot mend it: an idle session has no other call that would tell.
func (s *Session) beat() {
	ctx, cancel := s.callContext()
	err := s.c.Store.Beat(ctx, s.c.GroupID, s.c.Instance)
	cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.m.calls.lastErr = diag.CodeOf(err)
		if _, fatal := classify(err); fatal {
			s.m.stop.tries++
			s.m.fail(err, s.clock())
		}
	}
	s.m.calls.beatAt = s.clock().mono + int64(beatEvery) + int64((s.m.random()-0.5)*float64(beatEvery)/5)
}

func (s *Session) leave() {
	ctx, cancel := s.callContext()
	defer cancel()
	// Upkeep removes an instance that could not say goodbye.
	_ = s.c.Store.Leave(ctx, s.c.GroupID, s.c.Instance)
}

func (s *Session) askGate() {
	s.mu.Lock()
	s.m.gate.queued, s.m.gate.asked = true, true
	s.mu.Unlock()
	if again := s.c.Gate.ask(gateMember{s}); again > 0 {
		s.mu.Lock()
		s.m.gate.asked = false
		s.m.gate.askAt = s.clock().mono + int64(again)
		s.mu.Unlock()
	}
}

// gateMember is the session as the gate sees it.
type gateMember struct{ s *Session }

func (g gateMember) gateClosed() bool {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	g.s.m.gate.closed = true
	return g.s.m.running > 0
}

func (g gateMember) gateOpened() {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	// Whoever still wants to be alone asks again: an ask may have crossed the release that opened the gate.
	g.s.m.gate.closed, g.s.m.gate.mine, g.s.m.gate.asked = false, false, false
	g.s.m.wake(len(g.s.m.slots))
	g.s.signal()
	kick(g.s.loop)
}

func (g gateMember) gateHeld() {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	g.s.m.gate.mine, g.s.m.gate.asked = true, false
	kick(g.s.loop)
}

func (g gateMember) gateAgain() {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	g.s.m.gate.asked = false
	kick(g.s.loop)
}

// signal carries out what can be done under the mutex. mu is held.
func (s *Session) signal() {
	fx := &s.m.fx
	if n := min(fx.wake, s.m.startables()); n > 0 {
		for range min(n, s.idlers) {
			s.idle.Signal()
		}
		for range n - s.idlers {
			s.staff()
		}
	}
	if fx.cancelCall && s.callCancel != nil {
		s.callCancel()
	}
	if fx.kick {
		kick(s.loop)
	}
	if fx.watch {
		kick(s.watch)
	}
	fx.wake, fx.cancelCall, fx.kick, fx.watch = 0, false, false, false
	fx.any = fx.announce || fx.cancelRuns || fx.gateIdle || fx.gateRelease || len(fx.events) > 0
}

// staff gives the next slot a worker, if there is one without. A session that has never had much to do needs few goroutines. mu is held.
func (s *Session) staff() {
	if s.staffed < len(s.m.slots) {
		s.workers.Add(1)
		go s.work(s.staffed)
		s.staffed++
	}
}

// flush carries out what the machine asks for. mu is held, and is let go.
func (s *Session) flush() {
	if !s.m.fx.any {
		s.mu.Unlock()
		return
	}
	s.signal()
	fx := s.m.effects()
	s.mu.Unlock()
	if fx.announce && s.c.Announce != nil {
		s.c.Announce()
	}
	if fx.cancelRuns {
		s.cancel(ErrStopping)
	}
	if fx.gateIdle {
		s.c.Gate.idle(gateMember{s})
	}
	if fx.gateRelease {
		s.c.Gate.release(gateMember{s})
	}
	for i := range fx.events {
		s.report(fx.events[i])
	}
}
