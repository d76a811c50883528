package reference_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/reference"
)

// stage is a stream with a group on which one history is played, and the real engine's way to it.
type stage interface {
	// link returns an instance's way to the store, and what cuts it.
	link(number int) (store consume.Store, cut func(), err error)
	// waker returns what wakes an instance, and what wakes all; done ends it.
	waker(ctx context.Context) (w consume.Waker, done func())
	wakeAll()
	// gone says that an instance has died, with its handlers: nobody works under its leases any more.
	gone(instance uuid.UUID)
	ids() (stream, group int)
	// strict: the stage calls the actors' recorded itself, at the moment in which the store has it.
	strict() bool
	produce(msgs []delivery.Message) (last int64, err error)
	pause(paused bool) error
	fault(do string, times int)
	// dead returns the dead letters, operate redrives or discards some.
	dead() (map[int64]reference.Letter, error)
	operate(action string, ids []int64) error
	// remove takes messages out of the stream, as compaction does.
	remove(ids []int64) error
	// unresolved are the messages that wait for their key, and those that are open for any other reason.
	unresolved() (waiting, open []int64, err error)
	// settle waits until a condition holds, or for long enough.
	settle(what string, holds func() (bool, error)) error
	sleep(d time.Duration)
}

// play is a history that is played.
type play struct {
	plan    *reference.Plan
	told    *reference.Plan // what the engine is told; another than plan in sabotage
	spoil   func(*delivery.WorkRequest)
	rec     *reference.Recorder
	stage   stage
	options consume.Options
	timeout time.Duration

	actors []*actor
	began  context.Context

	mu       sync.Mutex
	produced int
	faults   []string
}

func (p *play) fault(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, fmt.Sprintf(format, args...))
}

func (p *play) name(id int64) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id >= 1 && id <= int64(p.produced) { // a stage's stream begins empty
		return p.plan.Messages[id-1].Name
	}
	return fmt.Sprintf("id %d", id)
}

// names are those of the ids in (low, high].
func (p *play) names(low, high int64) (all []string) {
	for id := low + 1; id <= high; id++ {
		all = append(all, p.name(id))
	}
	return all
}

// act plays the plan and returns what the judge, and the stage itself, object to.
func (p *play) act(ctx context.Context) []string {
	p.began = ctx
	for range p.plan.Instances {
		p.start()
	}
	for _, s := range p.plan.Steps {
		p.stage.sleep(s.After)
		if err := p.step(s); err != nil {
			p.fault("%s: %v", s.Do, err)
		}
	}
	final, err := p.end()
	if err != nil {
		p.fault("end: %v", err)
	}
	for _, a := range p.actors {
		a.cancel()
	}
	for _, a := range p.actors {
		p.awaitEnd(a)
	}
	if final != nil {
		final.Superseded = p.superseded()
	}
	for _, v := range reference.Judge(p.plan, p.rec.Trace(), final) {
		p.fault("%v\n%s", v, p.rec.Trace().About(v.Messages...))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults
}

// awaitEnd waits until an instance has stopped. One that never does keeps whatever plays it waiting, so it ends the test with what is known.
func (p *play) awaitEnd(a *actor) {
	timer := time.NewTimer(time.Minute)
	defer timer.Stop()
	select {
	case <-a.ended:
	case <-timer.C:
		panic(fmt.Sprintf("seed %d: i%d does not stop: %+v\n%v", p.plan.Seed, a.number, a.session.Health(), p.rec.Trace()))
	}
}

func (p *play) step(s reference.Step) error {
	switch s.Do {
	case reference.Produce:
		return p.produce(s.N)
	case reference.Start:
		p.start()
	case reference.Stop:
		p.actors[s.N%len(p.actors)].cancel()
	case reference.Pause, reference.Resume:
		return p.stage.pause(s.Do == reference.Pause)
	case reference.Lose, reference.Refuse:
		p.stage.fault(s.Do, s.N+1)
	case reference.Redrive, reference.Discard:
		return p.operate(s.Do)
	case reference.Compact:
		return p.compact()
	}
	return nil
}

// body is a message's payload.
type body struct {
	Name string `json:"name"`
}

func (p *play) produce(n int) error {
	list := p.told.Messages[p.produced:min(p.produced+n, len(p.told.Messages))]
	msgs := make([]delivery.Message, len(list))
	for i, m := range list {
		payload, err := json.Marshal(body{m.Name})
		if err != nil {
			return err
		}
		msgs[i] = delivery.Message{Payload: payload, Key: m.Key, Options: delivery.EncodeRequest(delivery.Policy{MaxAttempts: m.MaxAttempts, KeyOrder: delivery.KeyOrder(m.Order)})}
	}
	// Counted before: what is produced can run before the call returns.
	p.mu.Lock()
	p.produced += len(list)
	want := int64(p.produced)
	p.mu.Unlock()
	last, err := p.stage.produce(msgs)
	if err == nil && last != want {
		err = fmt.Errorf("the last id is %d, want %d", last, want)
	}
	return err
}

// operate redrives or discards what is dead now.
func (p *play) operate(action string) error {
	dead, err := p.stage.dead()
	if err != nil || len(dead) == 0 {
		return err
	}
	var ids []int64
	for id := range dead {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		p.rec.Operate(action, p.name(id))
	}
	if err := p.stage.operate(action, ids); err != nil {
		return err
	}
	p.stage.wakeAll()
	return nil
}

// compact removes every message that has a later one of its key.
func (p *play) compact() error {
	var ids []int64
	later := make(map[string]bool)
	for i, m := range slices.Backward(p.plan.Messages[:p.produced]) {
		if m.Key != "" && later[m.Key] {
			p.rec.Removed(m.Name)
			ids = append(ids, int64(i)+1)
		}
		later[m.Key] = true
	}
	if len(ids) == 0 {
		return nil
	}
	return p.stage.remove(ids)
}

// superseded is how many messages the instances have passed over; negative if some have died, or were not heard to the end. Nor is it known where messages wait for their keys:
// a range of which nothing else is left is not handed out, so no instance sees what is missing in it.
func (p *play) superseded() (n int) {
	if slices.ContainsFunc(p.plan.Messages, func(m reference.Message) bool { return p.plan.OrderOf(&m) != reference.Parallel }) {
		return -1
	}
	for _, a := range p.actors {
		if p.rec.Gone(a.number) {
			return -1
		}
		n += int(a.session.Health().Superseded)
	}
	return n
}

// end heals everything, lets the rest be handled, and does what operators do then.
func (p *play) end() (*reference.Final, error) {
	p.rec.Calm()
	p.stage.fault("", 0)
	if err := p.stage.pause(false); err != nil {
		return nil, err
	}
	p.start()
	for _, action := range p.plan.Settle {
		if _, err := p.settled(); err != nil {
			return nil, err
		}
		if err := p.operate(action); err != nil {
			return nil, err
		}
	}
	return p.settled()
}

// settled waits until nothing moves any more. If that does not come the judge says why.
func (p *play) settled() (final *reference.Final, err error) {
	err = p.stage.settle("nothing moves", func() (bool, error) {
		var err error
		if final, err = p.final(); err != nil {
			return false, err
		}
		return final.Settled(p.plan), nil
	})
	return final, err
}

func (p *play) final() (*reference.Final, error) {
	waiting, open, err := p.stage.unresolved()
	if err != nil {
		return nil, err
	}
	// Asked afterwards: what dies in between is in neither list, and settled all the same.
	dead, err := p.stage.dead()
	if err != nil {
		return nil, err
	}
	f := &reference.Final{Dead: make(map[string]reference.Letter)}
	for id, letter := range dead {
		f.Dead[p.name(id)] = letter
	}
	for _, id := range waiting {
		f.Waiting = append(f.Waiting, p.name(id))
	}
	for _, id := range open {
		f.Open = append(f.Open, p.name(id))
	}
	return f, nil
}

// groupConfig is the group's stored config, as far as the stores read it.
func groupConfig(p *reference.Plan) []byte {
	order := ""
	if p.Override != "" {
		order = fmt.Sprintf(`,"key_order":%q`, p.Override)
	}
	return fmt.Appendf(nil, `{"v":1%s,"park_key_on_dead_letter":%v}`, order, p.Park)
}

// errDead is what a dead instance says. Nobody hears it.
var errDead = errors.New("the instance is dead")

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// start starts an instance.
func (p *play) start() {
	a := &actor{play: p, number: len(p.actors) + 1, id: uuid.New(), quit: make(chan struct{}), ended: make(chan struct{})}
	var err error
	if a.store, a.cutOff, err = p.stage.link(a.number); err != nil {
		p.fault("%v", err)
		return
	}
	waker, done := p.stage.waker(p.began)
	stream, group := p.stage.ids()
	policy := delivery.Policy{Timeout: p.timeout, MaxAttempts: p.plan.MaxAttempts, BaseDelay: p.plan.Backoff, Exponent: 2, MaxDelay: 4 * p.plan.Backoff, KeyOrder: delivery.Parallel}
	limits := delivery.Limits{Default: policy, Max: policy, KeyOrder: delivery.KeyOrder(p.told.Override), Park: p.told.Park}
	limits.Max.MaxAttempts = 100
	o := p.options
	o.Handlers, o.BatchLimit, o.MaxReclaims = p.plan.Handlers, p.plan.BatchLimit, p.plan.MaxReclaims
	strays := &consume.Strays{}
	s, err := consume.NewSession(consume.Config{
		Store: a, Waker: waker, Gate: &consume.Gate{}, Strays: strays, Logger: quiet(), Hooks: []consume.Hook{a}, Stream: "s", Group: "g", StreamID: stream, GroupID: group,
		Instance: a.id, Limits: limits, ConfigVersion: 1, Options: o, Handler: a.handle,
	})
	if err != nil {
		p.fault("%v", err)
		return
	}
	a.session = s
	var run context.Context
	run, a.cancel = context.WithCancel(context.WithoutCancel(p.began))
	p.mu.Lock()
	p.actors = append(p.actors, a)
	p.mu.Unlock()
	go func() {
		defer close(a.ended)
		defer done()
		if err := s.Run(run); err != nil {
			p.fault("Run of i%d returned %v", a.number, err)
		}
		if s.Health().LastError != "" {
			p.rec.Left(a.number)
		}
		_ = strays.Wait(run)
	}()
}

// actor is an instance that can die: then its calls reach nothing any more.
type actor struct {
	play    *play
	number  int
	id      uuid.UUID
	store   consume.Store
	cutOff  func()
	session *consume.Session
	cancel  context.CancelFunc
	quit    chan struct{} // closed when it dies
	ended   chan struct{}
}

var _ consume.Store = (*actor)(nil)

// die ends the instance if the plan says so: its connections are cut, and unless it is only cut off, its handlers are gone.
func (a *actor) die(at reference.Point) bool {
	if !a.play.rec.Reached(a.number, at) {
		return false
	}
	a.cutOff()
	if a.play.rec.Dead(a.number) {
		close(a.quit)
		a.cancel()
		a.play.stage.gone(a.id)
	}
	return true
}

func down() error { return &diag.Error{Code: diag.Unreachable, Op: "test", Retryable: true} }

func unclear() error {
	return &diag.Error{Code: diag.OutcomeUnknown, Op: "test", Retryable: true, OutcomeUnknown: true}
}

// through makes a call unless the instance is cut off.
func (a *actor) through(call func() error) error {
	if a.play.rec.Gone(a.number) {
		return down()
	}
	err := call()
	if a.play.rec.Gone(a.number) {
		return unclear()
	}
	return err
}

// Work is the call at which instances die.
func (a *actor) Work(ctx context.Context, req *delivery.WorkRequest) (reply *delivery.WorkReply, err error) {
	if a.play.rec.Gone(a.number) || a.die(reference.AtCall) {
		return nil, down()
	}
	if a.play.spoil != nil {
		a.play.spoil(req)
	}
	if !a.play.stage.strict() {
		a.sent(req, &delivery.WorkReply{})
	}
	err = a.through(func() (err error) {
		reply, err = a.store.Work(ctx, req)
		return err
	})
	if err == nil && a.die(reference.AtReply) {
		err = unclear()
	}
	if err != nil {
		return nil, err
	}
	if reply.Woken > 0 {
		a.play.stage.wakeAll()
	}
	return reply, nil
}

// sent tells the recorder which results a request holds that the reply does not refuse.
func (a *actor) sent(req *delivery.WorkRequest, reply *delivery.WorkReply) {
	tell := func(token delivery.Token, covers func(id int64) bool) {
		a.play.rec.Sent(a.number, token.String(), func(message string) bool {
			i := slices.IndexFunc(a.play.plan.Messages, func(m reference.Message) bool { return m.Name == message })
			return i >= 0 && covers(int64(i)+1)
		})
	}
	refused := func(r delivery.RangeRef) bool { return slices.Contains(reply.LostRanges, r) }
	finished := func(prefix int64, done []int64, outcomes []delivery.Outcome) func(int64) bool {
		return func(id int64) bool {
			return id <= prefix || slices.Contains(done, id) || slices.ContainsFunc(outcomes, func(o delivery.Outcome) bool { return o.ID == id && o.Kind != delivery.Waits })
		}
	}
	for _, r := range req.Results {
		if !refused(r.RangeRef) {
			tell(r.Token, func(int64) bool { return true })
		}
	}
	for _, r := range req.Partials {
		if !refused(r.RangeRef) {
			tell(r.Token, finished(r.Prefix, r.Done, r.Outcomes))
		}
	}
	for _, r := range req.Surrenders {
		if !refused(r.RangeRef) {
			tell(r.Token, finished(r.Prefix, r.Done, r.Outcomes))
		}
	}
	for _, d := range req.Deliveries {
		if d.Kind != delivery.Waits && !slices.Contains(reply.LostDeliveries, d.ID) {
			tell(d.Token, func(id int64) bool { return id == d.ID })
		}
	}
}

func (a *actor) Read(ctx context.Context, stream int, low, high int64) (msgs []delivery.Message, err error) {
	err = a.through(func() (err error) { msgs, err = a.store.Read(ctx, stream, low, high); return err })
	return msgs, err
}

func (a *actor) ReadIDs(ctx context.Context, stream, group int, ids []int64) (msgs []delivery.Message, err error) {
	err = a.through(func() (err error) { msgs, err = a.store.ReadIDs(ctx, stream, group, ids); return err })
	return msgs, err
}

func (a *actor) Held(ctx context.Context, group int, tokens []delivery.Token) (held *delivery.Held, err error) {
	err = a.through(func() (err error) { held, err = a.store.Held(ctx, group, tokens); return err })
	return held, err
}

func (a *actor) Beat(ctx context.Context, group int, instance uuid.UUID) error {
	return a.through(func() error { return a.store.Beat(ctx, group, instance) })
}

func (a *actor) Leave(ctx context.Context, group int, instance uuid.UUID) error {
	return a.through(func() error { return a.store.Leave(ctx, group, instance) })
}

// Observe notes what excuses that a message runs again.
func (a *actor) Observe(e consume.Event) {
	switch e.Kind {
	case consume.KindLeaseLost, consume.KindStale, consume.KindAbandoned:
		if e.Kind != consume.KindStale && e.Message != 0 {
			a.play.rec.Excuse(a.number, a.play.name(e.Message))
			return
		}
		a.play.rec.Excuse(a.number, a.play.names(e.Low, e.High)...)
	}
}

// handle does what the plan says.
func (a *actor) handle(_ context.Context, m *delivery.Message, at consume.Attempt) error {
	began := time.Now()
	var b body
	if err := json.Unmarshal(m.Payload, &b); err != nil {
		a.play.fault("message %d: %v", m.ID, err)
	}
	if name := a.play.name(m.ID); name != b.Name {
		a.play.fault("message %d is %q, want %q", m.ID, b.Name, name)
	}
	task := a.play.rec.Begin(reference.Begin{
		Instance: a.number, Message: b.Name, Lease: at.Token.String(), Attempt: at.Attempt, Aside: at.Delivery, OutOfOrder: at.OutOfOrder,
	})
	if task.Run == 0 {
		return errDead
	}
	a.die(reference.AtStart)
	timer := time.NewTimer(task.Takes)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-a.quit:
		return errDead
	}
	late := time.Since(began) >= a.play.timeout
	if !a.play.rec.End(task.Run, late) {
		return errDead
	}
	a.die(reference.AtEnd)
	switch task.Act {
	case reference.Fail:
		return errors.New("no")
	case reference.Panic:
		panic("no")
	case reference.Terminal:
		return consume.Terminal(errors.New("never"))
	case reference.Delay:
		return consume.Delay(cmp.Or(task.Delay, time.Millisecond))
	}
	return nil
}
