package consume

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// member is a session as the gate sees it.
type member struct {
	running, closed, held bool
	again                 int
}

func (m *member) gateClosed() bool { m.closed = true; return m.running }
func (m *member) gateOpened()      { m.closed = false; m.held = false }
func (m *member) gateHeld()        { m.held = true }
func (m *member) gateAgain()       { m.again++ }

func TestGate(t *testing.T) { synctest.Test(t, testGate) }

func testGate(t *testing.T) {
	g := &Gate{}
	a, b, c := &member{running: true}, &member{running: true}, &member{}
	for _, m := range []*member{a, b, c} {
		g.join(m)
	}
	if wait := g.ask(a); wait != 0 || a.held || !a.closed || !b.closed || !c.closed {
		t.Fatalf("asked: wait %v, %+v %+v %+v", wait, a, b, c)
	}
	if g.ask(b); b.held {
		t.Fatal("two hold it")
	}
	a.running = false
	g.idle(a)
	if a.held {
		t.Fatal("held while b runs")
	}
	d := &member{}
	g.join(d)
	if !d.closed {
		t.Fatal("one that joins starts all the same")
	}
	b.running = false
	g.idle(b)
	if !a.held {
		t.Fatal("not held when all are idle")
	}
	g.release(a)
	if a.closed || b.closed || c.closed || d.closed || b.again != 1 {
		t.Fatalf("released: %+v %+v", a, b)
	}
	// Open for a while, then b's turn.
	for wait := g.ask(b); wait > 0; wait = g.ask(b) {
		if wait > maxGateOpen {
			t.Fatalf("open for %v", wait)
		}
		time.Sleep(wait)
	}
	if !b.held {
		t.Fatal("b does not hold it")
	}
	if g.ask(c); c.held {
		t.Fatal("two hold it")
	}
	// It ends while it holds the gate: the gate opens.
	g.leave(b)
	if a.closed || c.again != 1 {
		t.Fatalf("left: %+v %+v", a, c)
	}
	// One that no longer wants it makes room.
	g.ask(d)
	g.release(c)
	if d.again != 1 {
		t.Fatalf("withdrawn: %+v", d)
	}
}

// However sessions ask, run, withdraw and leave, at most one holds the gate, only while nothing runs, and nobody waits for ever.
func TestGateProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g := &Gate{}
		members := make([]*member, rapid.IntRange(1, 4).Draw(rt, "members"))
		for i := range members {
			members[i] = &member{}
			g.join(members[i])
		}
		wants := make(map[*member]bool)
		ask := func(m *member) {
			wants[m] = true
			g.open = time.Time{} // the fair share is tested elsewhere
			g.ask(m)
		}
		check := func() {
			held := 0
			for _, m := range members {
				if m.held {
					held++
					for _, o := range members {
						if o.running {
							rt.Fatal("held while something runs")
						}
					}
				}
			}
			if held > 1 {
				rt.Fatalf("%d hold it", held)
			}
		}
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			m := members[rapid.IntRange(0, len(members)-1).Draw(rt, "who")]
			switch rapid.IntRange(0, 3).Draw(rt, "what") {
			case 0:
				if !m.closed {
					m.running = true
				}
			case 1:
				if m.running {
					m.running = false
					if m.closed {
						g.idle(m)
					}
				}
			case 2:
				ask(m)
			case 3:
				delete(wants, m)
				g.release(m)
			}
			check()
			for _, m := range members {
				if m.again > 0 {
					m.again = 0
					if wants[m] {
						ask(m)
					} else {
						g.release(m)
					}
				}
			}
			check()
		}
		// Everything ends: whoever wants it gets it.
		for range 20 * len(members) {
			for _, m := range members {
				m.running = false
				if m.closed {
					g.idle(m)
				}
				if m.held {
					delete(wants, m)
					g.release(m)
				}
				if wants[m] {
					ask(m)
				}
			}
		}
		if len(wants) > 0 {
			rt.Fatalf("%d wait for ever", len(wants))
		}
	})
}

func TestBoundText(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		in := rapid.SliceOfN(rapid.Byte(), 0, 6000).Draw(rt, "text")
		out := boundText(string(in))
		if len(out) > maxErrorText || !utf8.ValidString(out) || strings.ContainsRune(out, 0) {
			rt.Fatalf("%d bytes: %q", len(out), out)
		}
	})
}

func TestDelayIsBounded(t *testing.T) {
	for in, want := range map[time.Duration]time.Duration{-1: 0, 0: 0, time.Second: time.Second, 1 << 62: maxDelay} {
		for _, err := range []error{Delay(in), &DelayError{Delay: in}, fmt.Errorf("wrapped: %w", Delay(in))} {
			if v := judge(err); v.kind != delivery.Delayed || v.delay != want {
				t.Errorf("%v: %+v", in, v)
			}
		}
	}
}

func TestLimiter(t *testing.T) {
	var l limiter
	at := time.Unix(0, 0)
	if _, ok := l.allow("SQL0105", at); !ok {
		t.Error("the first is not written")
	}
	for range 3 {
		if _, ok := l.allow("SQL0105", at.Add(59*time.Second)); ok {
			t.Error("two within a minute")
		}
	}
	if _, ok := l.allow("SQL0100", at.Add(59*time.Second)); !ok {
		t.Error("another code is held back")
	}
	if n, ok := l.allow("SQL0105", at.Add(time.Minute)); !ok || n != 3 {
		t.Errorf("after a minute: %d, %v", n, ok)
	}
	if n, ok := l.allow("SQL0105", at.Add(3*time.Minute)); !ok || n != 0 {
		t.Errorf("later: %d, %v", n, ok)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	h := func(context.Context, *delivery.Message, Attempt) error { return nil }
	for _, o := range []Options{{Handlers: -1}, {BatchLimit: -1}, {QueueMargin: -1}, {StopTimeout: -time.Second}, {MaxBatchBytes: -5}} {
		_, err := NewSession(Config{Store: &endless{}, Waker: silent{}, Handler: h, Options: o})
		if !errors.Is(err, diag.Sentinel(diag.InvalidOption)) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := NewSession(Config{Store: &endless{}, Waker: silent{}}); !errors.Is(err, diag.Sentinel(diag.InvalidOption)) {
		t.Errorf("without a handler: %v", err)
	}
	o := Options{BatchMin: 5000}.withDefaults()
	want := Options{
		Handlers: 10, BatchLimit: 1000, BatchMin: 1000, MaxBatchBytes: 8 << 20, QueueSize: 2, QueueMargin: 15 * time.Second,
		TimeoutGrace: 100 * time.Millisecond, RecordMargin: 2 * time.Second, PollInterval: time.Second, MaxReclaims: 3,
	}
	if o != want {
		t.Errorf("%+v", o)
	}
}

// The estimate rises quickly, falls slowly, and one odd sample among many does not move the size of claims for long.
func TestEstimate(t *testing.T) {
	var e estimate
	for range 100 {
		e.sample(int64(time.Millisecond))
	}
	for range 5 {
		e.sample(int64(time.Second))
	}
	if e.value < int64(900*time.Millisecond) {
		t.Errorf("after five slow ones: %v", time.Duration(e.value))
	}
	for range 30 {
		e.sample(int64(time.Millisecond))
	}
	if e.value < int64(50*time.Millisecond) {
		t.Errorf("thirty quick ones later: %v", time.Duration(e.value))
	}
	for range 300 {
		e.sample(int64(time.Millisecond))
	}
	if e.value > int64(2*time.Millisecond) {
		t.Errorf("in the end: %v", time.Duration(e.value))
	}
}

// The size of claims at most doubles with each that was filled, and halves when a range went stale.
func TestSizeHalvesAfterStale(t *testing.T) {
	m := newMachine(Options{Handlers: 1}, names{}, testLimits(), 1, func() float64 { return 0.5 }, func() delivery.Token { return delivery.Token{1} }, instant{})
	for _, want := range []int{1, 2, 4, 8, 16} {
		if m.size != want {
			t.Fatalf("size %d, want %d", m.size, want)
		}
		m.lastAsk = m.size
		m.grow(m.size)
	}
	now := instant{}
	m.adopt(&delivery.Range{High: 3, Lease: time.Second}, now, now)
	m.readDone(m.spans[0], []delivery.Message{{ID: 1}, {ID: 2}, {ID: 3}}, now)
	var at start
	if m.take(0, now, &at) || m.counts.Stale != 1 || m.size != 8 {
		t.Errorf("stale %d, size %d", m.counts.Stale, m.size)
	}
}
