package consume_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/storetest"
)

// rig is a stream with a group in memory, inside a synctest bubble.
type rig struct {
	t      *testing.T
	store  *storetest.Memory
	stream int
	group  int
	limits delivery.Limits
	began  time.Time
	gate   *consume.Gate
	strays *consume.Strays
}

func newRig(t *testing.T, policy delivery.Policy) *rig {
	policy = policy.Or(delivery.DefaultPolicy())
	r := &rig{t: t, store: storetest.NewMemory(), began: time.Now(), gate: &consume.Gate{}, strays: &consume.Strays{}}
	r.limits = delivery.Limits{Default: policy, Max: policy}
	r.limits.Max.MaxAttempts = max(policy.MaxAttempts, 100)
	r.stream = r.store.AddStream()
	r.group = r.store.AddGroup(r.stream, policy.Timeout, 3)
	return r
}

// at says how long the bubble has been running.
func (r *rig) at() time.Duration { return time.Since(r.began) }

func (r *rig) append(n int) { r.store.Append(r.stream, storetest.Messages(n)...) }

// instance is one running session.
type instance struct {
	*consume.Session
	logs   *logbook
	events *eventbook
	waker  *storetest.Waker
	cancel context.CancelFunc
	ended  chan struct{}
	err    error
}

func (r *rig) start(o consume.Options, h consume.Handler) *instance {
	return r.startGroup(r.group, o, h)
}

func (r *rig) startGroup(group int, o consume.Options, h consume.Handler) *instance {
	return r.startWith(group, o, h, nil)
}

func (r *rig) startWith(group int, o consume.Options, h consume.Handler, change func(*consume.Config)) *instance {
	r.t.Helper()
	i := &instance{logs: &logbook{}, events: &eventbook{}, waker: r.store.Waker(group), ended: make(chan struct{})}
	c := consume.Config{
		Store: r.store, Waker: i.waker, Gate: r.gate, Strays: r.strays, Logger: slog.New(i.logs), Hooks: []consume.Hook{i.events},
		Stream: "payments.requested", Group: "charge-cards", StreamID: r.stream, GroupID: group, Instance: uuid.New(),
		Limits: r.limits, ConfigVersion: 1, Handler: h, Options: o,
	}
	if change != nil {
		change(&c)
	}
	s, err := consume.NewSession(c)
	if err != nil {
		r.t.Fatal(err)
	}
	i.Session = s
	ctx, cancel := context.WithCancel(context.Background())
	i.cancel = cancel
	go func() {
		defer close(i.ended)
		i.err = s.Run(ctx)
	}()
	return i
}

// stop ends the session and waits for it.
func (i *instance) stop(t *testing.T) {
	t.Helper()
	i.cancel()
	<-i.ended
	if i.err != nil {
		t.Errorf("Run returned %v", i.err)
	}
}

// logbook keeps log lines.
type logbook struct {
	mu    sync.Mutex
	lines []line
	with  []slog.Attr
	root  *logbook
}

type line struct {
	level slog.Level
	text  string
	attrs map[string]any
	at    time.Time
}

func (b *logbook) Enabled(context.Context, slog.Level) bool { return true }
func (b *logbook) WithGroup(string) slog.Handler            { return b }
func (b *logbook) WithAttrs(attrs []slog.Attr) slog.Handler {
	root := b
	if b.root != nil {
		root = b.root
	}
	return &logbook{with: append(append([]slog.Attr(nil), b.with...), attrs...), root: root}
}

func (b *logbook) Handle(_ context.Context, r slog.Record) error {
	root := b
	if b.root != nil {
		root = b.root
	}
	l := line{level: r.Level, text: r.Message, attrs: make(map[string]any), at: r.Time}
	for _, a := range b.with {
		l.attrs[a.Key] = a.Value.Any()
	}
	r.Attrs(func(a slog.Attr) bool { l.attrs[a.Key] = a.Value.Any(); return true })
	root.mu.Lock()
	defer root.mu.Unlock()
	root.lines = append(root.lines, l)
	return nil
}

// find returns the lines with this text, code those with this code.
func (b *logbook) find(text string) []line {
	return b.filter(func(l line) bool { return l.text == text })
}

func (b *logbook) code(code string) []line {
	return b.filter(func(l line) bool { return l.attrs["code"] == code })
}

func (b *logbook) filter(f func(line) bool) []line {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found []line
	for _, l := range b.lines {
		if f(l) {
			found = append(found, l)
		}
	}
	return found
}

// eventbook keeps events.
type eventbook struct {
	mu   sync.Mutex
	list []consume.Event
}

func (b *eventbook) Observe(e consume.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list = append(b.list, e)
}

func (b *eventbook) kind(kind string) []consume.Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found []consume.Event
	for _, e := range b.list {
		if e.Kind == kind {
			found = append(found, e)
		}
	}
	return found
}

// diary notes what handlers did.
type diary struct {
	mu      sync.Mutex
	began   time.Time
	entries []string
	count   map[int64]int
}

func (r *rig) diary() *diary { return &diary{began: r.began, count: make(map[int64]int)} }

func (d *diary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.entries = append(d.entries, fmt.Sprintf("%v ", time.Since(d.began).Round(time.Millisecond))+fmt.Sprintf(format, args...))
}

func (d *diary) ran(id int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count[id]++
}

func (d *diary) runs(id int64) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.count[id]
}

func (d *diary) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.entries...)
}

// sleep waits, unless the context ends first.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
