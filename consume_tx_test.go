package sqlstreams_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// consumeTx starts a ConsumeTx call in the background; the test's end stops it.
func consumeTx[T any](t testing.TB, c *sqlstreams.Consumer[T], opts *sqlstreams.ConsumeOptions, f func(context.Context, pgx.Tx, *T) error) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = c.ConsumeTx(ctx, f, opts)
	}()
	t.Cleanup(func() { r.stop(t) })
	return r
}

// effects is a business table that a repeated effect would show in.
func effects(t testing.TB, db *pgtest.Database) {
	t.Helper()
	db.Exec(t, `create table effect (who text not null, at timestamptz not null default clock_timestamp())`)
}

func effect(ctx context.Context, tx pgx.Tx, who string) error {
	_, err := tx.Exec(ctx, `insert into effect (who) values ($1)`, who)
	return err
}

// settled waits until the group has nothing left to do.
func settled(t testing.TB, client *sqlstreams.Client, stream, group string, head int64) *sqlstreams.GroupStatus {
	t.Helper()
	var s *sqlstreams.GroupStatus
	pgtest.Eventually(t, 30*time.Second, "the group is done", func() bool {
		var err error
		s, err = client.Group(stream, group).Status(t.Context())
		return err == nil && s.Committed >= head && s.OpenClaims+s.Pending+s.Running+s.Inbox == 0
	})
	return s
}

// What a handler writes is committed if and only if it succeeds, on the main line and in a retry.
func TestEffectsHappenOnce(t *testing.T) {
	client, db, _ := open(t, nil)
	effects(t, db)
	stream := register[WelcomeEmail](t, client, "s")
	out := register[WelcomeEmail](t, client, "out")
	instance := group(t, stream, "g", &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{BaseDelay: 10 * time.Millisecond, MaxAttempts: 4}})
	var seen tally
	var kept pgx.Tx
	consumeTx(t, instance, nil, func(ctx context.Context, tx pgx.Tx, m *WelcomeEmail) error {
		n := seen.add(m.UserID)
		if err := effect(ctx, tx, m.UserID); err != nil {
			return err
		}
		if _, err := out.Producer(nil).ProduceTx(ctx, tx, m, nil); err != nil {
			return err
		}
		switch {
		case m.UserID == "keeps" && n == 1:
			kept = tx
		case m.UserID == "fails twice" && n < 3:
			return errors.New("not yet")
		case m.UserID == "delays" && n == 1:
			return sqlstreams.Delay(20 * time.Millisecond)
		case m.UserID == "panics" && n == 1:
			panic("no")
		case m.UserID == "never":
			return errors.New("never")
		case m.UserID == "commits":
			if err := tx.Commit(ctx); !errors.Is(err, sqlstreams.ErrInvalidTransaction) {
				return fmt.Errorf("Commit: %w", err)
			}
			if err := tx.Rollback(ctx); !errors.Is(err, sqlstreams.ErrInvalidTransaction) {
				return fmt.Errorf("Rollback: %w", err)
			}
		case m.UserID == "savepoint":
			inner, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			if err := effect(ctx, inner, "rolled back"); err != nil {
				return err
			}
			return inner.Rollback(ctx)
		case m.UserID == "swallows" && n == 1:
			_, _ = tx.Exec(ctx, `select 1/0`) // the transaction is aborted, and nil is returned all the same
		}
		return nil
	})
	names := []string{"plain", "keeps", "fails twice", "delays", "panics", "never", "commits", "savepoint", "swallows"}
	produceAll(t, stream, names...)
	s := settled(t, client, "s", "g", int64(len(names)))
	if s.Dead != 1 {
		t.Errorf("%d dead letters, want 1", s.Dead)
	}
	for _, table := range []string{`select who from effect`, `select payload->>'user_id' from sqlstreams.log_2 union all select payload->>'user_id' from sqlstreams.inbox`} {
		if n := db.QueryInt(t, `select count(*) from (`+table+`) q`); n != 8 {
			t.Errorf("%s: %d effects of 8 messages that succeeded", table, n)
		}
		if n := db.QueryInt(t, `select count(distinct who) from (`+table+`) q (who) where who not in ('never', 'rolled back')`); n != 8 {
			t.Errorf("%s: %d of 8", table, n)
		}
	}
	if _, err := kept.Exec(t.Context(), `select 1`); !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("a transaction that was kept can be used: %v", err)
	}
	if n := db.QueryInt(t, `select count(*) from sqlstreams.done`); n != 0 {
		t.Errorf("%d marks are left", n)
	}
	if h := instance.Health(); h.Succeeded != 8 || h.LeaseLost != 0 {
		t.Errorf("%+v", h)
	}
}

// The message is taken over while its handler works: the commit is refused, nothing of it remains, and the new owner's effect is the only one.
func TestCommitIsRefusedAfterATakeover(t *testing.T) {
	client, db, _ := open(t, nil)
	effects(t, db)
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", nil)
	entered, taken := make(chan struct{}), make(chan struct{})
	var once sync.Once
	first := false
	consumeTx(t, instance, &sqlstreams.ConsumeOptions{Handlers: 1}, func(ctx context.Context, tx pgx.Tx, m *WelcomeEmail) error {
		if err := effect(ctx, tx, m.UserID); err != nil {
			return err
		}
		once.Do(func() {
			first = true
			close(entered)
			<-taken
		})
		return nil
	})
	produceAll(t, stream, "a")
	<-entered
	// As a takeover does.
	db.Exec(t, `update sqlstreams.claim set token = gen_random_uuid(), expires_at = clock_timestamp(), instance = gen_random_uuid()`)
	close(taken)
	s := settled(t, client, "s", "g", 1)
	if n := db.QueryInt(t, `select count(*) from effect`); n != 1 || !first || s.Dead != 0 {
		t.Errorf("%d effects of one message, %+v", n, s)
	}
	if h := instance.Health(); h.LeaseLost != 1 {
		t.Errorf("%+v", h)
	}
}

// A handler that outlives its timeout and grace: its transaction goes with its connection, whatever it does later.
func TestAbandonedHandlerCommitsNothing(t *testing.T) {
	client, db, _ := open(t, nil)
	effects(t, db)
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{Timeout: 200 * time.Millisecond, BaseDelay: 10 * time.Millisecond}})
	var seen tally
	released, late := make(chan struct{}), make(chan error, 1)
	consumeTx(t, instance, &sqlstreams.ConsumeOptions{Handlers: 2}, func(ctx context.Context, tx pgx.Tx, m *WelcomeEmail) error {
		first := seen.add(m.UserID) == 1
		if err := effect(ctx, tx, m.UserID); err != nil {
			return err
		}
		if first {
			<-released // ignores its context
			late <- effect(context.Background(), tx, "late")
			return nil
		}
		return nil
	})
	produceAll(t, stream, "a")
	settled(t, client, "s", "g", 1)
	close(released)
	if err := <-late; err == nil {
		t.Error("an abandoned handler went on writing")
	}
	pgtest.Eventually(t, 10*time.Second, "it has returned", func() bool { return instance.Health().Cleared == 1 })
	if n := db.QueryInt(t, `select count(*) from effect`); n != 1 || seen.count("a") != 2 {
		t.Errorf("%d effects, %d runs", n, seen.count("a"))
	}
}

// The commit takes longer than the attempt may: it is written off while the server commits. Whoever records waits for that commit, sees the mark, and does not let the message run again.
func TestCommitThatOutlivesItsAttempt(t *testing.T) {
	client, db, _ := open(t, nil)
	effects(t, db)
	// The server sleeps in the COMMIT, which it has received whole, and is not to be cancelled: as when it waits for a standby.
	db.Exec(t, `create function slow() returns trigger language plpgsql as $$ begin
		if new.who like 'slow%' then
			begin perform pg_sleep(0.7); exception when query_canceled then perform pg_sleep(0.4); end;
		end if;
		return null; end $$`)
	db.Exec(t, `create constraint trigger slow after insert on effect deferrable initially deferred for each row execute function slow()`)
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{Timeout: 200 * time.Millisecond, BaseDelay: 10 * time.Millisecond}})
	var seen tally
	consumeTx(t, instance, nil, func(ctx context.Context, tx pgx.Tx, m *WelcomeEmail) error {
		if seen.add(m.UserID) == 1 && m.UserID == "slow in a retry" {
			return errors.New("once")
		}
		return effect(ctx, tx, m.UserID)
	})
	names := []string{"slow", "quick", "slow in a retry"}
	produceAll(t, stream, names...)
	if s := settled(t, client, "s", "g", 3); s.Dead != 0 {
		t.Errorf("%d dead", s.Dead)
	}
	for _, name := range names {
		if n := db.QueryInt(t, `select count(*) from effect where who = $1`, name); n != 1 {
			t.Errorf("%s: %d effects", name, n)
		}
	}
	if n := db.QueryInt(t, `select count(*) from sqlstreams.done`); n != 0 {
		t.Errorf("%d marks are left", n)
	}
}

// The role's transactions are SERIALIZABLE unless they say otherwise; these say READ COMMITTED.
func TestConsumeTxUnderSerializableRoles(t *testing.T) {
	db := pgtest.NewDatabase(t)
	db.Exec(t, `create table counter (n integer not null)`)
	db.Exec(t, `insert into counter values (0)`)
	pool := db.PoolConfig(t, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
		c.MaxConns = 8
	})
	client := openOn(t, pool, nil)
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", nil)
	consumeTx(t, instance, &sqlstreams.ConsumeOptions{Handlers: 6}, func(ctx context.Context, tx pgx.Tx, _ *WelcomeEmail) error {
		var level string
		if err := tx.QueryRow(ctx, `show transaction_isolation`).Scan(&level); err != nil || level != "read committed" {
			return sqlstreams.Terminal(fmt.Errorf("%s, %w", level, err))
		}
		_, err := tx.Exec(ctx, `update counter set n = n + 1`)
		return err
	})
	var names []string
	for i := range 40 {
		names = append(names, fmt.Sprint(i))
	}
	produceAll(t, stream, names...)
	s := settled(t, client, "s", "g", 40)
	if n := db.QueryInt(t, `select n from counter`); n != 40 || s.Dead != 0 {
		t.Errorf("counted %d of 40, %d dead", n, s.Dead)
	}
}

// A transaction that the server gives up at its commit because of another is no failed attempt.
func TestSerializationFailureAtCommitIsNoAttempt(t *testing.T) {
	client, db, _ := open(t, nil)
	effects(t, db)
	db.Exec(t, `create function unlucky() returns trigger language plpgsql as $$ begin
		if new.who like 'unlucky%' and (select count(*) from luck) < 1 then raise exception 'deadlock' using errcode = '40P01'; end if; return null; end $$`)
	db.Exec(t, `create table luck (n integer)`)
	db.Exec(t, `create constraint trigger unlucky after insert on effect deferrable initially deferred for each row execute function unlucky()`)
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{MaxAttempts: 1}})
	var seen tally
	consumeTx(t, instance, nil, func(ctx context.Context, tx pgx.Tx, m *WelcomeEmail) error {
		if seen.add(m.UserID) == 4 {
			db.Exec(t, `insert into luck values (1)`)
		}
		return effect(ctx, tx, m.UserID)
	})
	produceAll(t, stream, "unlucky")
	if s := settled(t, client, "s", "g", 1); s.Dead != 0 || seen.count("unlucky") != 4 {
		t.Errorf("%d dead, %d runs", s.Dead, seen.count("unlucky"))
	}
	if n := db.QueryInt(t, `select count(*) from effect`) + db.QueryInt(t, `select count(*) from sqlstreams.attempt`); n != 1 {
		t.Errorf("%d effects and attempts on record, want one effect", n)
	}
}

// Handlers that hold every connection of the pool still produce.
func TestProduceInsideConsumeTxWithASmallPool(t *testing.T) {
	db := pgtest.NewDatabase(t)
	client := openOn(t, db.PoolConfig(t, func(c *pgxpool.Config) { c.MaxConns = 2 }), nil)
	stream, out := register[WelcomeEmail](t, client, "s"), register[WelcomeEmail](t, client, "out")
	instance := group(t, stream, "g", nil)
	var both sync.WaitGroup
	both.Add(2)
	consumeTx(t, instance, &sqlstreams.ConsumeOptions{Handlers: 2}, func(ctx context.Context, _ pgx.Tx, m *WelcomeEmail) error {
		if strings.HasPrefix(m.UserID, "meet") {
			both.Done()
			both.Wait() // both handlers hold their connection now
		}
		_, err := out.Producer(nil).Produce(ctx, m, nil)
		if err == nil {
			_, err = out.Producer(nil).Produce(ctx, m, &sqlstreams.ProduceOptions{IdempotencyKey: m.UserID})
		}
		return err
	})
	names := []string{"meet 1", "meet 2", "a", "b", "c"}
	produceAll(t, stream, names...)
	settled(t, client, "s", "g", 5)
	if n := db.QueryInt(t, `select (select count(*) from sqlstreams.log_2) + (select count(*) from sqlstreams.inbox)`); n != 10 {
		t.Errorf("%d messages came out, want 10", n)
	}
}

// Once: the first transaction that commits has it, one that rolls back gives it free, each group has its own.
func TestOnce(t *testing.T) {
	client, db, pool := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	group(t, stream, "g", nil)
	group(t, stream, "h", nil)
	g := client.Group("s", "g")
	try := func(g *sqlstreams.GroupHandle, key string, commit bool) bool {
		t.Helper()
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		first, err := sqlstreams.Once(t.Context(), tx, g, key)
		if err != nil {
			t.Fatal(err)
		}
		if commit {
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		return first
	}
	if !try(g, "k", false) || !try(g, "k", true) || try(g, "k", true) || !try(client.Group("s", "h"), "k", true) || !try(g, "l", true) {
		t.Error("a key was had twice, or not at all")
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	for name, c := range map[string]struct {
		group *sqlstreams.GroupHandle
		key   string
		want  error
	}{
		"empty key": {g, "", sqlstreams.ErrInvalidOption},
		"long key":  {g, strings.Repeat("x", 513), sqlstreams.ErrInvalidOption},
		"NUL":       {g, "a\x00", sqlstreams.ErrInvalidOption},
		"no group":  {client.Group("s", "x"), "k", sqlstreams.ErrGroupNotFound},
	} {
		if _, err := sqlstreams.Once(t.Context(), tx, c.group, c.key); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := sqlstreams.Once(t.Context(), nil, g, "k"); !errors.Is(err, sqlstreams.ErrInvalidTransaction) {
		t.Error(err)
	}
	_ = db
}
