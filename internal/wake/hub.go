package wake

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Source is what the hub needs of a database. Its methods keep to the deadline of their context.
type Source interface {
	// Probe says how groups stand. The groups belong to at most 50 streams; one that does not exist any more is Gone, or left out.
	Probe(ctx context.Context, groups []int) ([]Probed, error)
	// Drain moves visible rows of a stream's inbox into its log. The lock is only tried. What the reply says counts also beside an error.
	Drain(ctx context.Context, stream int) (DrainReply, error)
	// Notify sends a payload to every listener of the installation.
	Notify(ctx context.Context, payload string) error
	// Listen opens a connection of its own, makes sure that it does not lead to a standby, and listens.
	Listen(ctx context.Context) (Listener, error)
}

// Probed is how one group stands.
type Probed struct {
	Group, Stream int
	// Claimed is the group's frontier, Head the newest id of its stream.
	Claimed, Head int64
	// Inbox: visible rows wait in the stream's inbox.
	Inbox bool
	// Due: a pending delivery is due. NextDue is until the next one is; negative: none.
	Due     bool
	NextDue time.Duration
	// Expired: the lease of an open range or of a running delivery has ended.
	Expired bool
	Paused  bool
	// Gone: the group or its stream is deleted.
	Gone bool
}

// DrainReply says what a drain did.
type DrainReply struct {
	Moved int
	// More: further rows wait; with Moved 0 they could not be moved yet. Busy: somebody else has the stream's lock, so nothing was looked at.
	More, Busy bool
	// Head is the newest id of the stream after the drain, also when nothing was moved; 0: not known. It tells what another process moved.
	Head int64
}

// Listener is a connection that listens. One goroutine uses it.
type Listener interface {
	// Wait returns the next announcement. When ctx ends first it returns an error, and the connection stays usable.
	Wait(ctx context.Context) (payload string, err error)
	// Ping asks the server for a sign of life.
	Ping(ctx context.Context) error
	// Close ends the connection and waits for its resources, at most until ctx ends.
	Close(ctx context.Context)
}

// Bounds and default of Config.PollInterval.
const (
	DefaultPollInterval = time.Second
	MinPollInterval     = time.Millisecond
	MaxPollInterval     = time.Hour
)

// Config is what a hub works with.
type Config struct {
	Source Source
	// Logger gets faults and recoveries. Default: slog's default.
	Logger *slog.Logger
	// PollInterval is how often idle groups are probed. Default 1 s, 1 ms to 1 h; values outside are moved to the bound. Idle groups never
	// cause more than five statements a second, whatever this says and however many there are.
	PollInterval time.Duration
	// PollOnly: do not listen. Announcements are still sent, as other processes may listen.
	PollOnly bool
	// PingInterval is after how much silence the listening connection is asked for a sign of life. The answer may take as long, but at least
	// a second. Default 5 s.
	PingInterval time.Duration
}

// Hub wakes the groups of one process.
type Hub struct {
	source   Source
	faults   faults
	every    time.Duration
	pollOnly bool
	ping     time.Duration

	drains chan struct{} // a slot for each drain that is on its way
	ctx    context.Context
	cancel context.CancelFunc // ends what Close cannot wait for any longer
	done   chan struct{}      // closed when Close has begun and no goroutine is left

	// mu guards everything below, and what groups, streams and subscriptions hold. No statement is sent under it.
	mu      sync.Mutex
	closed  bool
	running int // goroutines
	run     *run
	groups  map[int]*group
	streams map[int]*stream
	poll    polling
	send    sending
	state   State
}

// run is the time from a first subscription to the closing of the last one.
type run struct {
	ctx       context.Context
	cancel    context.CancelFunc
	kick      chan struct{} // makes the poller reckon anew
	connected bool          // LISTEN has succeeded before
}

// State is how the hub stands, for health reports.
type State struct {
	// Listening: announcements arrive. Since says for how long it has been so, or not so; zero before the first subscription.
	Listening bool
	Since     time.Time
	// Reconnects counts the times that LISTEN succeeded after the first.
	Reconnects int
	// Missed counts the times that polling found new messages of a stream though it was listening and nothing was announced.
	Missed int64
	// LastProbe is when a probe last succeeded.
	LastProbe time.Time
	// Unsent counts announcements that could not be sent.
	Unsent int64
}

// NewHub returns a hub that does nothing yet.
func NewHub(c Config) *Hub {
	h := &Hub{
		source:   c.Source,
		every:    clampInterval(cmp.Or(c.PollInterval, DefaultPollInterval)),
		pollOnly: c.PollOnly,
		ping:     cmp.Or(max(c.PingInterval, 0), defaultPing),
		drains:   make(chan struct{}, maxDrains),
		done:     make(chan struct{}),
		groups:   make(map[int]*group),
		streams:  make(map[int]*stream),
	}
	h.faults.log = cmp.Or(c.Logger, slog.Default())
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.send.init()
	return h
}

func clampInterval(d time.Duration) time.Duration {
	return min(max(d, MinPollInterval), MaxPollInterval)
}

// State returns how the hub stands.
func (h *Hub) State() State {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}

// spawn starts a goroutine that Close waits for. mu is held, and closed is false: once it is true the count only falls, so that done is
// closed once.
func (h *Hub) spawn(f func()) {
	h.running++
	go func() {
		defer h.ended()
		f()
	}()
}

func (h *Hub) ended() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.running--
	if h.closed && h.running == 0 {
		close(h.done)
	}
}

// closeGrace is how long goroutines have to end after their contexts have.
const closeGrace = 2 * time.Second

// Close sends the announcements that wait, stops everything and waits for it. When ctx ends, nothing is sent any more. It may be called at any
// time and more than once. The error says that something did not end.
func (h *Hub) Close(ctx context.Context) error {
	h.mu.Lock()
	if !h.closed {
		h.closed = true
		h.stop()
		kick(h.send.kick)
		if h.running == 0 {
			close(h.done)
		}
	}
	h.mu.Unlock()
	defer h.cancel()

	select {
	case <-h.done:
		return nil
	case <-ctx.Done():
	}
	h.cancel()
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
	select {
	case <-h.done:
		return nil
	case <-grace.C:
		return fmt.Errorf("close the wake-up hub: a statement did not end with its context: %w", context.Cause(ctx))
	}
}

// start begins a run. mu is held.
func (h *Hub) start() {
	r := &run{kick: make(chan struct{}, 1)}
	r.ctx, r.cancel = context.WithCancel(h.ctx)
	h.run = r
	h.poll = polling{}
	h.state.Since = time.Now()
	h.spawn(func() { h.pollAll(r) })
	if !h.pollOnly {
		h.spawn(func() { h.listen(r) })
	}
}

// stop ends the run, if there is one. Its goroutines see that theirs is not the hub's run any more, so a new one may begin before they are
// gone. mu is held.
func (h *Hub) stop() {
	if h.run == nil {
		return
	}
	h.run.cancel()
	h.run = nil
	h.setListening(false)
}

// setListening notes whether announcements arrive. mu is held.
func (h *Hub) setListening(listening bool) {
	if h.state.Listening == listening {
		return
	}
	h.state.Listening, h.state.Since = listening, time.Now()
	if h.run != nil {
		kick(h.run.kick) // groups with recent work are polled fast from now on, or not any more
	}
}

// pause waits for d (negative: for ever), for kick, or for the end of ctx.
func pause(ctx context.Context, d time.Duration, kick <-chan struct{}) {
	var timeout <-chan time.Time
	if d >= 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-timeout:
	case <-kick:
	case <-ctx.Done():
	}
}

// kick leaves a mark in a channel of capacity one.
func kick(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
