package wake

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var errDown = errors.New("server is down")

// fakeSource is a database that the test commands.
type fakeSource struct {
	mu        sync.Mutex
	latency   time.Duration // of every statement
	down      bool
	deaf      bool // announcements reach no listener
	groups    map[int]Probed
	drain     func(stream int) (DrainReply, error)
	probes    []call
	drains    []call
	notifies  []call
	listens   []call
	tries     int // statements while down
	listeners map[*fakeListener]struct{}
	inDrain   int
	maxDrain  int
}

type call struct {
	at      time.Time
	groups  []int
	stream  int
	payload string
}

func newFake() *fakeSource {
	return &fakeSource{
		groups:    make(map[int]Probed),
		listeners: make(map[*fakeListener]struct{}),
		drain:     func(int) (DrainReply, error) { return DrainReply{}, nil },
	}
}

// trip takes a statement's time and fails if the server is down.
func (f *fakeSource) trip(ctx context.Context) error {
	f.mu.Lock()
	latency := f.latency
	f.mu.Unlock()
	if latency > 0 {
		pause(ctx, latency, nil)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		f.tries++
		return errDown
	}
	return nil
}

func (f *fakeSource) Probe(ctx context.Context, groups []int) ([]Probed, error) {
	began := time.Now()
	if err := f.trip(ctx); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.probes = append(f.probes, call{at: began, groups: slices.Clone(groups)})
	var out []Probed
	for _, id := range groups {
		if p, ok := f.groups[id]; ok {
			out = append(out, p)
		}
	}
	return out, nil
}

func (f *fakeSource) Drain(ctx context.Context, stream int) (DrainReply, error) {
	began := time.Now()
	f.mu.Lock()
	f.inDrain++
	f.maxDrain = max(f.maxDrain, f.inDrain)
	f.mu.Unlock()
	err := f.trip(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inDrain--
	if err != nil {
		return DrainReply{}, err
	}
	f.drains = append(f.drains, call{at: began, stream: stream})
	return f.drain(stream)
}

func (f *fakeSource) Notify(ctx context.Context, payload string) error {
	began := time.Now()
	if err := f.trip(ctx); err != nil {
		return err
	}
	f.mu.Lock()
	f.notifies = append(f.notifies, call{at: began, payload: payload})
	f.mu.Unlock()
	f.broadcast(payload)
	return nil
}

// broadcast is a NOTIFY of any process.
func (f *fakeSource) broadcast(payload string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.deaf {
		return
	}
	for l := range f.listeners {
		l.payloads <- payload
	}
}

func (f *fakeSource) Listen(ctx context.Context) (Listener, error) {
	f.mu.Lock()
	f.listens = append(f.listens, call{at: time.Now()})
	f.mu.Unlock()
	if err := f.trip(ctx); err != nil {
		return nil, err
	}
	l := &fakeListener{source: f, payloads: make(chan string, 10000), broken: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listeners[l] = struct{}{}
	return l, nil
}

// set says how groups stand.
func (f *fakeSource) set(ps ...Probed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range ps {
		f.groups[p.Group] = p
	}
}

func (f *fakeSource) setDown(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
	if down {
		f.breakListeners()
	}
}

// breakListeners ends the listening sessions. mu is held.
func (f *fakeSource) breakListeners() {
	for l := range maps.Clone(f.listeners) {
		close(l.broken)
		delete(f.listeners, l)
	}
}

func (f *fakeSource) with(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// calls returns the calls of a kind since a moment.
func (f *fakeSource) calls(kind *[]call, since time.Time) []call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(*kind), func(c call) bool { return c.at.Before(since) })
}

// count returns how many calls of a kind there were since a moment; the zero time: ever.
func (f *fakeSource) count(kind *[]call, since time.Time) int { return len(f.calls(kind, since)) }

// times returns when calls of a kind were made, after a moment.
func (f *fakeSource) times(kind *[]call, since time.Time) []time.Duration {
	var out []time.Duration
	for _, c := range f.calls(kind, since) {
		out = append(out, c.at.Sub(since))
	}
	return out
}

// get returns one of the counts.
func (f *fakeSource) get(count *int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return *count
}

// statements returns how many there were in all.
func (f *fakeSource) statements() int {
	ever := time.Time{}
	return f.count(&f.probes, ever) + f.count(&f.drains, ever) + f.count(&f.notifies, ever) + f.count(&f.listens, ever) + f.get(&f.tries)
}

// listening returns how many listeners there are.
func (f *fakeSource) listening() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.listeners)
}

// setLatency says how long every statement takes.
func (f *fakeSource) setLatency(d time.Duration) { f.with(func() { f.latency = d }) }

// sent returns the payloads sent, without hellos.
func (f *fakeSource) sent() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for _, c := range f.notifies {
		for word := range strings.SplitSeq(c.payload, ",") {
			if word[0] != 'h' {
				out = append(out, word)
			}
		}
	}
	return out
}

type fakeListener struct {
	source   *fakeSource
	payloads chan string
	broken   chan struct{}
	mu       sync.Mutex
	frozen   bool
}

func (l *fakeListener) Wait(ctx context.Context) (string, error) {
	select {
	case p := <-l.payloads:
		return p, nil
	default:
	}
	l.mu.Lock()
	payloads := l.payloads
	if l.frozen {
		payloads = nil
	}
	l.mu.Unlock()
	select {
	case p := <-payloads:
		return p, nil
	case <-l.broken:
		return "", errDown
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (l *fakeListener) Ping(ctx context.Context) error {
	l.mu.Lock()
	frozen := l.frozen
	l.mu.Unlock()
	if frozen {
		<-ctx.Done()
		return ctx.Err()
	}
	select {
	case <-l.broken:
		return errDown
	default:
		return nil
	}
}

func (l *fakeListener) Close(context.Context) {
	l.source.mu.Lock()
	defer l.source.mu.Unlock()
	delete(l.source.listeners, l)
}

// freeze makes the listening connections half-open.
func (f *fakeSource) freeze() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for l := range maps.Clone(f.listeners) {
		l.mu.Lock()
		l.frozen = true
		l.mu.Unlock()
		delete(f.listeners, l)
	}
}

// logBuffer is a log that the test reads.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// lines returns the lines that contain all of the words.
func (b *logBuffer) lines(words ...string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []string
	for line := range strings.Lines(b.buf.String()) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			out = append(out, line)
		}
	}
	return out
}

// bubble runs a test with a hub and a fake source in virtual time. That it ends shows that no goroutine is left.
func bubble(t *testing.T, cfg Config, f func(*testing.T, *Hub, *fakeSource, *logBuffer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		source, log := newFake(), &logBuffer{}
		cfg.Source = source
		cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
		h := NewHub(cfg)
		defer func() {
			if err := h.Close(context.Background()); err != nil {
				t.Errorf("close: %v", err)
			}
			synctest.Wait()
			if source.listening() > 0 {
				t.Error("a listener is left")
			}
		}()
		f(t, h, source, log)
	})
}

// settle lets what is under way come to rest, without time passing.
func settle() { synctest.Wait() }

// after lets time pass.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// woken takes a wake-up, if there is one.
func woken(sub *Subscription) bool {
	select {
	case <-sub.C():
		return true
	default:
		return false
	}
}

// wakeAfter returns after how long the subscription is woken, or -1 if not within the limit.
func wakeAfter(sub *Subscription, limit time.Duration) time.Duration {
	began := time.Now()
	select {
	case <-sub.C():
		return time.Since(began)
	case <-time.After(limit):
		return -1
	}
}
