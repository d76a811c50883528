package sqlstreams_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

func keyed(key string) *sqlstreams.ProduceOptions {
	return &sqlstreams.ProduceOptions{IdempotencyKey: key}
}

// stored counts the messages with and without their ids.
func stored(t testing.TB, db *pgtest.Database) int64 {
	t.Helper()
	return db.QueryInt(t, `select (select count(*) from sqlstreams.log_1) + (select count(*) from sqlstreams.inbox)`)
}

// A message with a known key is not stored again, on every way in, and its original is told once it has its id.
func TestIdempotencyKeys(t *testing.T) {
	client, db, pool := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	p := stream.Producer(nil)
	first, err := p.Produce(t.Context(), &WelcomeEmail{UserID: "a"}, keyed("k"))
	if err != nil || first.Duplicate || first.ID != 0 {
		t.Fatalf("%+v, %v", first, err)
	}
	if again, err := p.Produce(t.Context(), &WelcomeEmail{UserID: "b"}, keyed("k")); err != nil || !again.Duplicate || again.ID != 0 {
		t.Fatalf("while the original waits: %+v, %v", again, err)
	}
	if _, err := p.Produce(t.Context(), &WelcomeEmail{UserID: "c"}, nil); err != nil { // takes the inbox along
		t.Fatal(err)
	}
	duplicate := func(way string, got sqlstreams.Produced, err error) {
		t.Helper()
		if err != nil || !got.Duplicate || got.ID != 1 {
			t.Errorf("%s: %+v, %v", way, got, err)
		}
	}
	got, err := p.Produce(t.Context(), &WelcomeEmail{UserID: "d"}, keyed("k"))
	duplicate("Produce", got, err)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got, err = p.ProduceTx(t.Context(), tx, &WelcomeEmail{UserID: "e"}, keyed("k"))
	duplicate("ProduceTx", got, err)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	sqlTx, err := openSQL(t, db.DSN).BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err = p.ProduceSQLTx(t.Context(), sqlTx, &WelcomeEmail{UserID: "f"}, keyed("k"))
	duplicate("ProduceSQLTx", got, err)
	if err := sqlTx.Commit(); err != nil {
		t.Fatal(err)
	}
	if n, err := client.Stream("s").Sequence(t.Context()); err != nil || n != 0 {
		t.Errorf("sequenced %d, %v: nothing waits", n, err)
	}
	// In a batch: a known key, one twice in the batch, none, and a new one.
	email := &WelcomeEmail{UserID: "g"}
	batch, err := p.ProduceBatch(t.Context(), []sqlstreams.Outgoing[WelcomeEmail]{{Payload: email, Options: keyed("k")}, {Payload: email, Options: keyed("l")}, {Payload: email}, {Payload: email, Options: keyed("l")}, {Payload: email, Options: keyed("m")}})
	if err != nil || len(batch) != 5 || !batch[0].Duplicate || batch[0].ID != 1 || batch[1].Duplicate || batch[2].Duplicate || !batch[3].Duplicate || batch[4].Duplicate {
		t.Fatalf("%+v, %v", batch, err)
	}
	if n := stored(t, db); n != 5 {
		t.Errorf("%d messages are stored, want 5", n)
	}
	if n, err := client.Stream("s").Sequence(t.Context()); err != nil || n != 3 {
		t.Errorf("sequenced %d, %v, want 3", n, err)
	}
	if got, err := p.Produce(t.Context(), email, keyed("m")); err != nil || !got.Duplicate || got.ID != 5 {
		t.Errorf("%+v, %v", got, err)
	}
	// Another stream has keys of its own, as has this one made again.
	other := register[WelcomeEmail](t, client, "other")
	if got, err := other.Producer(nil).Produce(t.Context(), email, keyed("k")); err != nil || got.Duplicate {
		t.Errorf("%+v, %v", got, err)
	}
	if err := client.DeleteStream(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	if n := db.QueryInt(t, `select (select count(*) from sqlstreams.idempotency_key where stream_id <> 1) + (select count(*) from sqlstreams.idempotency_id where stream_id <> 1)`); n != 0 {
		t.Errorf("%d keys of a stream that is deleted", n)
	}
	if _, err := other.Producer(nil).Produce(t.Context(), email, keyed("k")); !errors.Is(err, sqlstreams.ErrStreamNotFound) {
		t.Error(err)
	}
}

// A key belongs to the transaction that took it: rolled back, it is free; open, it is awaited.
func TestIdempotencyKeyOfATransaction(t *testing.T) {
	client, db, pool := open(t, nil)
	p := register[WelcomeEmail](t, client, "s").Producer(nil)
	email := &WelcomeEmail{UserID: "a"}
	for _, end := range []string{"rollback", "commit"} {
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := p.ProduceTx(t.Context(), tx, email, keyed(end)); err != nil || got.Duplicate {
			t.Fatalf("%+v, %v", got, err)
		}
		type result struct {
			got sqlstreams.Produced
			err error
		}
		second := make(chan result, 1)
		go func() {
			got, err := p.Produce(t.Context(), email, keyed(end))
			second <- result{got, err}
		}()
		pgtest.Eventually(t, 4*time.Second, "the second waits", func() bool {
			return db.QueryInt(t, `select count(*) from pg_stat_activity where wait_event = 'transactionid' and datname = current_database()`) == 1
		})
		if end == "commit" {
			err = tx.Commit(t.Context())
		} else {
			err = tx.Rollback(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		if r := <-second; r.err != nil || r.got.Duplicate != (end == "commit") {
			t.Errorf("after %s: %+v", end, r)
		}
	}
	if n := stored(t, db); n != 2 {
		t.Errorf("%d messages are stored, want 2", n)
	}

	// One that stays open: the second gives up and says that it may try again; its own transaction settings are as before.
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := p.ProduceTx(t.Context(), tx, email, keyed("open")); err != nil {
		t.Fatal(err)
	}
	var timeout string
	if err := tx.QueryRow(t.Context(), `show lock_timeout`).Scan(&timeout); err != nil || timeout != "0" {
		t.Errorf("the caller's lock_timeout is %q, %v", timeout, err)
	}
	other, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(context.Background()) }()
	_, err = p.ProduceTx(t.Context(), other, email, keyed("open"))
	if e, ok := errors.AsType[*sqlstreams.Error](err); !ok || !errors.Is(err, sqlstreams.ErrStreamBusy) || !e.Retryable || e.OutcomeUnknown {
		t.Errorf("%v", err)
	}
}

// Many callers with overlapping keys in different orders: each key is stored once, and nobody is told of a deadlock.
func TestConcurrentIdempotencyKeys(t *testing.T) {
	client, db, _ := open(t, nil)
	p := register[WelcomeEmail](t, client, "s").Producer(nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	fresh := 0
	for c := range 8 {
		wg.Go(func() {
			for round := range 10 {
				var batch []sqlstreams.Outgoing[WelcomeEmail]
				for i := range 20 {
					n := (i*(2*c+1) + round) % 20 // every caller in an order of its own
					batch = append(batch, sqlstreams.Outgoing[WelcomeEmail]{Payload: &WelcomeEmail{UserID: "u"}, Options: keyed(fmt.Sprint("r", round, "k", n))})
				}
				got, err := p.ProduceBatch(t.Context(), batch)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, g := range got {
					if !g.Duplicate {
						fresh++
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if n := stored(t, db); n != int64(fresh) || n != db.QueryInt(t, `select count(*) from sqlstreams.idempotency_key`) {
		t.Errorf("%d are stored, %d were told", n, fresh)
	}
}

// A key whose time is over is free, whether upkeep has removed it or not; a later id is not taken for an earlier one's.
func TestIdempotencyKeysExpire(t *testing.T) {
	client, db, _ := open(t, nil)
	stream, err := sqlstreams.RegisterStream[WelcomeEmail](t.Context(), client, "s", &sqlstreams.StreamConfig{IdempotencyWindow: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	p := stream.Producer(nil)
	email := &WelcomeEmail{UserID: "a"}
	if _, err := p.Produce(t.Context(), email, keyed("k")); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Produce(t.Context(), email, nil); err != nil {
		t.Fatal(err)
	}
	if n := db.QueryInt(t, `select round(extract(epoch from expires_at - taken_at)) from sqlstreams.idempotency_key`); n != 3600 {
		t.Errorf("kept for %d s", n)
	}
	db.Exec(t, `update sqlstreams.idempotency_key set expires_at = clock_timestamp() - interval '1 second', taken_at = clock_timestamp() - interval '2 hours'`)
	db.Exec(t, `update sqlstreams.idempotency_id set recorded_at = clock_timestamp() - interval '2 hours'`)
	if got, err := p.Produce(t.Context(), email, keyed("k")); err != nil || got.Duplicate {
		t.Fatalf("%+v, %v", got, err)
	}
	if got, err := p.Produce(t.Context(), email, keyed("k")); err != nil || !got.Duplicate || got.ID != 0 {
		t.Fatalf("the original waits for its id, told was %+v, %v", got, err)
	}
}

// The connection is cut when the commit has been made and before that could be told: the message is stored once, and its caller is not told that it is a duplicate.
func TestIdempotentProduceAfterALostConfirmation(t *testing.T) {
	_, db, _ := open(t, nil)
	proxy := pgtest.NewProxy(t, db.DSN)
	client := openOn(t, pgtest.OpenPool(t, proxy.DSN(t, db.DSN), noChange), &sqlstreams.ClientConfig{DisableManager: true})
	p := register[WelcomeEmail](t, client, "s").Producer(nil)
	for name, arm := range map[string]func(testing.TB, string) <-chan struct{}{"seen": proxy.CutWhenSeen, "not seen": proxy.CutBefore} {
		fired := arm(t, "key of "+name)
		got, err := p.Produce(t.Context(), &WelcomeEmail{UserID: name}, keyed("key of "+name))
		<-fired
		if err != nil || got.Duplicate {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if n := stored(t, db); n != 2 {
		t.Errorf("%d messages are stored, want 2", n)
	}
}
