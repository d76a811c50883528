package sqlstreams_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// Stopping at every moment: no panic, no hang, no goroutine, no connection and no transaction is left.

// nothingLeft says, at the test's end and after everything that it has opened was closed, what still runs. Call it first.
func nothingLeft(t *testing.T) {
	t.Helper()
	pgtest.SharedServer(t) // what it runs stays
	already := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		if err := goleak.Find(already); err != nil {
			t.Errorf("after the client was closed: %v", err)
		}
	})
}

// named returns a pool whose sessions, and those of clients on it, can be told from others.
func named(t *testing.T, db *pgtest.Database) *pgxpool.Pool {
	t.Helper()
	return db.PoolConfig(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "ours" })
}

// noTransaction waits until no session of a named pool, or of a client on it, has a transaction open; noSession until there is none.
func noTransaction(t *testing.T, db *pgtest.Database) {
	t.Helper()
	pgtest.Eventually(t, 10*time.Second, "no transaction is open", func() bool {
		return db.QueryInt(t, `select count(*) from pg_stat_activity where datname = current_database() and application_name = 'ours' and xact_start is not null`) == 0
	})
}

func noSession(t *testing.T, db *pgtest.Database) {
	t.Helper()
	pgtest.Eventually(t, 10*time.Second, "no session of a client is left", func() bool {
		return db.QueryInt(t, `select count(*) from pg_stat_activity where datname = current_database() and application_name = 'ours'`) == 0
	})
}

// closed calls Close, which must not take long.
func closed(t *testing.T, client *sqlstreams.Client) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	client.Close(ctx)
	if ctx.Err() != nil {
		t.Error("Close took ten seconds")
	}
}

func TestStoppingBeforeStartingTwiceAndAfter(t *testing.T) {
	nothingLeft(t)
	db := pgtest.NewDatabase(t)
	pool := named(t, db)
	ctx := t.Context()
	fresh := openOn(t, pool, nil)
	closed(t, fresh)
	closed(t, fresh)

	client := openOn(t, pool, nil)
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", nil)
	nothing := func(context.Context, *WelcomeEmail) error { return nil }
	ended, end := context.WithCancel(ctx)
	end()
	if err := instance.Consume(ended, nothing, nil); err != nil {
		t.Errorf("Consume with an ended context: %v", err)
	}
	if _, err := stream.Producer(nil).Produce(ended, &WelcomeEmail{}, nil); !errors.Is(err, context.Canceled) || errors.Is(err, sqlstreams.ErrOutcomeUnknown) {
		t.Errorf("Produce with an ended context: %v", err)
	}
	if err := client.InTx(ended, func(context.Context, pgx.Tx) error { t.Error("ran"); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("InTx with an ended context: %v", err)
	}
	if _, err := sqlstreams.NewClient(ended, pool, &sqlstreams.ClientConfig{Logger: quiet()}); !errors.Is(err, context.Canceled) {
		t.Errorf("NewClient with an ended context: %v", err)
	}
	if _, err := sqlstreams.RegisterStream[WelcomeEmail](ended, client, "other", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("RegisterStream with an ended context: %v", err)
	}
	if _, err := stream.RegisterConsumer(ended, "other", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("RegisterConsumer with an ended context: %v", err)
	}
	// One after another is fine; two at once are not.
	for range 3 {
		consume(t, instance, nil, nothing).stop(t)
	}
	r := consume(t, instance, nil, nothing)
	pgtest.Eventually(t, 10*time.Second, "it runs", func() bool { return !instance.Health().LastWork.IsZero() })
	coded(t, instance.Consume(ctx, nothing, nil), sqlstreams.ErrAlreadyConsuming, false)

	closed(t, client)
	r.stop(t)
	closed(t, client)
	coded(t, instance.Consume(ctx, nothing, nil), sqlstreams.ErrClosed, false)
	_, err := stream.Producer(nil).Produce(ctx, &WelcomeEmail{}, nil)
	coded(t, err, sqlstreams.ErrClosed, false)
	_, err = sqlstreams.RegisterStream[WelcomeEmail](ctx, client, "other", nil)
	coded(t, err, sqlstreams.ErrClosed, false)
	_, err = stream.RegisterConsumer(ctx, "other", nil)
	coded(t, err, sqlstreams.ErrClosed, false)
	_, err = client.ListStreams(ctx)
	coded(t, err, sqlstreams.ErrClosed, false)
	noTransaction(t, db)
	pool.Close()
	noSession(t, db)
	if n := db.QueryInt(t, `select count(*) from sqlstreams.stream`); n != 1 {
		t.Errorf("%d streams", n)
	}
	if n := db.QueryInt(t, `select count(*) from sqlstreams.log_1`); n != 0 {
		t.Errorf("%d messages", n)
	}
}

// A program that creates the schema is stopped at any moment of it: what it had committed stays, nothing is half done, and the next one goes on from there.
func TestStoppingWhileTheSchemaIsCreated(t *testing.T) {
	nothingLeft(t)
	db := pgtest.NewDatabase(t)
	pool := named(t, db)
	stopped := 0
	for i := range 15 {
		// Longer each time, so that the first are stopped on any machine, and what they leave is met by the next.
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i*i)*time.Millisecond+rand.N(time.Millisecond))
		client, err := sqlstreams.NewClient(ctx, pool, &sqlstreams.ClientConfig{Logger: quiet()})
		cancel()
		if err != nil {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("stopped by its context: %v", err)
			}
			stopped++
			continue
		}
		closed(t, client)
	}
	client := openOn(t, pool, nil)
	produceAll(t, register[WelcomeEmail](t, client, "s"), "u")
	closed(t, client)
	noTransaction(t, db)
	pool.Close()
	noSession(t, db)
	t.Logf("stopped %d of 15 times", stopped)
	if stopped == 0 {
		t.Error("none was stopped")
	}
}

// Consume and Close begin at the same moment, in every order that the scheduler finds, with messages on their way.
func TestStoppingWhileStarting(t *testing.T) {
	nothingLeft(t)
	db := pgtest.NewDatabase(t)
	pool := named(t, db)
	setup := openOn(t, pool, nil)
	stream := register[WelcomeEmail](t, setup, "s")
	group(t, stream, "g", nil)
	produceAll(t, stream, numbered("m", 200)...)
	var runs atomic.Int32
	for round := range 25 {
		client := openOn(t, pool, nil)
		instance := group(t, register[WelcomeEmail](t, client, "s"), "g", nil)
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() {
			err := instance.Consume(ctx, func(context.Context, *WelcomeEmail) error { runs.Add(1); return nil }, nil)
			if err != nil && !errors.Is(err, sqlstreams.ErrClosed) {
				t.Error(err)
			}
		})
		pause(rand.N(20 * time.Millisecond))
		if round%2 == 0 {
			cancel()
		}
		closed(t, client)
		wg.Wait()
		cancel()
	}
	closed(t, setup)
	// What was claimed was given back, and nothing that ran is lost.
	if n := db.QueryInt(t, `select count(*) from sqlstreams.claim where expires_at > clock_timestamp()`); n != 0 {
		t.Errorf("%d ranges are still leased", n)
	}
	if n := db.QueryInt(t, `select count(*) from sqlstreams.instance`); n != 0 {
		t.Errorf("%d instances have not said goodbye", n)
	}
	client := openOn(t, pool, nil)
	consume(t, group(t, register[WelcomeEmail](t, client, "s"), "g", nil), nil, func(context.Context, *WelcomeEmail) error { runs.Add(1); return nil })
	pgtest.Eventually(t, 20*time.Second, "each message has run once", func() bool {
		return db.QueryInt(t, `select max(claimed) from sqlstreams.cursor`) == 200 && db.QueryInt(t, `select count(*) from sqlstreams.claim`) == 0
	})
	if runs.Load() != 200 {
		t.Errorf("%d runs of 200 messages", runs.Load())
	}
	closed(t, client)
	noTransaction(t, db)
	pool.Close()
	noSession(t, db)
}

// Handlers run when the stop begins: they are awaited, and those that do not end are cancelled with its cause and then left alone. What they had is free for the next instance at once.
func TestStoppingWhileHandlersRun(t *testing.T) {
	client, db, _ := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", nil)
	produceAll(t, stream, "ends", "obeys", "ignores", "waits")
	entered, leave := make(chan string, 10), make(chan struct{})
	release := make(chan struct{})
	defer close(release)
	cause := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	session := make(chan error, 1)
	go func() {
		session <- instance.Consume(ctx, func(ctx context.Context, m *WelcomeEmail) error {
			entered <- m.UserID
			switch m.UserID {
			case "ends":
				<-leave
			case "obeys":
				<-ctx.Done()
				cause <- context.Cause(ctx)
				return context.Cause(ctx)
			default:
				<-release
			}
			return nil
		}, &sqlstreams.ConsumeOptions{Handlers: 3, StopTimeout: 300 * time.Millisecond})
	}()
	for range 3 {
		<-entered
	}
	began := time.Now()
	cancel()
	close(leave)
	if err := <-session; err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 300*time.Millisecond || took > 5*time.Second {
		t.Errorf("it stopped within %v; the stop time-out is 300 ms", took)
	}
	if err := <-cause; !errors.Is(err, sqlstreams.ErrStopping) {
		t.Errorf("the cause is %v", err)
	}
	if h := instance.Health(); h.Abandoned != 1 || h.Succeeded != 1 || h.Failed != 0 || !h.Stopping {
		t.Errorf("%+v", h)
	}
	// An attempt that the stop interrupted is none: nothing is recorded against it, and no backoff delays it.
	if n := db.QueryInt(t, `select (select count(*) from sqlstreams.attempt) + (select count(*) from sqlstreams.delivery)`); n != 0 {
		t.Errorf("%d attempts or deliveries", n)
	}
	var again tally
	consume(t, instance, nil, func(ctx context.Context, m *WelcomeEmail) error {
		again.add(m.UserID)
		if meta, _ := sqlstreams.MetaFromContext(ctx); meta.Attempt != 1 {
			t.Errorf("%s: attempt %d", m.UserID, meta.Attempt)
		}
		return nil
	})
	pgtest.Eventually(t, 10*time.Second, "the three that had not ended run", func() bool { return again.distinct() == 3 })
	if again.count("ends") != 0 || again.total() != 3 {
		t.Errorf("ran again: %v", again.seen)
	}
}
