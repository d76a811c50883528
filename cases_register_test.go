package sqlstreams_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// Declaring, deleting and starting, by many at once.

func TestEightProcessesRegisterTheSameForTheFirstTime(t *testing.T) {
	db := pgtest.NewDatabase(t)
	const processes = 8
	var all [processes]*child
	for i := range all {
		all[i] = spawn(t, "register", db.DSN)
	}
	for _, c := range all {
		c.expect(t, "ready")
	}
	for _, c := range all {
		c.say(t, "go")
	}
	outcomes := map[string]int{}
	for _, c := range all {
		stream, group, _ := strings.Cut(c.expect(t, "registered"), " ")
		outcomes["stream "+stream]++
		outcomes["group "+group]++
	}
	if outcomes["stream created"] != 1 || outcomes["stream unchanged"] != processes-1 || outcomes["group created"] != 1 || outcomes["group unchanged"] != processes-1 {
		t.Errorf("outcomes: %v", outcomes)
	}
	for table, want := range map[string]int64{"stream": 1, "consumer_group": 1, "cursor": 1, "partition": 2} {
		if n := db.QueryInt(t, `select count(*) from sqlstreams.`+table); n != want {
			t.Errorf("%d rows in %s, not %d", n, table, want)
		}
	}
	// What they made works.
	client := openOn(t, db.Pool(t), &sqlstreams.ClientConfig{ManualMigration: true})
	stream := register[WelcomeEmail](t, client, "s")
	var seen tally
	consume(t, group(t, stream, "g", nil), nil, func(_ context.Context, m *WelcomeEmail) error {
		seen.add(m.UserID)
		return nil
	})
	produceAll(t, stream, "a", "b")
	pgtest.Eventually(t, 10*time.Second, "both messages are handled", func() bool { return seen.distinct() == 2 })
}

func TestTwentyConnectionsCreateOneStream(t *testing.T) {
	client, db, pool := open(t, nil)
	const many = 20
	var wg sync.WaitGroup
	var created atomic.Int32
	start := make(chan struct{})
	for i := range many {
		other := openOn(t, pool, &sqlstreams.ClientConfig{ControlConns: 2, DisableManager: true})
		wg.Go(func() {
			<-start
			stream, err := sqlstreams.RegisterStream[WelcomeEmail](t.Context(), other, "s", nil)
			if err != nil {
				t.Error(err)
				return
			}
			if stream.Outcome() == sqlstreams.Created {
				created.Add(1)
			} else if stream.Outcome() != sqlstreams.Unchanged {
				t.Errorf("outcome %s", stream.Outcome())
			}
			if _, err := stream.Producer(nil).Produce(t.Context(), &WelcomeEmail{UserID: fmt.Sprint(i)}, nil); err != nil {
				t.Error(err)
			}
		})
	}
	close(start)
	wg.Wait()
	if created.Load() != 1 {
		t.Errorf("%d of them say that they created it", created.Load())
	}
	streams, err := client.ListStreams(t.Context())
	if err != nil || len(streams) != 1 {
		t.Fatalf("streams %v, %v", streams, err)
	}
	var seen tally
	consume(t, group(t, register[WelcomeEmail](t, client, "s"), "g", nil), nil, func(_ context.Context, m *WelcomeEmail) error {
		seen.add(m.UserID)
		return nil
	})
	pgtest.Eventually(t, 10*time.Second, "everybody's message is in the one stream", func() bool { return seen.distinct() == many })
	if n := db.QueryInt(t, `select count(*) from pg_class where relkind = 'p' and relname like 'log\_%'`); n != 1 {
		t.Errorf("%d logs", n)
	}
}

// A stream is deleted while producers and a consumer are at work on it: they are told by code, nothing of it is left, and the name is free.
func TestDeletingAStreamThatIsInUse(t *testing.T) {
	client, db, pool := open(t, nil)
	for round := range 3 {
		stream := register[WelcomeEmail](t, client, "s")
		var handled atomic.Int32
		session := make(chan error, 1)
		instance := group(t, stream, "g", nil)
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		go func() {
			session <- instance.Consume(ctx, func(_ context.Context, m *WelcomeEmail) error {
				if m.UserID != fmt.Sprint(round) {
					t.Errorf("a message of the stream of round %s in round %d", m.UserID, round)
				}
				handled.Add(1)
				return nil
			}, nil)
		}()
		email := &WelcomeEmail{UserID: fmt.Sprint(round)}
		var users sync.WaitGroup
		for _, produce := range []func() error{
			func() error { _, err := stream.Producer(nil).Produce(ctx, email, nil); return err },
			func() error {
				_, err := stream.Producer(nil).ProduceBatch(ctx, []sqlstreams.Outgoing[WelcomeEmail]{{Payload: email}, {Payload: email}})
				return err
			},
			func() error {
				return client.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
					_, err := stream.Producer(nil).ProduceTx(ctx, tx, email, nil)
					return err
				})
			},
			func() error {
				return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					_, err := stream.Producer(nil).ProduceBatchTx(ctx, tx, []sqlstreams.Outgoing[WelcomeEmail]{{Payload: email}, {Payload: email}})
					return err
				})
			},
		} {
			users.Go(func() {
				for {
					if err := produce(); err != nil {
						coded(t, err, sqlstreams.ErrStreamNotFound, false)
						return
					}
				}
			})
		}
		users.Go(func() {
			for {
				if _, err := client.GetGroup(ctx, "s", "g"); err != nil {
					if !errors.Is(err, sqlstreams.ErrStreamNotFound) && !errors.Is(err, sqlstreams.ErrGroupNotFound) {
						t.Errorf("looking at its group: %v", err)
					}
					return
				}
			}
		})
		pgtest.Eventually(t, 20*time.Second, "it is in use", func() bool { return handled.Load() >= 20 })
		if err := client.DeleteStream(ctx, "s"); err != nil {
			t.Fatal(err)
		}
		users.Wait()
		if err := <-session; !errors.Is(err, sqlstreams.ErrStreamNotFound) && !errors.Is(err, sqlstreams.ErrGroupNotFound) || !strings.Contains(err.Error(), `group "g" of stream "s"`) {
			t.Errorf("the consumer of a deleted stream: %v", err)
		}
		if _, err := client.GetStream(ctx, "s"); !errors.Is(err, sqlstreams.ErrStreamNotFound) {
			t.Errorf("looking for it: %v", err)
		}
		if err := client.DeleteStream(ctx, "s"); !errors.Is(err, sqlstreams.ErrStreamNotFound) {
			t.Errorf("deleting it again: %v", err)
		}
		if _, err := stream.RegisterConsumer(ctx, "late", nil); !errors.Is(err, sqlstreams.ErrStreamNotFound) {
			t.Errorf("registering a group of it: %v", err)
		}
	}
	// A message whose produce had begun before is removed by upkeep.
	pgtest.Eventually(t, 30*time.Second, "nothing is left", func() bool {
		return db.QueryInt(t, `select (select count(*) from sqlstreams.inbox) + (select count(*) from sqlstreams.instance)`) == 0
	})
	for _, table := range []string{"stream", "partition", "consumer_group", "cursor", "claim", "done", "delivery", "dead_letter", "attempt"} {
		if n := db.QueryInt(t, `select count(*) from sqlstreams.`+table); n != 0 {
			t.Errorf("%d rows are left in %s", n, table)
		}
	}
	if n := db.QueryInt(t, `select count(*) from pg_class where relname like 'log\_%'`); n != 0 {
		t.Errorf("%d tables and indexes of logs are left", n)
	}
}

// dumping holds what pg_dump holds for as long as it runs: a snapshot, and ACCESS SHARE on every table.
func dumping(t testing.TB, db *pgtest.Database) {
	t.Helper()
	conn := db.Conn(t)
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rolledBack(t, tx) })
	var tables string
	if err := tx.QueryRow(t.Context(), `select string_agg(format('%I.%I', schemaname, tablename), ', ') from pg_tables where schemaname = 'sqlstreams'`).Scan(&tables); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `lock table `+tables+` in access share mode`); err != nil {
		t.Fatal(err)
	}
}

// startProgram does what a program does when it begins.
func startProgram(t testing.TB, pool *pgxpool.Pool, streamName, groupName string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	client, err := sqlstreams.NewClient(ctx, pool, &sqlstreams.ClientConfig{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(ctx)
	stream, err := sqlstreams.RegisterStream[WelcomeEmail](ctx, client, streamName, &sqlstreams.StreamConfig{MaxKey: 100})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.RegisterConsumer(ctx, groupName, &sqlstreams.ConsumerConfig{MaxRangeReclaims: 2}); err != nil {
		t.Fatal(err)
	}
}

// pg_dump reads every table for as long as it takes. A start that asked for more than reading would wait for it, and everybody else behind the start.
func TestStartingBesideADump(t *testing.T) {
	_, db, pool := open(t, nil)
	startProgram(t, pool, "s", "g")
	dumping(t, db)
	watch := db.Conn(t)
	var tables []uint32
	if err := watch.QueryRow(t.Context(), `select array_agg(c.oid) from pg_class c where c.relnamespace = 'sqlstreams'::regnamespace`).Scan(&tables); err != nil {
		t.Fatal(err)
	}
	ended, watched := make(chan struct{}), make(chan struct{})
	looks := 0
	go func() {
		defer close(watched)
		for ; ; looks++ {
			select {
			case <-ended:
				return
			default:
			}
			var found *string
			err := watch.QueryRow(t.Context(), `select string_agg(coalesce(l.relation::regclass::text, l.locktype) || ' ' || l.mode || case when l.granted then '' else ' (waits)' end, ', ') from pg_locks l
				where l.database = (select d.oid from pg_database d where d.datname = current_database()) and (not l.granted or l.mode = 'AccessExclusiveLock' and l.relation = any ($1))`, tables).Scan(&found)
			if err != nil || found != nil {
				t.Errorf("a lock that waits, or that the dump would wait for: %v %v", found, err)
				return
			}
		}
	}()
	for range 10 {
		startProgram(t, pool, "s", "g") // as always
	}
	startProgram(t, pool, "s", "another-group")
	startProgram(t, pool, "second", "g")
	close(ended)
	<-watched
	if looks < 10 {
		t.Errorf("looked only %d times", looks)
	}
}

func TestStartingWritesNothing(t *testing.T) {
	_, db, pool := open(t, nil)
	startProgram(t, pool, "s", "g")
	tables := []string{"stream", "consumer_group", "cursor", "partition", "migration"}
	before := content(t, db, tables...)
	readOnly := db.PoolConfig(t, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	})
	for range 3 {
		startProgram(t, readOnly, "s", "g")
	}
	if after := content(t, db, tables...); after != before {
		t.Errorf("starting changed\n%sto\n%s", before, after)
	}
}
