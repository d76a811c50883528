package sqlstreams_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// What handlers may do to us.

// hostile is an error that will not say what it is.
type hostile struct{}

func (hostile) Error() string { panic("no text") }

func TestHandlersThatMisbehave(t *testing.T) {
	var log lines
	client, db, _ := open(t, &sqlstreams.ClientConfig{Logger: log.logger()})
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{Timeout: 200 * time.Millisecond, MaxAttempts: 1}})
	release := make(chan struct{})
	var cause atomic.Value
	handlers := map[string]func(ctx context.Context) error{
		"fine":        func(context.Context) error { return nil },
		"panics":      func(context.Context) error { panic("boom\nsecond line") },
		"panics nil":  func(context.Context) error { panic(nil) },
		"panics late": func(ctx context.Context) error { <-ctx.Done(); panic("late") },
		"exits":       func(context.Context) error { runtime.Goexit(); return nil },
		"exits late":  func(ctx context.Context) error { <-ctx.Done(); runtime.Goexit(); return nil },
		"ignores":     func(context.Context) error { <-release; return nil },
		"obeys": func(ctx context.Context) error {
			<-ctx.Done()
			cause.Store(context.Cause(ctx))
			return context.Cause(ctx)
		},
		"cancels own": func(ctx context.Context) error {
			own, cancel := context.WithCancel(ctx)
			cancel()
			<-own.Done()
			return own.Err()
		},
		"hostile": func(context.Context) error { return hostile{} },
		"long":    func(context.Context) error { return fmt.Errorf("%s\x00\xff", make([]byte, 10_000)) },
	}
	want := map[string]string{
		"panics": "panic: boom", "panics nil": "panic: " + new(runtime.PanicNilError).Error(), "panics late": "panic: late",
		"exits": "handler called runtime.Goexit", "exits late": "handler called runtime.Goexit", "cancels own": "context canceled",
		"hostile": "the handler's error panicked when it was asked for its text",
	}
	names := slices.Sorted(maps.Keys(handlers))
	produced := produceAll(t, stream, names...)
	for i, name := range names {
		switch name {
		case "ignores":
			want[name] = fmt.Sprintf("hard timeout after 300ms, goroutine abandoned for message %d", produced[i].ID)
		case "obeys":
			want[name] = fmt.Sprintf("Timeout (200ms) exceeded for message %d attempt 1", produced[i].ID)
		}
	}
	// More handlers than messages: each misbehaves beside the others.
	r := consume(t, instance, &sqlstreams.ConsumeOptions{Handlers: 20}, func(ctx context.Context, m *WelcomeEmail) error { return handlers[m.UserID](ctx) })
	dead := int64(len(handlers) - 1)
	pgtest.Eventually(t, 20*time.Second, "each but one is dead after its one attempt", func() bool {
		return db.QueryInt(t, `select count(*) from sqlstreams.dead_letter`) == dead && db.QueryInt(t, `select count(*) from sqlstreams.claim`) == 0
	})
	for name, text := range want {
		if got := queryText(t, db, `select error from sqlstreams.dead_letter where payload->>'user_id' = $1 and reason = 'exhausted' and attempts = 1`, name); got != text {
			t.Errorf("%s: %q, not %q", name, got, text)
		}
	}
	if n := db.QueryInt(t, `select octet_length(error) from sqlstreams.dead_letter where payload->>'user_id' = 'long'`); n < 1000 || n > 4096 {
		t.Errorf("a long text is kept with %d bytes", n)
	}
	if err, _ := cause.Load().(error); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the cause of a timeout: %v", err)
	}
	if h := instance.Health(); h.Abandoned != 1 || h.Cleared != 0 || h.Outstanding != 1 || h.Running != 0 {
		t.Errorf("%+v", h)
	}
	// The instance goes on, and the one that ignored everything is known to have come back.
	close(release)
	pgtest.Eventually(t, 10*time.Second, "it has come back", func() bool { h := instance.Health(); return h.Cleared == 1 && h.Outstanding == 0 })
	produceAll(t, stream, "fine")
	pgtest.Eventually(t, 10*time.Second, "the next message is handled", func() bool { return instance.Health().Succeeded == 2 })
	r.stop(t)
	if log.find(t, "level", "ERROR") != nil {
		t.Errorf("logged as an error: %v", log.find(t, "level", "ERROR"))
	}
}

// A handler returns after another instance has taken its range, which runs there still: its result is refused, whether it succeeded or not, and the range stays the other one's.
func TestResultAfterTheLeaseIsRefused(t *testing.T) {
	client, db, pool := open(t, &sqlstreams.ClientConfig{DisableManager: true})
	stream := register[WelcomeEmail](t, client, "s")
	late := group(t, stream, "g", &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{MaxAttempts: 1}})
	next := group(t, register[WelcomeEmail](t, openOn(t, pool, &sqlstreams.ClientConfig{DisableManager: true}), "s"), "g", nil)
	produceAll(t, stream, "a", "b")
	handler := func(entered chan<- string, leave <-chan error) func(context.Context, *WelcomeEmail) error {
		return func(_ context.Context, m *WelcomeEmail) error {
			entered <- m.UserID
			return <-leave
		}
	}
	lateEntered, lateLeave, nextEntered, nextLeave := make(chan string, 10), make(chan error), make(chan string, 10), make(chan error)
	r := consume(t, late, &sqlstreams.ConsumeOptions{Handlers: 2}, handler(lateEntered, lateLeave))
	<-lateEntered
	<-lateEntered
	db.Exec(t, `update sqlstreams.claim set expires_at = clock_timestamp()`)
	other := consume(t, next, &sqlstreams.ConsumeOptions{Handlers: 2}, handler(nextEntered, nextLeave))
	<-nextEntered
	<-nextEntered
	tables := []string{"cursor", "claim", "done", "delivery", "dead_letter", "attempt"}
	before := content(t, db, tables...)
	lateLeave <- nil
	lateLeave <- sqlstreams.Terminal(errors.New("too late"))
	pgtest.Eventually(t, 10*time.Second, "the loss is counted", func() bool { return late.Health().LeaseLost == 1 })
	if after := content(t, db, tables...); after != before {
		t.Errorf("a result whose lease was gone changed\n%sto\n%s", before, after)
	}
	nextLeave <- nil
	nextLeave <- nil
	pgtest.Eventually(t, 10*time.Second, "the other's results are recorded", func() bool { return db.QueryInt(t, `select count(*) from sqlstreams.claim`) == 0 })
	other.stop(t)
	if h := next.Health(); h.LeaseLost != 0 || h.Succeeded != 2 {
		t.Errorf("the other: %+v", h)
	}
	produceAll(t, stream, "c")
	if user := <-lateEntered; user != "c" {
		t.Errorf("%s ran again", user)
	}
	lateLeave <- nil
	r.stop(t)
}

// Case 11: the lease counts from the moment the claim is made, not from when the statement, or the transaction it came in, began to wait.
func TestLeaseCountsFromTheClaimAndNotFromTheWaitForTheLock(t *testing.T) {
	client, db, pool := open(t, &sqlstreams.ClientConfig{DisableManager: true})
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", nil)
	ctx := t.Context()
	holder, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer rolledBack(t, holder)
	if _, err := holder.Exec(ctx, `select pg_advisory_xact_lock($1::int, 1)`, lockClass(t, "group")); err != nil {
		t.Fatal(err)
	}
	produceAll(t, stream, "u")
	entered, leave := make(chan sqlstreams.Meta, 1), make(chan struct{})
	consume(t, instance, nil, func(ctx context.Context, _ *WelcomeEmail) error {
		meta, _ := sqlstreams.MetaFromContext(ctx)
		entered <- meta
		<-leave
		return nil
	})
	defer close(leave)
	pgtest.Eventually(t, 10*time.Second, "the claim waits for the group's lock", func() bool {
		return db.QueryInt(t, `select count(*) from pg_locks where locktype = 'advisory' and not granted`) == 1
	})
	var released time.Time
	if err := holder.QueryRow(ctx, `select clock_timestamp() from (select pg_sleep(1)) s`).Scan(&released); err != nil {
		t.Fatal(err)
	}
	if err := holder.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	meta := <-entered
	const lease = 15*time.Second + 30*time.Second + 100*time.Millisecond + 2*time.Second
	var expires time.Time
	if err := pool.QueryRow(ctx, `select expires_at from sqlstreams.claim`).Scan(&expires); err != nil {
		t.Fatal(err)
	}
	if granted := expires.Sub(released); granted < lease || granted > lease+10*time.Second {
		t.Errorf("counted from when the lock was free the lease lasts %v, not %v", granted, lease)
	}
	// The instance counts from before it asked: for it the lease is over sooner.
	if early := expires.Sub(meta.LeaseDeadline); early < time.Second {
		t.Errorf("the instance's own deadline is only %v before the database's, though it had waited a second", early)
	}
}

// Fifty handlers share two connections of the caller's pool, each for 20 ms: however they queue for them, claims and records have connections of their own.
func TestHandlersThatHoldTheCallersConnections(t *testing.T) {
	db := pgtest.NewDatabase(t)
	pool := db.PoolConfig(t, func(c *pgxpool.Config) { c.MaxConns = 2 })
	client := openOn(t, pool, nil)
	stream := register[WelcomeEmail](t, client, "s")
	names := numbered("m", 200)
	produceAll(t, stream, names...)
	instance := group(t, stream, "g", nil)
	var runs tally
	var holding, most atomic.Int32
	consume(t, instance, &sqlstreams.ConsumeOptions{Handlers: 50}, func(ctx context.Context, m *WelcomeEmail) error {
		runs.add(m.UserID)
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		if n := holding.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer holding.Add(-1)
		if _, err := conn.Exec(ctx, `select 1`); err != nil {
			return err
		}
		pause(20 * time.Millisecond)
		return nil
	})
	pgtest.Eventually(t, 30*time.Second, "all are handled and recorded", func() bool {
		return instance.Health().Succeeded == int64(len(names)) && instance.Health().Ranges == 0
	})
	if runs.total() != len(names) || most.Load() != 2 {
		t.Errorf("%d runs of %d messages, at most %d held a connection", runs.total(), len(names), most.Load())
	}
	if h := instance.Health(); h.Failed != 0 || h.Stale != 0 || h.LeaseLost != 0 || h.Abandoned != 0 {
		t.Errorf("%+v", h)
	}
}

// Two handlers hold every connection of the caller's pool for as long as they like; others are claimed, run and recorded meanwhile.
func TestHandlersThatHoldEveryConnectionDelayNoRecord(t *testing.T) {
	db := pgtest.NewDatabase(t)
	pool := db.PoolConfig(t, func(c *pgxpool.Config) { c.MaxConns = 2 })
	stream := register[WelcomeEmail](t, openOn(t, pool, nil), "s")
	instance := group(t, stream, "g", nil)
	elsewhere := register[WelcomeEmail](t, openOn(t, db.Pool(t), nil), "s")
	holding, release := make(chan struct{}, 2), make(chan struct{})
	r := consume(t, instance, nil, func(ctx context.Context, m *WelcomeEmail) error {
		if m.UserID != "holds" {
			return nil
		}
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		holding <- struct{}{}
		<-release
		return nil
	})
	produceAll(t, elsewhere, "holds", "holds")
	<-holding
	<-holding
	for i := range 5 {
		produceAll(t, elsewhere, numbered(fmt.Sprint(i), 5)...)
		pgtest.Eventually(t, 10*time.Second, "the others are claimed, run and recorded", func() bool {
			h := instance.Health()
			return h.Succeeded == int64(5*(i+1)) && h.Running == 2 && h.Ranges == 1 && db.QueryInt(t, `select count(*) from sqlstreams.claim`) == 1
		})
	}
	close(release)
	pgtest.Eventually(t, 10*time.Second, "the two are recorded", func() bool { return instance.Health().Succeeded == 27 && instance.Health().Ranges == 0 })
	r.stop(t)
}

// The handler's time changes suddenly, with the shortest queue margin: at each change at most one range goes stale and is told of, and unless one did nothing runs twice.
func TestHandlersThatBecomeSlowAndQuickAgain(t *testing.T) {
	var log lines
	client, db, _ := open(t, &sqlstreams.ClientConfig{Logger: log.logger()})
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{Timeout: 2 * time.Second}})
	names := numbered("m", 6000)
	for chunk := range slices.Chunk(names, 2000) {
		produceAll(t, stream, chunk...)
	}
	var takes atomic.Int64
	var runs tally
	r := consume(t, instance, &sqlstreams.ConsumeOptions{Handlers: 4, QueueMargin: time.Second, RecordMargin: time.Second}, func(_ context.Context, m *WelcomeEmail) error {
		runs.add(m.UserID)
		if d := time.Duration(takes.Load()); d > 0 {
			pause(d/2 + rand.N(d))
		}
		return nil
	})
	changes := 0
	for _, d := range []time.Duration{time.Millisecond, 100 * time.Millisecond, time.Millisecond, 300 * time.Millisecond, 0} {
		takes.Store(int64(d))
		changes++
		at := instance.Health().Succeeded
		pause(700 * time.Millisecond)
		pgtest.Eventually(t, 20*time.Second, "work goes on", func() bool { return instance.Health().Succeeded > at+10 })
		t.Logf("handlers of %v: %d done, %d stale, %d given back", d, instance.Health().Succeeded-at, instance.Health().Stale, instance.Health().GivenBack)
	}
	pgtest.Eventually(t, 60*time.Second, "all are handled and recorded", func() bool {
		return runs.distinct() == len(names) && db.QueryInt(t, `select count(*) from sqlstreams.claim`) == 0
	})
	r.stop(t)
	h := instance.Health()
	if h.Stale > int64(changes) || len(log.find(t, "code", "SQL0105")) > changes || h.LeaseLost != 0 {
		t.Errorf("%d changes, %d ranges went stale, %d lines told of it, %d leases were lost", changes, h.Stale, len(log.find(t, "code", "SQL0105")), h.LeaseLost)
	}
	if h.Stale == 0 && runs.total() != len(names) {
		t.Errorf("no range went stale, and %d messages ran %d times", len(names), runs.total())
	}
}
