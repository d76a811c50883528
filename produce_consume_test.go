package sqlstreams_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

func TestAMessageGoesThrough(t *testing.T) {
	client, db, _ := open(t, nil)
	emails := register[WelcomeEmail](t, client, "signup.welcome-email")
	if emails.Outcome() != sqlstreams.Created {
		t.Errorf("outcome %q", emails.Outcome())
	}
	produced, err := emails.Producer(nil).Produce(t.Context(), &WelcomeEmail{UserID: "u-1"}, &sqlstreams.ProduceOptions{
		Key: "k", RoutingKey: "a.b", Headers: map[string]string{"trace": "t-1"}})
	if err != nil || produced.ID != 1 {
		t.Fatalf("%+v, %v", produced, err)
	}
	got := make(chan sqlstreams.Meta, 1)
	consume(t, group(t, emails, "email-sender", nil), nil, func(ctx context.Context, email *WelcomeEmail) error {
		meta, ok := sqlstreams.MetaFromContext(ctx)
		if !ok || email.UserID != "u-1" {
			return errors.New("not what was produced")
		}
		got <- meta
		return nil
	})
	meta := <-got
	if meta.Stream != "signup.welcome-email" || meta.Group != "email-sender" || meta.ID != 1 || meta.Key != "k" || meta.RoutingKey != "a.b" || meta.Headers["trace"] != "t-1" ||
		meta.Attempt != 1 || meta.Redelivered || meta.ProducedAt.IsZero() || time.Until(meta.LeaseDeadline) < 40*time.Second {
		t.Errorf("%+v", meta)
	}
	pgtest.Eventually(t, 5*time.Second, "the result is recorded", func() bool {
		return db.QueryInt(t, `select count(*) from sqlstreams.claim`) == 0 && db.QueryInt(t, `select max(claimed) from sqlstreams.cursor`) == 1
	})
}

// Every way to produce, with commits and roll-backs, from several goroutines, into two groups: each gets every committed message, in either's own time.
func TestEveryGroupReceivesEveryCommittedMessage(t *testing.T) {
	client, db, pool := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	producer := stream.Producer(nil)
	ctx := t.Context()
	var a, b tally
	consume(t, group(t, stream, "a", nil), nil, func(_ context.Context, m *WelcomeEmail) error { a.add(m.UserID); return nil })
	consume(t, group(t, stream, "b", nil), &sqlstreams.ConsumeOptions{Handlers: 3, BatchLimit: 7}, func(_ context.Context, m *WelcomeEmail) error { b.add(m.UserID); return nil })
	sqlDB := openSQL(t, db.DSN)
	var wg sync.WaitGroup
	const each = 60
	fail := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	ways := []func(name string, i int){
		func(name string, i int) {
			_, err := producer.Produce(ctx, &WelcomeEmail{UserID: name}, nil)
			fail(err)
		},
		func(name string, i int) {
			batch := []sqlstreams.Outgoing[WelcomeEmail]{{Payload: &WelcomeEmail{UserID: name}}, {Payload: &WelcomeEmail{UserID: name + "+"}}}
			_, err := producer.ProduceBatch(ctx, batch)
			fail(err)
		},
		func(name string, i int) {
			tx, err := pool.Begin(ctx)
			fail(err)
			_, err = producer.ProduceTx(ctx, tx, &WelcomeEmail{UserID: name}, nil)
			fail(err)
			if i%3 == 0 {
				fail(tx.Rollback(ctx))
			} else {
				fail(tx.Commit(ctx))
			}
		},
		func(name string, i int) {
			tx, err := sqlDB.BeginTx(ctx, nil)
			fail(err)
			_, err = producer.ProduceSQLTx(ctx, tx, &WelcomeEmail{UserID: name}, nil)
			fail(err)
			if i%3 == 0 {
				fail(tx.Rollback())
			} else {
				fail(tx.Commit())
			}
		},
		func(name string, i int) {
			stop := errors.New("stop")
			err := client.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
				_, err := producer.ProduceTx(ctx, tx, &WelcomeEmail{UserID: name}, nil)
				fail(err)
				if i%3 == 0 {
					return stop
				}
				return nil
			})
			if i%3 != 0 || !errors.Is(err, stop) {
				fail(err)
			}
		},
	}
	for w, produce := range ways {
		wg.Go(func() {
			for i := range each {
				produce(fmt.Sprintf("%d-%d", w, i), i)
			}
		})
	}
	wg.Wait()
	want := each + 2*each + 3*each*2/3
	for name, c := range map[string]*tally{"a": &a, "b": &b} {
		pgtest.Eventually(t, 20*time.Second, "group "+name+" has seen all", func() bool { return c.distinct() >= want })
		if c.distinct() != want || c.total() != want {
			t.Errorf("group %s saw %d messages, %d runs, want %d of each", name, c.distinct(), c.total(), want)
		}
	}
}

func TestFailuresAreRetriedAndThenDead(t *testing.T) {
	client, db, _ := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	c := group(t, stream, "g", &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{MaxAttempts: 3, BaseDelay: time.Millisecond}})
	for _, name := range []string{"fails always", "fails twice", "terminal", "delayed", "fine"} {
		if _, err := stream.Producer(nil).Produce(t.Context(), &WelcomeEmail{UserID: name}, nil); err != nil {
			t.Fatal(err)
		}
	}
	var runs tally
	consume(t, c, nil, func(_ context.Context, m *WelcomeEmail) error {
		n := runs.add(m.UserID)
		switch {
		case m.UserID == "fails always" || m.UserID == "fails twice" && n <= 2:
			return errors.New("no luck")
		case m.UserID == "terminal":
			return fmt.Errorf("wrapped: %w", sqlstreams.Terminal(errors.New("never")))
		case m.UserID == "delayed" && n < 5:
			return sqlstreams.Delay(time.Millisecond)
		}
		return nil
	})
	pgtest.Eventually(t, 20*time.Second, "all are settled", func() bool {
		return runs.count("fine") == 1 && runs.count("delayed") == 5 && db.QueryInt(t, `select count(*) from sqlstreams.dead_letter`) == 2 &&
			db.QueryInt(t, `select count(*) from sqlstreams.delivery`) == 0
	})
	for name, want := range map[string]int{"fails always": 3, "fails twice": 3, "terminal": 1, "delayed": 5, "fine": 1} {
		if runs.count(name) != want {
			t.Errorf("%q ran %d times, want %d", name, runs.count(name), want)
		}
	}
	if n := db.QueryInt(t, `select count(*) from sqlstreams.dead_letter d where d.payload->>'user_id' = 'fails always' and d.reason = 'exhausted' and d.attempts = 3 and d.error = 'no luck'
		or d.payload->>'user_id' = 'terminal' and d.reason = 'terminal' and d.attempts = 1 and d.error = 'wrapped: never'`); n != 2 {
		t.Errorf("%d of 2 dead letters are as expected", n)
	}
	if n := db.QueryInt(t, `select count(*) from sqlstreams.attempt`); n != 3+2+1 {
		t.Errorf("%d attempts in the history, want 6", n)
	}
}

func TestUndecodablePayloadIsDead(t *testing.T) {
	client, db, _ := open(t, nil)
	strings := register[string](t, client, "s")
	if _, err := strings.Producer(nil).Produce(t.Context(), ptr("text"), nil); err != nil {
		t.Fatal(err)
	}
	numbers := register[int](t, client, "s")
	consume(t, group(t, numbers, "g", nil), nil, func(context.Context, *int) error { t.Error("ran"); return nil })
	pgtest.Eventually(t, 10*time.Second, "a dead letter", func() bool {
		return db.QueryInt(t, `select count(*) from sqlstreams.dead_letter where reason = 'undecodable'`) == 1
	})
}

func ptr[T any](v T) *T { return &v }
