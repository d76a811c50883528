package sqlstreams_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgserver"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
	"github.com/sqlstreams/sqlstreams/internal/schema"
)

// hourly are options with which only an announcement brings work within a test's time.
func hourly() *sqlstreams.ConsumeOptions {
	return &sqlstreams.ConsumeOptions{Handlers: 1, BatchLimit: 5, PollInterval: time.Hour}
}

// listeners waits until so many sessions listen.
func listeners(t testing.TB, db *pgtest.Database, n int64) {
	t.Helper()
	pgtest.Eventually(t, 20*time.Second, fmt.Sprintf("%d sessions listen", n), func() bool {
		return db.QueryInt(t, `select count(*) from pg_stat_activity where datname = current_database() and query like 'listen %' and state = 'idle'`) == n
	})
}

func TestTerminatedListenerIsWokenAgainWithinSeconds(t *testing.T) {
	db := pgtest.NewDatabase(t)
	client := openOn(t, db.Pool(t), &sqlstreams.ClientConfig{DisableManager: true})
	stream := register[WelcomeEmail](t, client, "s")
	var seen tally
	consume(t, group(t, stream, "g", nil), hourly(), func(_ context.Context, m *WelcomeEmail) error { seen.add(m.UserID); return nil })
	elsewhere := register[WelcomeEmail](t, openOn(t, db.Pool(t), &sqlstreams.ClientConfig{DisableManager: true}), "s")
	for round := range 3 {
		listeners(t, db, 1)
		db.SuperuserExec(t, `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and query like 'listen %'`)
		for _, moment := range []string{"at once", "and later"} {
			name := fmt.Sprintf("%s %d", moment, round)
			produceAll(t, elsewhere, name)
			pgtest.Eventually(t, 5*time.Second, "a message produced after it is handled: "+name, func() bool { return seen.count(name) == 1 })
			listeners(t, db, 1)
		}
	}
	if seen.total() != 6 {
		t.Errorf("%d runs of 6 messages", seen.total())
	}
}

// An announcement that nobody heard because the network had parted: whoever listens again looks for what it has missed.
func TestMissedAnnouncementIsMadeUpForOnReconnecting(t *testing.T) {
	db := pgtest.NewDatabase(t)
	proxy := pgtest.NewProxy(t, db.DSN)
	client := openOn(t, pgtest.OpenPool(t, proxy.DSN(t, db.DSN), noChange), &sqlstreams.ClientConfig{DisableManager: true})
	t.Cleanup(proxy.Thaw)
	stream := register[WelcomeEmail](t, client, "s")
	var seen tally
	consume(t, group(t, stream, "g", nil), hourly(), func(_ context.Context, m *WelcomeEmail) error { seen.add(m.UserID); return nil })
	elsewhere := register[WelcomeEmail](t, openOn(t, db.Pool(t), &sqlstreams.ClientConfig{DisableManager: true}), "s")
	names, err := schema.NewNames(sqlstreams.DefaultSchema)
	if err != nil {
		t.Fatal(err)
	}
	witness := db.Conn(t)
	if _, err := witness.Exec(t.Context(), `listen `+names.Channel); err != nil {
		t.Fatal(err)
	}
	listeners(t, db, 2)
	produceAll(t, elsewhere, "heard")
	pgtest.Eventually(t, 5*time.Second, "the first message is handled", func() bool { return seen.count("heard") == 1 })
	proxy.Freeze()
	proxy.CutAll()
	produceAll(t, elsewhere, "missed")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for heard := 0; heard < 2; {
		n, err := witness.WaitForNotification(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if n.Payload == "d1" || n.Payload == "i1" { // the stream's; listeners greet themselves besides
			heard++
		}
	}
	proxy.Thaw()
	pgtest.Eventually(t, 10*time.Second, "the missed message is handled", func() bool { return seen.count("missed") == 1 })
}

// While the server is down something else answers on its port and counts how often it is asked.
func TestServerThatIsDownIsNotAskedWithoutEnd(t *testing.T) {
	server := pgtest.NewServer(t, pgserver.Options{})
	db := pgtest.NewDatabaseOn(t, server)
	client := openOn(t, db.Pool(t), nil)
	stream := register[WelcomeEmail](t, client, "s")
	var seen tally
	consume(t, group(t, stream, "g", nil), &sqlstreams.ConsumeOptions{PollInterval: time.Millisecond}, func(_ context.Context, m *WelcomeEmail) error { seen.add(m.UserID); return nil })
	produceAll(t, stream, "before")
	pgtest.Eventually(t, 10*time.Second, "it is handled", func() bool { return seen.count("before") == 1 })
	if err := server.Stop(t.Context(), pgserver.Fast); err != nil {
		t.Fatal(err)
	}
	var lc net.ListenConfig
	fake, err := lc.Listen(t.Context(), "tcp", server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := fake.Accept()
			if err != nil {
				return
			}
			asked.Add(1)
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	const watched = 3 * time.Second
	pause(watched)
	n := asked.Load()
	if err := fake.Close(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	t.Logf("asked %d times in %v", n, watched)
	if n == 0 || n > 100 {
		t.Errorf("the server was asked %d times in %v", n, watched)
	}
	if err := server.StartAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, 20*time.Second, "a message is produced", func() bool {
		_, err := stream.Producer(nil).Produce(t.Context(), &WelcomeEmail{UserID: "after"}, nil)
		if err != nil && !errors.Is(err, sqlstreams.ErrUnreachable) {
			t.Fatal(err)
		}
		return err == nil
	})
	pgtest.Eventually(t, 20*time.Second, "it is handled", func() bool { return seen.count("after") == 1 })
}

// One statement brings a hundred messages; each of four idle instances, as of four processes, gets work before any of them has finished its first message.
func TestOneBatchGivesEveryIdleInstanceWork(t *testing.T) {
	db := pgtest.NewDatabase(t)
	producer := register[WelcomeEmail](t, openOn(t, db.Pool(t), &sqlstreams.ClientConfig{DisableManager: true}), "s")
	const instances = 4
	var seen tally
	entered := make(chan int, 200)
	together := make(chan struct{})
	for i := range instances {
		client := openOn(t, db.Pool(t), &sqlstreams.ClientConfig{DisableManager: true})
		consume(t, group(t, register[WelcomeEmail](t, client, "s"), "g", nil), hourly(), func(ctx context.Context, m *WelcomeEmail) error {
			seen.add(m.UserID)
			entered <- i
			select {
			case <-together:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}
	listeners(t, db, instances)
	produceAll(t, producer, numbered("m", 100)...)
	busy := map[int]bool{}
	deadline := time.NewTimer(10 * time.Second)
	for len(busy) < instances {
		select {
		case i := <-entered:
			busy[i] = true
		case <-deadline.C:
			t.Fatalf("only %d of %d instances have work", len(busy), instances)
		}
	}
	close(together)
	pgtest.Eventually(t, 20*time.Second, "all are handled and recorded", func() bool {
		return seen.distinct() == 100 && db.QueryInt(t, `select count(*) from sqlstreams.claim`) == 0
	})
	if seen.total() != 100 {
		t.Errorf("%d runs of 100 messages", seen.total())
	}
}
