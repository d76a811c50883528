package sqlstreams_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgserver"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// The server, or its sessions, end in the middle of producing and consuming.

// fate is what a producer was told of a message.
type fate int

const (
	pending   fate = iota
	confirmed      // stored
	refused        // not stored
	unknown        // may be stored
)

// load is producers and consumers at work, and the account of it.
type load struct {
	db      *pgtest.Database
	pool    *pgxpool.Pool
	stop    context.CancelFunc
	ctx     context.Context
	workers sync.WaitGroup
	handled tally

	mu    sync.Mutex
	fates map[string]fate
	odd   []error // errors that are not of the kinds to expect
}

// underLoad starts two clients, each with a consumer of the same group and three producers, on a stream of a database.
func underLoad(t testing.TB, db *pgtest.Database) *load {
	t.Helper()
	l := &load{db: db, fates: map[string]fate{}}
	l.ctx, l.stop = context.WithCancel(context.Background())
	t.Cleanup(func() {
		l.stop()
		l.workers.Wait()
	})
	for c := range 2 {
		l.pool = db.Pool(t)
		client := openOn(t, l.pool, nil)
		stream := register[WelcomeEmail](t, client, "s")
		consume(t, group(t, stream, "g", &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{Timeout: 2 * time.Second}}),
			&sqlstreams.ConsumeOptions{Handlers: 4, BatchLimit: 20, QueueMargin: time.Second, RecordMargin: time.Second}, func(_ context.Context, m *WelcomeEmail) error {
				l.handled.add(m.UserID)
				return nil
			})
		producer := stream.Producer(nil)
		l.produce(fmt.Sprintf("%d-single", c), 1, func(names []string) error {
			_, err := producer.Produce(l.ctx, &WelcomeEmail{UserID: names[0]}, nil)
			return err
		})
		l.produce(fmt.Sprintf("%d-batch", c), 5, func(names []string) error {
			batch := make([]sqlstreams.Outgoing[WelcomeEmail], len(names))
			for i, name := range names {
				batch[i].Payload = &WelcomeEmail{UserID: name}
			}
			_, err := producer.ProduceBatch(l.ctx, batch)
			return err
		})
		l.produce(fmt.Sprintf("%d-tx", c), 1, func(names []string) error {
			return client.InTx(l.ctx, func(ctx context.Context, tx pgx.Tx) error {
				_, err := producer.ProduceTx(ctx, tx, &WelcomeEmail{UserID: names[0]}, nil)
				return err
			})
		})
	}
	return l
}

// produce runs one producer until the load stops, with new names each time.
func (l *load) produce(prefix string, size int, send func(names []string) error) {
	l.workers.Go(func() {
		for i := 0; l.ctx.Err() == nil; i++ {
			names := numbered(fmt.Sprintf("%s-%d", prefix, i), size)
			err := send(names)
			end := confirmed
			if err != nil {
				end = refused
				if errors.Is(err, sqlstreams.ErrOutcomeUnknown) {
					end = unknown
				}
			}
			l.mu.Lock()
			for _, name := range names {
				l.fates[name] = end
			}
			if err != nil && l.ctx.Err() == nil && !errors.Is(err, sqlstreams.ErrUnreachable) {
				l.odd = append(l.odd, err)
			}
			l.mu.Unlock()
			pause(5 * time.Millisecond) // without it an unreachable server is asked without end
		}
	})
}

func (l *load) count(f fate) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, v := range l.fates {
		if v == f {
			n++
		}
	}
	return n
}

// goesOn waits until so many more messages are confirmed, and handled.
func (l *load) goesOn(t testing.TB, more int) {
	t.Helper()
	at, done := l.count(confirmed), l.handled.distinct()
	pgtest.Eventually(t, 60*time.Second, fmt.Sprintf("%d more messages are produced and handled", more), func() bool {
		return l.count(confirmed) >= at+more && l.handled.distinct() >= done+more
	})
}

// settle stops the producers and checks the account.
func (l *load) settle(t testing.TB) {
	t.Helper()
	l.stop()
	l.workers.Wait()
	for _, err := range l.odd {
		t.Errorf("not an error of the connection: %v", err)
	}
	pgtest.Eventually(t, 30*time.Second, "everything that was confirmed is handled and recorded", func() bool {
		for name, f := range l.fates {
			if f == confirmed && l.handled.count(name) == 0 {
				return false
			}
		}
		return l.db.QueryInt(t, `select (select count(*) from sqlstreams.claim) + (select count(*) from sqlstreams.delivery) + (select count(*) from sqlstreams.inbox)`) == 0
	})
	rows, err := l.pool.Query(t.Context(), `select payload->>'user_id', count(*) from sqlstreams.log_1 group by 1`)
	if err != nil {
		t.Fatal(err)
	}
	stored := map[string]int{}
	var name string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&name, &n}, func() error { stored[name] = n; return nil }); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(l.fates)) {
		switch f, n := l.fates[name], stored[name]; {
		case f == confirmed && n != 1:
			t.Errorf("%s was confirmed and is stored %d times", name, n)
		case f == refused && n != 0:
			t.Errorf("%s was refused and is stored %d times", name, n)
		case f == unknown && n > 1:
			t.Errorf("%s has an unknown outcome and is stored %d times", name, n)
		case l.handled.count(name) > 0 && n == 0:
			t.Errorf("%s was handled and is not stored", name)
		}
	}
	if l.db.QueryInt(t, `select max(id) - count(*) from sqlstreams.log_1`) != 0 {
		t.Error("the ids have a gap")
	}
	if dead := l.db.QueryInt(t, `select count(*) from sqlstreams.dead_letter`); dead != 0 {
		t.Errorf("%d dead letters", dead)
	}
	t.Logf("%d confirmed, %d refused, %d unknown; %d runs of %d messages", l.count(confirmed), l.count(refused), l.count(unknown), l.handled.total(), l.handled.distinct())
}

// Case 8b: the kernel kills one backend; the server throws all sessions out and recovers by itself.
func TestKilledBackendLosesNothing(t *testing.T) {
	server := pgtest.NewServer(t, pgserver.Options{})
	l := underLoad(t, pgtest.NewDatabaseOn(t, server))
	l.goesOn(t, 30)
	for range 2 {
		var pid int
		pgtest.Eventually(t, 10*time.Second, "a backend in the middle of a CALL", func() bool {
			err := l.pool.QueryRow(t.Context(), `select pid from pg_stat_activity where state = 'active' and query like '%sqlstreams:append%' and pid <> pg_backend_pid() limit 1`).Scan(&pid)
			if err != nil && !errors.Is(err, pgx.ErrNoRows) {
				t.Fatal(err)
			}
			return err == nil
		})
		if err := server.KillBackend(t.Context(), pid); err != nil {
			t.Fatal(err)
		}
		l.goesOn(t, 60)
	}
	l.settle(t)
}

func TestRestartedServerLosesNothing(t *testing.T) {
	server := pgtest.NewServer(t, pgserver.Options{})
	l := underLoad(t, pgtest.NewDatabaseOn(t, server))
	l.goesOn(t, 30)
	for _, mode := range []pgserver.Mode{pgserver.Fast, pgserver.Immediate} {
		if err := server.Stop(t.Context(), mode); err != nil {
			t.Fatal(err)
		}
		pause(500 * time.Millisecond) // long enough for everybody to notice
		if err := server.StartAgain(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.goesOn(t, 60)
	}
	if err := server.Kill9(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := server.StartAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.goesOn(t, 60)
	l.settle(t)
}

func TestTerminatedSessionsLoseNothing(t *testing.T) {
	db := pgtest.NewDatabase(t)
	l := underLoad(t, db)
	l.goesOn(t, 30)
	for range 5 {
		db.SuperuserExec(t, `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and usename = 'app'`)
		l.goesOn(t, 20)
	}
	l.settle(t)
}

// Somebody else takes every connection that the server has; who holds one goes on, who needs one is told, and afterwards nothing is missing.
func TestTooManyConnections(t *testing.T) {
	server := pgtest.NewServer(t, pgserver.Options{Settings: map[string]string{"max_connections": "30", "max_wal_senders": "0"}})
	db := pgtest.NewDatabaseOn(t, server)
	l := underLoad(t, db)
	l.goesOn(t, 30)
	full := func(err error) bool {
		e, ok := errors.AsType[*pgconn.PgError](err)
		return ok && e.Code == "53300"
	}
	var taken []*pgx.Conn
	for range 2 {
		// Sessions are ended so that the clients need new connections, and the free ones are taken before they get them.
		db.SuperuserExec(t, `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and usename = 'app'`)
		for {
			conn, err := pgx.Connect(t.Context(), db.DSN)
			if err != nil {
				if !full(err) {
					t.Fatal(err)
				}
				break
			}
			taken = append(taken, conn)
		}
		_, err := sqlstreams.NewClient(t.Context(), db.Pool(t), &sqlstreams.ClientConfig{Logger: quiet()})
		coded(t, err, sqlstreams.ErrUnreachable, true)
		pause(300 * time.Millisecond)
		for _, conn := range taken {
			if err := conn.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		taken = nil
		l.goesOn(t, 30)
	}
	l.settle(t)
}

// Case 8a: what one producer does in a row keeps its order, whichever way each takes.
func TestOneProducersOrderIsKeptOnEveryWay(t *testing.T) {
	client, db, pool := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	producer := stream.Producer(nil)
	ctx := t.Context()
	var mu sync.Mutex
	var order []string
	consume(t, group(t, stream, "g", nil), &sqlstreams.ConsumeOptions{Handlers: 1}, func(_ context.Context, m *WelcomeEmail) error {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, m.UserID)
		return nil
	})
	// Somebody holds the stream's lock now and then, so that some produces find it taken.
	locker := db.Conn(t)
	key := &sqlstreams.ProduceOptions{Key: "k"}
	var names []string
	inbox, direct := 0, 0
	for i := range 40 {
		next := func() *WelcomeEmail {
			names = append(names, fmt.Sprintf("%04d", len(names)))
			return &WelcomeEmail{UserID: names[len(names)-1]}
		}
		inTx := func() {
			if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				_, err := producer.ProduceTx(ctx, tx, next(), key)
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		held, err := locker.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := held.Exec(ctx, `select pg_advisory_xact_lock($1::int, 1)`, lockClass(t, "stream")); err != nil {
			t.Fatal(err)
		}
		first, err := producer.Produce(ctx, next(), key)
		if err != nil || first.ID != 0 {
			t.Fatalf("%+v, %v: the lock was taken", first, err)
		}
		if i%2 == 0 {
			inTx()
			inTx()
		}
		if err := held.Rollback(ctx); err != nil {
			t.Fatal(err)
		}
		second, err := producer.Produce(ctx, next(), key)
		if err != nil {
			t.Fatal(err)
		}
		if second.ID == 0 {
			inbox++
		} else {
			direct++
		}
		inTx()
		if third, err := producer.Produce(ctx, next(), key); err != nil || third.ID != 0 && third.ID <= second.ID {
			t.Fatalf("%+v, %v after %+v", third, err, second)
		}
	}
	if direct == 0 {
		t.Error("no message went directly")
	}
	t.Logf("behind one in the inbox, %d went directly and %d through the inbox", direct, inbox)
	pgtest.Eventually(t, 20*time.Second, "all are handled", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(order) >= len(names)
	})
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(order, names) {
		t.Errorf("handled in the order %v", order)
	}
}
