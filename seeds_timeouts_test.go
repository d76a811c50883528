package sqlstreams_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// The page "Consumer timeouts", on Postgres.

// watcher keeps the events that a hook gets.
type watcher struct {
	mu     sync.Mutex
	events []sqlstreams.Event
	block  chan struct{} // nil: it does not wait
}

func (w *watcher) Observe(e sqlstreams.Event) {
	w.mu.Lock()
	w.events = append(w.events, e)
	w.mu.Unlock()
	if w.block != nil {
		<-w.block
	}
}

func (w *watcher) of(kind string) (found []sqlstreams.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Kind == kind {
			found = append(found, e)
		}
	}
	return found
}

// A handler that passes its context on ends within the grace: an ordinary failure. One that does not is written off, retried on the normal lifecycle, and known to hang until it returns.
func TestTheWindowOfATimeout(t *testing.T) {
	var log lines
	var hook watcher
	client, db, _ := open(t, &sqlstreams.ClientConfig{Logger: log.logger(), Hooks: []sqlstreams.Hook{&hook}})
	stream := register[WelcomeEmail](t, client, "signup.welcome-email")
	instance := group(t, stream, "email-sender", &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{Timeout: time.Second, MaxAttempts: 2, BaseDelay: time.Millisecond}})
	produced := produceAll(t, stream, "obeys", "hangs")
	mailAPI := make(chan struct{})
	var causes sync.Map
	r := consume(t, instance, nil, func(ctx context.Context, email *WelcomeEmail) error {
		meta, _ := sqlstreams.MetaFromContext(ctx)
		if email.UserID == "obeys" {
			<-ctx.Done()
			causes.Store(meta.Attempt, context.Cause(ctx))
			return context.Cause(ctx)
		}
		<-mailAPI // no ctx anywhere
		return nil
	})
	pgtest.Eventually(t, 20*time.Second, "both have failed twice", func() bool { return db.QueryInt(t, `select count(*) from sqlstreams.dead_letter`) == 2 })
	for attempt := 1; attempt <= 2; attempt++ {
		obeys := fmt.Sprintf("Timeout (1s) exceeded for message %d attempt %d", produced[0].ID, attempt)
		hangs := fmt.Sprintf("hard timeout after 1.1s, goroutine abandoned for message %d", produced[1].ID)
		cause, _ := causes.Load(attempt)
		if err, ok := cause.(error); !ok || err.Error() != obeys || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the cause of attempt %d: %v", attempt, cause)
		}
		for i, want := range []string{obeys, hangs} {
			if got := queryText(t, db, `select error from sqlstreams.attempt where message_id = $1 and attempt = $2`, produced[i].ID, attempt); got != want {
				t.Errorf("attempt %d is kept as %q, not %q", attempt, got, want)
			}
			if attempt == 2 {
				if got := queryText(t, db, `select error from sqlstreams.dead_letter where message_id = $1 and reason = 'exhausted' and attempts = 2`, produced[i].ID); got != want {
					t.Errorf("the dead letter says %q, not %q", got, want)
				}
			}
		}
	}
	// The attempts that were written off hang still: an outstanding count that does not drain.
	if h := instance.Health(); h.Abandoned != 2 || h.Cleared != 0 || h.Outstanding != 2 || h.Running != 0 {
		t.Errorf("while they hang: %+v", h)
	}
	pgtest.Eventually(t, 10*time.Second, "the hooks are told", func() bool { return len(hook.of("abandoned")) == 2 })
	for i, e := range hook.of("abandoned") {
		if e.Code != "SQL0050" || e.Message != produced[1].ID || e.Attempt != i+1 || e.Group != "email-sender" || e.Duration < 1100*time.Millisecond {
			t.Errorf("%+v", e)
		}
	}
	// One of them lets go while the session lives, the other after it.
	mailAPI <- struct{}{}
	pgtest.Eventually(t, 10*time.Second, "its return is recorded as cleared", func() bool {
		h := instance.Health()
		return h.Cleared == 1 && h.Outstanding == 1 && len(hook.of("cleared")) == 1
	})
	r.stop(t)
	stopped := log.find(t, "msg", "consumer stopped")
	if len(stopped) != 1 || stopped[0]["abandoned_count"] != 2.0 || stopped[0]["dead"] != 2.0 || stopped[0]["failed"] != 2.0 || stopped[0]["stream"] != "signup.welcome-email" || stopped[0]["group"] != "email-sender" {
		t.Errorf("the line at the stop: %v", stopped)
	}
	mailAPI <- struct{}{}
	pgtest.Eventually(t, 10*time.Second, "the return after the session's end is recorded, too", func() bool {
		h := instance.Health()
		return h.Cleared == 2 && h.Outstanding == 0 && len(hook.of("cleared")) == 2
	})

	// A healthy session ends with 0.
	healthy := consume(t, instance, nil, func(context.Context, *WelcomeEmail) error { return nil })
	pgtest.Eventually(t, 10*time.Second, "a second session has begun", func() bool { return len(log.find(t, "msg", "consumer started")) == 2 })
	healthy.stop(t)
	stopped = log.find(t, "msg", "consumer stopped")
	if len(stopped) != 2 || stopped[1]["abandoned_count"] != 0.0 {
		t.Errorf("the line of a healthy session: %v", stopped)
	}
}

// A return within the grace is an ordinary result, and the grace can be raised.
func TestGraceIsSlackForUnwinding(t *testing.T) {
	client, db, _ := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{Timeout: 100 * time.Millisecond, MaxAttempts: 1}})
	produceAll(t, stream, "done after all", "failed")
	consume(t, instance, &sqlstreams.ConsumeOptions{TimeoutGrace: 10 * time.Second}, func(ctx context.Context, email *WelcomeEmail) error {
		<-ctx.Done()
		pause(300 * time.Millisecond)
		if email.UserID == "failed" {
			return fmt.Errorf("unwound: %w", ctx.Err())
		}
		return nil
	})
	pgtest.Eventually(t, 20*time.Second, "one has succeeded and one failed", func() bool {
		h := instance.Health()
		return h.Succeeded == 1 && h.Dead == 1 && db.QueryInt(t, `select count(*) from sqlstreams.claim`) == 0
	})
	if h := instance.Health(); h.Abandoned != 0 || h.Failed != 0 {
		t.Errorf("%+v", h)
	}
	if got := queryText(t, db, `select error from sqlstreams.dead_letter`); got != "unwound: context deadline exceeded" && got != "unwound: context canceled" {
		t.Errorf("kept as %q", got)
	}
}

// Messages request, consumers clamp: the resolved value stays within MessageMin and MessageMax, field by field.
func TestMessagesRequestAndConsumersClamp(t *testing.T) {
	client, db, pool := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", &sqlstreams.ConsumerConfig{
		MessageMin: &sqlstreams.MessageOptions{Timeout: 4 * time.Second, MaxAttempts: 2},
		Message:    &sqlstreams.MessageOptions{Timeout: 8 * time.Second, MaxAttempts: 3, BaseDelay: time.Millisecond},
		MessageMax: &sqlstreams.MessageOptions{Timeout: 16 * time.Second, MaxAttempts: 4, BaseDelay: 10 * time.Millisecond, MaxDelay: 20 * time.Millisecond},
	})
	requests := map[string]struct {
		message  *sqlstreams.MessageOptions
		timeout  time.Duration
		attempts int
	}{
		"nothing":     {nil, 8 * time.Second, 3},
		"too much":    {&sqlstreams.MessageOptions{Timeout: time.Minute, MaxAttempts: 100, BaseDelay: time.Hour, MaxDelay: time.Hour}, 16 * time.Second, 4},
		"too little":  {&sqlstreams.MessageOptions{Timeout: time.Millisecond, MaxAttempts: 1}, 4 * time.Second, 2},
		"in between":  {&sqlstreams.MessageOptions{Timeout: 12 * time.Second, MaxAttempts: 3}, 12 * time.Second, 3},
		"only a part": {&sqlstreams.MessageOptions{MaxAttempts: 4}, 8 * time.Second, 4},
	}
	for name, r := range requests {
		options := &sqlstreams.ProduceOptions{Message: r.message}
		if _, err := stream.Producer(nil).Produce(t.Context(), &WelcomeEmail{UserID: name}, options); err != nil {
			t.Fatal(err)
		}
		if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := stream.Producer(nil).ProduceTx(t.Context(), tx, &WelcomeEmail{UserID: name}, options)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	var attempts tally
	consume(t, instance, nil, func(ctx context.Context, email *WelcomeEmail) error {
		attempts.add(email.UserID)
		deadline, ok := ctx.Deadline()
		if left, want := time.Until(deadline), requests[email.UserID].timeout; !ok || left > want || left < want-3*time.Second {
			t.Errorf("%s: %v are left of %v", email.UserID, left, want)
		}
		return errors.New("no luck")
	})
	// A delay of an hour was requested, too: it is clamped, or this would wait for it.
	pgtest.Eventually(t, 30*time.Second, "all are dead", func() bool {
		return db.QueryInt(t, `select count(*) from sqlstreams.dead_letter`) == int64(2*len(requests))
	})
	for name, r := range requests {
		if n := attempts.count(name); n != 2*r.attempts {
			t.Errorf("%s: two messages ran %d times, not %d", name, n, 2*r.attempts)
		}
	}
}

// A message asks for a minute and the group allows a second: the handler's context ends after a second.
func TestARequestBeyondTheCeilingEndsAtTheCeiling(t *testing.T) {
	client, db, _ := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", &sqlstreams.ConsumerConfig{MessageMax: &sqlstreams.MessageOptions{Timeout: time.Second, MaxAttempts: 1}})
	if _, err := stream.Producer(nil).Produce(t.Context(), &WelcomeEmail{}, &sqlstreams.ProduceOptions{Message: &sqlstreams.MessageOptions{Timeout: time.Minute}}); err != nil {
		t.Fatal(err)
	}
	consume(t, instance, nil, func(ctx context.Context, _ *WelcomeEmail) error {
		began := time.Now()
		<-ctx.Done()
		if took := time.Since(began); took > 20*time.Second || took < 500*time.Millisecond {
			t.Errorf("the context ended after %v", took)
		}
		return context.Cause(ctx)
	})
	pgtest.Eventually(t, 30*time.Second, "it is dead", func() bool { return db.QueryInt(t, `select count(*) from sqlstreams.dead_letter`) == 1 })
	if got := queryText(t, db, `select error from sqlstreams.dead_letter`); got != "Timeout (1s) exceeded for message 1 attempt 1" {
		t.Errorf("kept as %q", got)
	}
}

// A storm of events fills the queue to a hook that does not keep up: what does not fit is counted and told, and no handler waits for it.
func TestAStormOfEventsOverflowsTheirQueue(t *testing.T) {
	var log lines
	hook := watcher{block: make(chan struct{})}
	client, _, _ := open(t, &sqlstreams.ClientConfig{Logger: log.logger(), Hooks: []sqlstreams.Hook{&hook}})
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", nil)
	const messages, queue = 3000, 1024
	produceAll(t, stream, numbered("m", messages/3)...)
	produceAll(t, stream, numbered("m", messages/3)...)
	produceAll(t, stream, numbered("m", messages/3)...)
	r := consume(t, instance, nil, func(context.Context, *WelcomeEmail) error { return nil })
	pgtest.Eventually(t, 30*time.Second, "every message is handled though the hook stands", func() bool { return instance.Health().Succeeded == messages })
	pgtest.Eventually(t, 10*time.Second, "what did not fit is counted", func() bool { return instance.Health().Dropped >= messages-2*queue-2 })
	if found := log.find(t, "code", "SQL0052"); len(found) != 1 || found[0]["level"] != "WARN" {
		t.Errorf("told as %v", found)
	}
	close(hook.block)
	r.stop(t)
	if told, dropped := len(hook.of("attempt")), int(instance.Health().Dropped); told+dropped != messages {
		t.Errorf("%d events were told and %d dropped, of %d", told, dropped, messages)
	}
}
