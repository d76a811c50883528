package consume_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/storetest"
)

// Random histories: whatever instances, handlers, the store and operators do, nothing is lost, nothing starts without enough lease, no two
// valid leases run one message, and every message finally has an outcome.
func TestRandomHistories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := &history{plan: drawPlan(rt)}
		synctest.Test(t, h.play)
		if len(h.faults) > 0 {
			rt.Fatalf("%+v\n%v", h.plan, h.faults)
		}
	})
}

// plan is what happens in a history.
type plan struct {
	Messages  int
	Options   consume.Options
	Policy    delivery.Policy
	Latency   time.Duration
	Instances int
	Steps     []step
	Outcomes  []outcome // of the attempts of a message, by id and attempt
}

type step struct {
	After time.Duration
	Do    string
	N     int
}

type outcome struct {
	Takes time.Duration
	End   string
}

func drawPlan(t *rapid.T) plan {
	ms := func(name string, list ...int) time.Duration {
		return time.Duration(rapid.SampledFrom(list).Draw(t, name)) * time.Millisecond
	}
	p := plan{
		Messages:  rapid.IntRange(1, 60).Draw(t, "messages"),
		Instances: rapid.IntRange(1, 3).Draw(t, "instances"),
		Latency:   ms("latency", 0, 1, 20),
		Policy: delivery.Policy{
			Timeout: ms("timeout", 200, 1000), MaxAttempts: rapid.IntRange(1, 4).Draw(t, "attempts"),
			BaseDelay: ms("base delay", 1, 100), Exponent: 2, MaxDelay: time.Second,
		},
		Options: consume.Options{
			Handlers: rapid.IntRange(1, 5).Draw(t, "handlers"), BatchLimit: rapid.SampledFrom([]int{1, 4, 1000}).Draw(t, "limit"),
			QueueMargin: ms("queue margin", 300, 2000), TimeoutGrace: ms("grace", 10, 100), RecordMargin: ms("record margin", 100, 500),
			ReleaseStale: rapid.Bool().Draw(t, "release stale"), StopTimeout: ms("stop timeout", 0, 100),
		},
	}
	if rapid.Bool().Draw(t, "fixed size") {
		p.Options.BatchMin = p.Options.BatchLimit
	}
	for range rapid.IntRange(0, 12).Draw(t, "steps") {
		p.Steps = append(p.Steps, step{
			After: ms("after", 0, 1, 50, 400, 1500),
			Do:    rapid.SampledFrom([]string{"refuse", "lose before", "lose after", "down", "up", "crash", "stop", "start", "append", "pause", "resume", "expire", "clock", "clock"}).Draw(t, "do"),
			N:     rapid.IntRange(0, 5).Draw(t, "n"),
		})
	}
	for range rapid.IntRange(1, 10).Draw(t, "outcomes") {
		p.Outcomes = append(p.Outcomes, outcome{
			Takes: ms("takes", 0, 0, 1, 30, 150, 250, 990, 1500),
			End:   rapid.SampledFrom([]string{"ok", "ok", "ok", "error", "panic", "exit", "delay", "terminal", "ignores its context"}).Draw(t, "end"),
		})
	}
	return p
}

// history is one that is played.
type history struct {
	plan   plan
	faults []string

	mu        sync.Mutex
	store     *storetest.Memory
	group     int
	healing   bool
	expired   bool // leases were ended by force: what they promised does not hold
	succeeded map[int64]int
	attempts  map[int64]int
	running   map[int64][]*running
}

type running struct {
	ends  time.Time // of its lease
	gives time.Time // when it is written off at the latest
	by    *process
}

// process is an instance that can crash: then its calls reach nothing any more.
type process struct {
	*storetest.Memory
	mu      sync.Mutex
	crashed bool
	cancel  context.CancelFunc
	ended   chan struct{}
	skew    atomic.Int64
}

func (p *process) dead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.crashed
}

func (p *process) Work(ctx context.Context, req *delivery.WorkRequest) (*delivery.WorkReply, error) {
	if p.dead() {
		return nil, storetest.Down()
	}
	return p.Memory.Work(ctx, req)
}

func (p *process) Held(ctx context.Context, group int, tokens []delivery.Token) (*delivery.Held, error) {
	if p.dead() {
		return nil, storetest.Down()
	}
	return p.Memory.Held(ctx, group, tokens)
}

func (h *history) fault(format string, args ...any) {
	h.faults = append(h.faults, fmt.Sprintf(format, args...))
}

func (h *history) play(t *testing.T) {
	h.store = storetest.NewMemory()
	h.store.SetLatency(h.plan.Latency)
	h.succeeded, h.attempts, h.running = make(map[int64]int), make(map[int64]int), make(map[int64][]*running)
	stream := h.store.AddStream()
	group := h.store.AddGroup(stream, h.plan.Policy.Timeout, 3)
	h.group = group
	h.store.Append(stream, storetest.Messages(h.plan.Messages)...)
	ctx, end := context.WithCancel(t.Context())
	var polls sync.WaitGroup
	gate, strays := &consume.Gate{}, &consume.Strays{}
	var all []*process
	start := func() {
		p := &process{Memory: h.store, ended: make(chan struct{})}
		waker := h.store.Waker(group)
		polls.Go(func() { waker.Poll(ctx, 100*time.Millisecond) })
		s, err := consume.NewSession(consume.Config{
			Store: p, Waker: waker, Gate: gate, Strays: strays, Logger: quiet(), Stream: "s", Group: "g", StreamID: stream, GroupID: group,
			Instance: uuid.New(), Limits: delivery.Limits{Default: h.plan.Policy, Max: h.plan.Policy}, ConfigVersion: 1,
			Options: h.plan.Options, Handler: h.handler(p),
		})
		if err != nil {
			h.fault("%v", err)
			return
		}
		s.Skew(&p.skew)
		var runCtx context.Context
		runCtx, p.cancel = context.WithCancel(context.Background())
		all = append(all, p)
		go func() {
			defer close(p.ended)
			if err := s.Run(runCtx); err != nil {
				h.fault("Run returned %v", err)
			}
			if got := s.Health(); got.Running != 0 || got.Queued != 0 || got.Ranges != 0 && got.LastError == "" {
				h.fault("stopped with %+v", got)
			}
		}()
	}
	for range h.plan.Instances {
		start()
	}
	for _, s := range h.plan.Steps {
		time.Sleep(s.After)
		switch s.Do {
		case "refuse":
			h.store.Fail(storetest.Fault{Times: s.N + 1, Err: storetest.Down()})
		case "lose before":
			h.store.Fail(storetest.Fault{Times: s.N + 1})
		case "lose after":
			h.store.Fail(storetest.Fault{Times: s.N + 1, After: true})
		case "down":
			h.store.Fail(storetest.Fault{Times: -1, Err: storetest.Down()})
		case "up":
			h.store.Heal()
		case "crash":
			if s.N < len(all) {
				p := all[s.N]
				p.mu.Lock()
				p.crashed = true
				p.mu.Unlock()
				p.cancel()
			}
		case "stop":
			if s.N < len(all) {
				all[s.N].cancel()
			}
		case "start":
			start()
		case "append":
			h.store.Append(stream, storetest.Messages(s.N+1)...)
		case "pause":
			h.store.SetPaused(group, true)
		case "resume":
			h.store.SetPaused(group, false)
		case "clock":
			if s.N < len(all) {
				all[s.N].skew.Add(int64(time.Duration(s.N-2) * 700 * time.Millisecond))
			}
		case "expire":
			h.mu.Lock()
			h.expired = true
			h.mu.Unlock()
			h.store.ExpireAll(group)
		}
	}
	// All is well again, for long enough.
	h.mu.Lock()
	h.healing = true
	h.mu.Unlock()
	h.store.Heal()
	h.store.SetPaused(group, false)
	start()
	time.Sleep(10 * time.Minute)
	synctest.Wait()
	h.judge(group)
	for _, p := range all {
		p.cancel()
		<-p.ended
	}
	if err := strays.Wait(context.Background()); err != nil {
		h.fault("%v", err)
	}
	end()
	polls.Wait()
}

func (h *history) handler(p *process) consume.Handler {
	o := h.plan.Options
	need := h.plan.Policy.Timeout + o.TimeoutGrace + o.RecordMargin
	return func(ctx context.Context, m *delivery.Message, a consume.Attempt) error {
		now := time.Now()
		me := &running{ends: a.LeaseDeadline.Add(-time.Duration(p.skew.Load())), gives: now.Add(h.plan.Policy.Timeout + o.TimeoutGrace), by: p}
		h.mu.Lock()
		if left, ok := h.store.Remaining(h.group, m.ID); !h.expired && ok && left < need {
			h.fault("message %d started with %v left of its lease", m.ID, left)
		}
		for _, other := range h.running[m.ID] {
			if !h.expired && other.ends.After(now) && other.gives.After(now) && other.by.cancelledAt() {
				h.fault("message %d started while another lease of it was valid", m.ID)
			}
		}
		h.running[m.ID] = append(h.running[m.ID], me)
		n := h.attempts[m.ID]
		h.attempts[m.ID]++
		end := outcome{End: "ok"}
		if !h.healing {
			end = h.plan.Outcomes[(int(m.ID)+n)%len(h.plan.Outcomes)]
		}
		h.mu.Unlock()
		defer func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			for i, r := range h.running[m.ID] {
				if r == me {
					h.running[m.ID] = append(h.running[m.ID][:i], h.running[m.ID][i+1:]...)
					break
				}
			}
		}()
		if end.End == "ignores its context" {
			time.Sleep(end.Takes)
		} else if err := sleep(ctx, end.Takes); err != nil {
			return err
		}
		switch end.End {
		case "error":
			return errors.New("no")
		case "panic":
			panic("no")
		case "exit":
			runtime.Goexit()
		case "delay":
			return consume.Delay(50 * time.Millisecond)
		case "terminal":
			return consume.Terminal(errors.New("no"))
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.succeeded[m.ID]++
		return nil
	}
}

// cancelledAt says that the process has not been told to stop or crashed: only then does its lease bind it.
func (p *process) cancelledAt() bool { return !p.dead() && !p.isStopped() }

func (p *process) isStopped() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func (h *history) judge(group int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	st := h.store.State(group)
	if len(st.Claims) > 0 || len(st.Deliveries) > 0 {
		h.fault("unresolved: %+v, %+v", st.Claims, st.Deliveries)
	}
	dead := make(map[int64]bool)
	for _, d := range st.Dead {
		dead[d.ID] = true
	}
	for id := int64(1); id <= st.Claimed; id++ {
		if h.succeeded[id] == 0 && !dead[id] {
			h.fault("message %d was lost: %d attempts", id, h.attempts[id])
		}
	}
}
