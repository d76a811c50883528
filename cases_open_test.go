package sqlstreams_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// What is open, slow, rolled back or unrelated, and whom it must not delay.

// rolledBack ends a transaction that a test may have left open.
func rolledBack(t testing.TB, tx pgx.Tx) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		t.Error(err)
	}
}

// othersGoOn produces in every way and fails if anybody was held up. The guard time is 200 ms; a busy machine may exceed it now and then, not regularly.
func othersGoOn(t testing.TB, client *sqlstreams.Client, pool *pgxpool.Pool, stream *sqlstreams.Stream[WelcomeEmail], prefix string, each int) (names []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	producer := stream.Producer(nil)
	var took []time.Duration
	for i := range each {
		for way, produce := range map[string]func(email *WelcomeEmail) error{
			"direct": func(email *WelcomeEmail) error {
				_, err := producer.Produce(ctx, email, nil)
				return err
			},
			"tx": func(email *WelcomeEmail) error {
				return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					_, err := producer.ProduceTx(ctx, tx, email, nil)
					return err
				})
			},
			"intx": func(email *WelcomeEmail) error {
				return client.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
					_, err := producer.ProduceTx(ctx, tx, email, nil)
					return err
				})
			},
		} {
			name := fmt.Sprintf("%s-%s-%d", prefix, way, i)
			began := time.Now()
			if err := produce(&WelcomeEmail{UserID: name}); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			took = append(took, time.Since(began))
			names = append(names, name)
		}
	}
	if high := quantile(took, 0.9); high > 200*time.Millisecond {
		t.Errorf("one produce in ten took longer than %v (half of them than %v)", high, quantile(took, 0.5))
	}
	return names
}

func TestOpenTransactionHidesNothingAndLosesNothing(t *testing.T) {
	client, db, pool := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	ctx := t.Context()
	var seen tally
	consume(t, group(t, stream, "g", nil), &sqlstreams.ConsumeOptions{Handlers: 1, BatchLimit: 1, PollInterval: time.Millisecond}, func(_ context.Context, m *WelcomeEmail) error {
		seen.add(m.UserID)
		return nil
	})
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer rolledBack(t, tx)
	if _, err := stream.Producer(nil).ProduceTx(ctx, tx, &WelcomeEmail{UserID: "open"}, nil); err != nil {
		t.Fatal(err)
	}
	others := len(othersGoOn(t, client, pool, stream, "before", 50))
	pgtest.Eventually(t, 20*time.Second, "the others' messages are handled", func() bool { return seen.distinct() == others })

	// Upkeep that empties what has been drained must not take the open transaction's row for gone, however old its neighbours are.
	db.Exec(t, `update sqlstreams.inbox_part set current_since = current_since - interval '1 hour'`)
	if outcome := queryText(t, db, `call sqlstreams.rotate_inbox(0, null)`); outcome != "rotated" {
		t.Fatalf("rotating the inbox: %s", outcome)
	}
	if outcome := queryText(t, db, `call sqlstreams.empty_inbox_part(0, '0 seconds', null)`); outcome != "busy" {
		t.Errorf("emptying the part with the open transaction's row: %s", outcome)
	}
	others += len(othersGoOn(t, client, pool, stream, "after", 50))
	pgtest.Eventually(t, 20*time.Second, "the others' messages are handled", func() bool { return seen.distinct() == others })
	if seen.count("open") != 0 {
		t.Error("a message was handled before its transaction was committed")
	}

	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, 10*time.Second, "the message comes after its commit", func() bool { return seen.count("open") == 1 })
	if seen.total() != others+1 {
		t.Errorf("%d runs of %d messages", seen.total(), others+1)
	}
	if id := db.QueryInt(t, `select id from sqlstreams.log_1 where payload->>'user_id' = 'open'`); id != int64(others+1) {
		t.Errorf("the message has the id %d; it was committed last, after %d others", id, others)
	}
}

func TestHolesOfTransactionsThatEndedBadlyArePassedAtOnce(t *testing.T) {
	client, db, pool := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	producer := stream.Producer(nil)
	ctx := t.Context()
	var seen tally
	consume(t, group(t, stream, "g", nil), &sqlstreams.ConsumeOptions{BatchLimit: 1}, func(_ context.Context, m *WelcomeEmail) error {
		seen.add(m.UserID)
		return nil
	})
	rollback := errors.New("roll back")
	ways := map[string]func(){
		"rolled back": func() {
			tx, err := pool.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := producer.ProduceBatchTx(ctx, tx, []sqlstreams.Outgoing[WelcomeEmail]{{Payload: &WelcomeEmail{UserID: "ghost"}}, {Payload: &WelcomeEmail{UserID: "ghost"}}}); err != nil {
				t.Fatal(err)
			}
			rolledBack(t, tx)
		},
		"failed": func() {
			err := client.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
				if _, err := producer.ProduceTx(ctx, tx, &WelcomeEmail{UserID: "ghost"}, nil); err != nil {
					return err
				}
				return rollback
			})
			if !errors.Is(err, rollback) {
				t.Error(err)
			}
		},
		"cut": func() {
			err := client.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
				if _, err := producer.ProduceTx(ctx, tx, &WelcomeEmail{UserID: "ghost"}, nil); err != nil {
					return err
				}
				db.SuperuserExec(t, `select pg_terminate_backend($1)`, pgtest.BackendPID(t, tx))
				return nil
			})
			if !errors.Is(err, sqlstreams.ErrUnreachable) {
				t.Errorf("committing on a connection that was cut: %v", err)
			}
		},
	}
	want := 0
	for round := range 5 {
		for way, end := range ways {
			end()
			name := fmt.Sprintf("%s %d", way, round)
			produceAll(t, stream, name)
			want++
			pgtest.Eventually(t, 5*time.Second, "the message behind a hole is handled: "+name, func() bool { return seen.count(name) == 1 })
		}
	}
	if seen.total() != want || seen.count("ghost") != 0 {
		t.Errorf("%d runs, %d of them of messages that were never committed; want %d and 0", seen.total(), seen.count("ghost"), want)
	}
	if gaps := db.QueryInt(t, `select max(id) - count(*) from sqlstreams.log_1`); gaps != 0 {
		t.Errorf("%d gaps in the ids", gaps)
	}
}

// Transactions that have nothing to do with the stream hold a snapshot and an id, in this database and in another one of the server.
func TestTransactionsElsewhereDelayNobody(t *testing.T) {
	client, db, pool := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	ctx := t.Context()
	var mu sync.Mutex
	arrived := map[string]chan time.Time{}
	arrival := func(name string) chan time.Time {
		mu.Lock()
		defer mu.Unlock()
		if arrived[name] == nil {
			arrived[name] = make(chan time.Time, 10)
		}
		return arrived[name]
	}
	consume(t, group(t, stream, "g", nil), nil, func(_ context.Context, m *WelcomeEmail) error {
		arrival(m.UserID) <- time.Now()
		return nil
	})
	run := func(prefix string) time.Duration {
		var took []time.Duration
		for i := range 40 {
			for _, way := range []string{"direct", "inbox"} {
				email := &WelcomeEmail{UserID: fmt.Sprintf("%s-%s-%d", prefix, way, i)}
				began := time.Now()
				var err error
				if way == "direct" {
					_, err = stream.Producer(nil).Produce(ctx, email, nil)
				} else {
					err = client.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
						_, err := stream.Producer(nil).ProduceTx(ctx, tx, email, nil)
						return err
					})
				}
				if err != nil {
					t.Fatal(err)
				}
				select {
				case at := <-arrival(email.UserID):
					took = append(took, at.Sub(began))
				case <-time.NewTimer(10 * time.Second).C:
					t.Fatalf("%s is not delivered", email.UserID)
				}
			}
		}
		return quantile(took, 0.5)
	}
	before := run("before")

	other := pgtest.NewDatabase(t)
	for _, place := range []*pgxpool.Pool{pool, other.Pool(t)} {
		if _, err := place.Exec(ctx, `create table strangers (x int)`); err != nil {
			t.Fatal(err)
		}
		tx, err := place.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		if err != nil {
			t.Fatal(err)
		}
		defer rolledBack(t, tx)
		if _, err := tx.Exec(ctx, `insert into strangers values (1)`); err != nil {
			t.Fatal(err)
		}
	}
	during := run("during")
	t.Logf("from produce to handler: half within %v, and %v beside open transactions", before, during)
	if during > 5*before+50*time.Millisecond {
		t.Errorf("half of the messages take %v with transactions open elsewhere, %v without", during, before)
	}
	if n := db.QueryInt(t, `select count(*) from pg_stat_activity where state = 'idle in transaction' and datname in ($1, $2)`, db.Name, other.Name); n != 2 {
		t.Fatalf("%d transactions are open, not 2", n)
	}
}

// A statement behind the produce, in the same transaction, is slow: a trigger on the user's table waits for something.
func TestSlowProducingTransactionDelaysNobody(t *testing.T) {
	client, db, pool := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	ctx := t.Context()
	db.Exec(t, `create table orders (id int)`)
	db.Exec(t, `create function slow() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock(7, 7); return new; end $$`)
	db.Exec(t, `create trigger slow before insert on orders for each row execute function slow()`)
	gate := db.Conn(t)
	if _, err := gate.Exec(ctx, `select pg_advisory_lock(7, 7)`); err != nil {
		t.Fatal(err)
	}
	var seen tally
	consume(t, group(t, stream, "g", nil), nil, func(_ context.Context, m *WelcomeEmail) error {
		seen.add(m.UserID)
		return nil
	})
	ended := make(chan error, 1)
	pid := make(chan int, 1)
	go func() {
		ended <- client.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := stream.Producer(nil).ProduceTx(ctx, tx, &WelcomeEmail{UserID: "slow"}, nil); err != nil {
				return err
			}
			pid <- int(tx.Conn().PgConn().PID())
			_, err := tx.Exec(ctx, `insert into orders values (1)`)
			return err
		})
	}()
	pgtest.Blocked(t, pool, <-pid)
	names := othersGoOn(t, client, pool, stream, "other", 15)
	pgtest.Eventually(t, 10*time.Second, "the others' messages are handled", func() bool { return seen.distinct() == len(names) })
	select {
	case err := <-ended:
		t.Fatalf("the slow transaction has ended: %v", err)
	default:
	}
	if _, err := gate.Exec(ctx, `select pg_advisory_unlock(7, 7)`); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, 10*time.Second, "the slow one's message is handled", func() bool { return seen.count("slow") == 1 })
	if seen.total() != len(names)+1 {
		t.Errorf("%d runs of %d messages", seen.total(), len(names)+1)
	}
}
