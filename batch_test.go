package sqlstreams_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

func consumeBatch[T any](t testing.TB, c *sqlstreams.Consumer[T], opts *sqlstreams.BatchOptions, f func(context.Context, *sqlstreams.Batch[T]) error) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), batchKey{}, "carried"))
	r := &running{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = c.ConsumeBatch(ctx, f, opts)
	}()
	t.Cleanup(func() { r.stop(t) })
	return r
}

type batchKey struct{}

// A backlog comes in full batches, each message once, in order within a batch.
func TestBatchesAreFull(t *testing.T) {
	client, _, _ := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	var batch []sqlstreams.Outgoing[WelcomeEmail]
	for _, name := range numbered("m", 1000) {
		batch = append(batch, sqlstreams.Outgoing[WelcomeEmail]{Payload: &WelcomeEmail{UserID: name}, Options: &sqlstreams.ProduceOptions{Key: name}})
	}
	if _, err := stream.Producer(nil).ProduceBatch(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var sizes []int
	var seen tally
	consumeBatch(t, group(t, stream, "g", nil), &sqlstreams.BatchOptions{MaxMessages: 50, Consume: &sqlstreams.ConsumeOptions{Handlers: 2}}, func(ctx context.Context, b *sqlstreams.Batch[WelcomeEmail]) error {
		if _, ok := sqlstreams.MetaFromContext(ctx); ok || ctx.Value(batchKey{}) != "carried" {
			return errors.New("the batch's context has the meta of one message, or not the caller's values")
		}
		if at, ok := ctx.Deadline(); !ok || time.Until(at) > 30*time.Second {
			return errors.New("no deadline")
		}
		last := int64(0)
		for i, m := range b.All() {
			meta := b.Meta(i)
			if meta.ID <= last || meta.Key != m.UserID || b.Payload(i) != m {
				return fmt.Errorf("message %d after %d, key %s, %s", meta.ID, last, meta.Key, m.UserID)
			}
			last = meta.ID
			seen.add(m.UserID)
		}
		mu.Lock()
		defer mu.Unlock()
		sizes = append(sizes, b.Len())
		return nil
	})
	if s := settled(t, client, "s", "g", 1000); s.Dead != 0 {
		t.Errorf("%d dead", s.Dead)
	}
	mu.Lock()
	defer mu.Unlock()
	if seen.total() != 1000 || seen.distinct() != 1000 || len(sizes) > 40 {
		t.Errorf("%d messages, %d of them different, in batches of %v", seen.total(), seen.distinct(), sizes)
	}
}

// Each message has a result of its own: what is marked fails alone, an error of the handler is that of all others, a panic and Goexit are everybody's.
func TestResultsOfABatchAreEachMessages(t *testing.T) {
	client, db, _ := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	names := []string{"good", "fails", "terminal", "delays", "taken back", "good too"}
	produceAll(t, stream, names...)
	var mu sync.Mutex
	var runs []string
	mode := ""
	handler := func(_ context.Context, b *sqlstreams.Batch[WelcomeEmail]) error {
		mu.Lock()
		defer mu.Unlock()
		var these []string
		for i, m := range b.All() {
			these = append(these, m.UserID)
			if b.Meta(i).Attempt > 1 || len(runs) > 0 {
				continue
			}
			switch m.UserID {
			case "fails":
				b.Fail(i, errors.New("this one"))
			case "terminal":
				b.Fail(i, sqlstreams.Terminal(errors.New("that one")))
			case "delays":
				b.Fail(i, sqlstreams.Delay(10*time.Millisecond))
			case "taken back":
				b.Fail(i, errors.New("no"))
				b.Fail(i, nil)
			}
		}
		runs = append(runs, strings.Join(these, ","))
		switch mode {
		case "error":
			mode = ""
			return errors.New("all of them")
		case "panic":
			mode = ""
			panic("all of them")
		case "goexit":
			mode = ""
			runtime.Goexit()
		}
		return nil
	}
	config := &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{BaseDelay: 5 * time.Millisecond}}
	consumeBatch(t, group(t, stream, "g", config), nil, handler)
	s := settled(t, client, "s", "g", 6)
	mu.Lock()
	if len(runs) < 2 || runs[0] != strings.Join(names, ",") || s.Dead != 1 {
		t.Errorf("%q, %d dead", runs, s.Dead)
	}
	again := strings.Join(runs[1:], ",")
	mu.Unlock()
	if again != "fails,delays" && again != "delays,fails" {
		t.Errorf("again: %q", again)
	}
	if n := db.QueryInt(t, `select count(*) from sqlstreams.attempt where error in ('this one', 'that one')`); n != 2 {
		t.Errorf("%d attempts on record", n)
	}
	head := int64(6)
	for _, how := range []string{"error", "panic", "goexit"} {
		mu.Lock()
		mode, runs = how, nil
		mu.Unlock()
		produceAll(t, stream, how+" 1")
		head++
		settled(t, client, "s", "g", head)
		mu.Lock()
		if len(runs) != 2 {
			t.Errorf("%s: %q", how, runs)
		}
		mu.Unlock()
	}
	if n := db.QueryInt(t, `select count(*) from sqlstreams.attempt where error in ('all of them', 'panic: all of them', 'handler called runtime.Goexit')`); n != 3 {
		t.Errorf("%d attempts on record", n)
	}
}

// Messages that trickle in gather in the stream, not under a lease.
func TestMaxWaitGathersMessagesUnclaimed(t *testing.T) {
	client, db, _ := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", nil)
	sizes := make(chan int, 100)
	consumeBatch(t, instance, &sqlstreams.BatchOptions{MaxWait: 300 * time.Millisecond}, func(_ context.Context, b *sqlstreams.Batch[WelcomeEmail]) error {
		sizes <- b.Len()
		return nil
	})
	pgtest.Eventually(t, 10*time.Second, "it looked", func() bool { return !instance.Health().LastWork.IsZero() })
	produceAll(t, stream, numbered("m", 10)...)
	if n := db.QueryInt(t, `select count(*) from sqlstreams.claim`); n != 0 {
		t.Errorf("%d claims while they gather", n)
	}
	if n := <-sizes; n != 10 {
		t.Errorf("a batch of %d, want the 10 that gathered", n)
	}
}

// A batch that outlives its time: each of its messages is written off, and runs again.
func TestABatchThatHangsIsAbandoned(t *testing.T) {
	client, _, _ := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	produceAll(t, stream, "a", "b", "c")
	instance := group(t, stream, "g", &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{Timeout: 200 * time.Millisecond, BaseDelay: time.Millisecond}})
	release := make(chan struct{})
	var begun atomic.Bool
	var seen tally
	cause, hung := make(chan error, 1), make(chan int, 1)
	consumeBatch(t, instance, nil, func(ctx context.Context, b *sqlstreams.Batch[WelcomeEmail]) error {
		for _, m := range b.All() {
			seen.add(m.UserID)
		}
		if begun.CompareAndSwap(false, true) {
			hung <- b.Len()
			<-ctx.Done()
			cause <- context.Cause(ctx)
			<-release
		}
		return nil
	})
	settled(t, client, "s", "g", 3)
	if err := <-cause; !strings.Contains(err.Error(), "Timeout (200ms) exceeded for message") {
		t.Error(err)
	}
	close(release)
	n := <-hung
	pgtest.Eventually(t, 10*time.Second, "they have returned", func() bool { return instance.Health().Cleared == int64(n) })
	if seen.total() != 3+n {
		t.Errorf("%d runs, %d hung", seen.total(), n)
	}
}

func TestBatchOptionsRefuseBadInput(t *testing.T) {
	client, _, _ := open(t, nil)
	instance := group(t, register[WelcomeEmail](t, client, "s"), "g", nil)
	nothing := func(context.Context, *sqlstreams.Batch[WelcomeEmail]) error { return nil }
	for _, o := range []sqlstreams.BatchOptions{{MaxMessages: -1}, {MaxMessages: 10_001}, {MaxWait: -1}, {MaxWait: time.Hour}, {Consume: &sqlstreams.ConsumeOptions{Handlers: -1}},
		{MaxMessages: 10_000, Consume: &sqlstreams.ConsumeOptions{Handlers: 11}}} {
		if err := instance.ConsumeBatch(t.Context(), nothing, &o); !errors.Is(err, sqlstreams.ErrInvalidOption) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if err := instance.ConsumeBatch(t.Context(), nil, nil); !errors.Is(err, sqlstreams.ErrInvalidOption) {
		t.Error(err)
	}
}
