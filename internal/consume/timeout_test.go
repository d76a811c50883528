package consume_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/storetest"
)

// to214 makes the first message that a group sees the one of the page on consumer timeouts.
func to214(r *rig) {
	r.append(214)
	r.store.Retain(r.stream, 214)
}

// The window of the page on consumer timeouts: cancelled at 5 s, awaited to 5.1 s, then written off.
func TestTimeoutWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{Timeout: 5 * time.Second, BaseDelay: time.Hour, MaxDelay: time.Hour})
		to214(r)
		release := make(chan struct{})
		var cause, ended error
		var cancelledAt time.Duration
		i := r.start(consume.Options{}, func(ctx context.Context, m *delivery.Message, _ consume.Attempt) error {
			<-ctx.Done()
			cause, ended, cancelledAt = context.Cause(ctx), ctx.Err(), r.at()
			<-release // it ignores that it was cancelled
			return nil
		})
		time.Sleep(5*time.Second + 99*time.Millisecond)
		synctest.Wait()
		if cause == nil || cause.Error() != "Timeout (5s) exceeded for message 214 attempt 1" {
			t.Errorf("cause: %v", cause)
		}
		if !errors.Is(cause, context.DeadlineExceeded) || !errors.Is(ended, context.DeadlineExceeded) {
			t.Errorf("cause %v and error %v are no exceeded deadline", cause, ended)
		}
		if cancelledAt != 5*time.Second {
			t.Errorf("cancelled at %v", cancelledAt)
		}
		if h := i.Health(); h.Running != 1 || h.Abandoned != 0 {
			t.Errorf("within the grace: %+v", h)
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if h := i.Health(); h.Running != 0 || h.Abandoned != 1 || h.Outstanding != 1 || h.Failed != 1 || r.strays.Outstanding() != 1 {
			t.Errorf("past the grace: %+v", h)
		}
		const text = "hard timeout after 5.1s, goroutine abandoned for message 214"
		st := r.store.State(r.group)
		if diff := cmp.Diff([]storetest.Delivery{{ID: 214, Attempt: 1, Error: text}}, st.Deliveries); diff != "" {
			t.Error(diff)
		}
		if events := i.events.kind(consume.KindAbandoned); len(events) != 1 || events[0].Code != "SQL0050" || events[0].Message != 214 {
			t.Errorf("events: %+v", events)
		}
		if lines := i.logs.find("handler abandoned: it outlived its timeout and grace"); len(lines) != 1 || lines[0].attrs["code"] != "SQL0050" {
			t.Errorf("lines: %+v", lines)
		}
		i.stop(t)
		stopped := i.logs.find("consumer stopped")
		if len(stopped) != 1 || stopped[0].attrs["abandoned_count"] != int64(1) {
			t.Errorf("stopped: %+v", stopped)
		}
		// Its return is recorded even after the session has ended.
		close(release)
		synctest.Wait()
		if events := i.events.kind(consume.KindCleared); len(events) != 1 || events[0].Code != "SQL0051" || events[0].Message != 214 {
			t.Errorf("events: %+v", events)
		}
		if err := r.strays.Wait(t.Context()); err != nil || r.strays.Outstanding() != 0 {
			t.Errorf("outstanding %d, %v", r.strays.Outstanding(), err)
		}
	})
}

// What returns within the grace is an ordinary result, whatever it is.
func TestReturnWithinGrace(t *testing.T) {
	for _, want := range []error{nil, errors.New("unwound")} {
		t.Run(fmt.Sprint(want), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, delivery.Policy{Timeout: 5 * time.Second})
				r.append(1)
				i := r.start(consume.Options{}, func(ctx context.Context, _ *delivery.Message, _ consume.Attempt) error {
					<-ctx.Done()
					time.Sleep(50 * time.Millisecond)
					return want
				})
				time.Sleep(5*time.Second + 60*time.Millisecond)
				synctest.Wait()
				h := i.Health()
				if h.Abandoned != 0 || h.Succeeded+h.Failed != 1 || (h.Failed == 1) != (want != nil) {
					t.Errorf("%+v", h.Counts)
				}
				i.stop(t)
			})
		})
	}
}

// An abandoned handler's slot goes on with other work.
func TestAbandonedSlotIsUsedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{Timeout: time.Second, MaxAttempts: 1})
		r.append(5)
		release := make(chan struct{})
		d := r.diary()
		i := r.start(consume.Options{Handlers: 1}, func(_ context.Context, m *delivery.Message, _ consume.Attempt) error {
			d.ran(m.ID)
			if m.ID%2 == 1 {
				<-release
			}
			return nil
		})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		h := i.Health()
		if h.Abandoned != 3 || h.Outstanding != 3 || h.Succeeded != 2 || h.Dead != 3 {
			t.Errorf("%+v", h)
		}
		close(release)
		synctest.Wait()
		if h := i.Health(); h.Outstanding != 0 || h.Cleared != 3 || h.Succeeded != 2 || h.Running != 0 {
			t.Errorf("%+v", h)
		}
		for id := int64(1); id <= 5; id++ {
			if d.runs(id) != 1 {
				t.Errorf("message %d ran %d times", id, d.runs(id))
			}
		}
		i.stop(t)
	})
}

// A storm of abandoned handlers overflows the queue to a slow hook: told by SQL0052, and the counts stay exact.
func TestEventsOverflow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{Timeout: time.Second, MaxAttempts: 1})
		const n = 2000
		r.append(n)
		release := make(chan struct{})
		stuck := make(chan struct{})
		var mu sync.Mutex
		seen := 0
		hook := hookFunc(func(consume.Event) {
			<-stuck
			mu.Lock()
			seen++
			mu.Unlock()
		})
		i := r.startWith(r.group, consume.Options{Handlers: n, QueueSize: 10}, func(context.Context, *delivery.Message, consume.Attempt) error {
			<-release
			return nil
		}, func(c *consume.Config) { c.Hooks = []consume.Hook{hook} })
		time.Sleep(5 * time.Second)
		synctest.Wait()
		close(release)
		synctest.Wait()
		h := i.Health()
		if h.Abandoned != n || h.Cleared != n || h.Dead != n || h.Outstanding != 0 {
			t.Errorf("%+v", h)
		}
		if h.Dropped == 0 {
			t.Error("nothing was dropped")
		}
		if lines := i.logs.code("SQL0052"); len(lines) != 1 {
			t.Errorf("overflow was logged %d times", len(lines))
		}
		close(stuck)
		i.stop(t)
		if got := int64(seen) + h.Dropped; got != 4*n { // abandoned, dead, attempt, cleared
			t.Errorf("%d events are accounted for, of %d", got, 4*n)
		}
		if stopped := i.logs.find("consumer stopped"); stopped[0].attrs["abandoned_count"] != int64(n) {
			t.Errorf("stopped: %+v", stopped[0].attrs)
		}
	})
}

type hookFunc func(consume.Event)

func (f hookFunc) Observe(e consume.Event) { f(e) }

// However an attempt ends, its message gets an outcome and its slot goes on.
func TestHowAttemptsEnd(t *testing.T) {
	boom := errors.New("boom")
	long := strings.Repeat("ü", 5000)
	for _, c := range []struct {
		name    string
		handler func(ctx context.Context) error
		kind    delivery.Kind
		reason  delivery.Reason
		text    string
	}{
		{"success", func(context.Context) error { return nil }, delivery.Succeeded, "", ""},
		{"error", func(context.Context) error { return boom }, delivery.Failed, "", "boom"},
		{"panic", func(context.Context) error { panic("ouch\nwith more") }, delivery.Failed, "", "panic: ouch"},
		{"panic of an error", func(context.Context) error { panic(boom) }, delivery.Failed, "", "panic: boom"},
		{"panic of nil", func(context.Context) error { panic(nil) }, delivery.Failed, "", "panic: panic called with nil argument"},
		{"Goexit", func(context.Context) error { runtime.Goexit(); return nil }, delivery.Failed, "", "handler called runtime.Goexit"},
		{"delay", func(context.Context) error { return fmt.Errorf("later: %w", consume.Delay(time.Hour)) }, delivery.Delayed, "", ""},
		{"terminal", func(context.Context) error { return fmt.Errorf("no: %w", consume.Terminal(boom)) }, delivery.Dead, delivery.TerminalErr, "no: boom"},
		{"terminal nil", func(context.Context) error { return consume.Terminal(nil) }, delivery.Dead, delivery.TerminalErr, "terminal"},
		{"undecodable", func(context.Context) error { return consume.NotDecodable(boom) }, delivery.Dead, delivery.Undecodable, "payload cannot be decoded: boom"},
		{"unversioned", func(context.Context) error { return consume.NotConvertible(7) }, delivery.Dead, delivery.Unversioned, "no converter from payload version 7"},
		{"text that panics", func(context.Context) error { return (*badError)(nil) }, delivery.Failed, "", "the handler's error panicked when it was asked for its text"},
		{"text that no column takes", func(context.Context) error { return errors.New("a\x00b\xffc") }, delivery.Failed, "", "a\uFFFDb\uFFFDc"},
		{"long text", func(context.Context) error { return errors.New(long) }, delivery.Failed, "", long[:4096]},
		{"cancels its own context", func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return ctx.Err()
		}, delivery.Failed, "", "context canceled"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, delivery.Policy{BaseDelay: time.Hour, MaxDelay: time.Hour})
				r.append(2)
				i := r.start(consume.Options{Handlers: 1}, func(ctx context.Context, m *delivery.Message, _ consume.Attempt) error {
					if m.ID == 2 {
						return nil
					}
					return c.handler(ctx)
				})
				time.Sleep(time.Second)
				synctest.Wait()
				h, st := i.Health(), r.store.State(r.group)
				if len(st.Claims) != 0 || st.Claimed != 2 || h.Running != 0 {
					t.Errorf("not everything was recorded: %+v, %+v", st, h)
				}
				var got storetest.Delivery
				switch c.kind {
				case delivery.Succeeded:
					if h.Succeeded != 2 || len(st.Deliveries)+len(st.Dead) != 0 {
						t.Errorf("%+v, %+v", h.Counts, st)
					}
				case delivery.Dead:
					if len(st.Dead) != 1 || st.Dead[0].Reason != c.reason || st.Dead[0].Error != c.text || st.Dead[0].Attempts != 1 || h.Dead != 1 {
						t.Errorf("%+v, %+v", h.Counts, st.Dead)
					}
				default:
					if len(st.Deliveries) == 1 {
						got = st.Deliveries[0]
					}
					attempt := 1
					if c.kind == delivery.Delayed {
						attempt = 0
					}
					if diff := cmp.Diff(storetest.Delivery{ID: 1, Attempt: attempt, Error: c.text}, got); diff != "" {
						t.Error(diff)
					}
				}
				if len(got.Error) > 4096 || !utf8.ValidString(got.Error) {
					t.Errorf("text of %d bytes", len(got.Error))
				}
				i.stop(t)
			})
		})
	}
}

type badError struct{ text string }

func (e *badError) Error() string { return e.text }

// A handler's context behaves like any other.
func TestHandlerContext(t *testing.T) {
	type key struct{}
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{Timeout: 5 * time.Second})
		r.append(2)
		parent, end := context.WithCancel(context.WithValue(context.Background(), key{}, "value"))
		check := func(ctx context.Context, m *delivery.Message, a consume.Attempt) error {
			if ctx.Value(key{}) != "value" {
				return consume.Terminal(errors.New("the value is missing"))
			}
			if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) != 5*time.Second {
				return consume.Terminal(fmt.Errorf("deadline in %v, %v", time.Until(deadline), ok))
			}
			if got, at, ok := consume.FromContext(context.WithValue(ctx, "a", "b")); !ok || got != m || at != a { //nolint:staticcheck // any key will do
				return consume.Terminal(errors.New("the context is of another message"))
			}
			end() // Consume's context ends, the handler's does not
			time.Sleep(time.Second)
			if ctx.Err() != nil {
				return consume.Terminal(errors.New("the context ended with Consume's"))
			}
			child, cancel := context.WithTimeout(ctx, time.Hour)
			defer cancel()
			<-child.Done()
			if got := context.Cause(child).Error(); got != fmt.Sprintf("Timeout (5s) exceeded for message %d attempt 1", m.ID) {
				return consume.Terminal(fmt.Errorf("cause %q", got))
			}
			if !errors.Is(child.Err(), context.DeadlineExceeded) {
				return consume.Terminal(child.Err())
			}
			return nil
		}
		var kept context.Context
		s, err := consume.NewSession(consume.Config{
			Store: r.store, Waker: r.store.Waker(r.group), StreamID: r.stream, GroupID: r.group, Limits: r.limits,
			Handler: func(ctx context.Context, m *delivery.Message, a consume.Attempt) error {
				kept = ctx
				return check(ctx, m, a)
			},
			Options: consume.Options{Handlers: 1}, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Run(parent); err != nil {
			t.Fatal(err)
		}
		if h := s.Health(); h.Succeeded != 1 || h.Dead != 0 {
			t.Errorf("%+v, %+v", h.Counts, r.store.State(r.group).Dead)
		}
		if kept.Err() == nil {
			t.Error("the context did not end when its handler had returned")
		}
	})
}
