package sqlstreams_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // database/sql's driver

	"github.com/sqlstreams/sqlstreams"
)

func TestExpectedVersionFromAProgram(t *testing.T) {
	client, db, pool := open(t, &sqlstreams.ClientConfig{DisableManager: true})
	stream := accounts(t, client, &sqlstreams.StreamConfig{Keyed: true})
	producer := stream.Producer(nil)
	expect := func(key string, version int64) error {
		_, err := producer.Produce(t.Context(), &Account{}, &sqlstreams.ProduceOptions{Key: key, ExpectedVersion: version})
		return err
	}
	v, err := stream.Key("a").Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := expect("a", v.ID); err != nil {
		t.Fatal(err)
	}
	err = expect("a", v.ID)
	coded(t, err, sqlstreams.ErrVersionConflict, false)
	if conflict, ok := errors.AsType[*sqlstreams.VersionConflict](err); !ok || conflict.Actual != 1 || conflict.Expected != sqlstreams.NoVersion {
		t.Errorf("%v", err)
	}
	// Several events of one thing, all or none: the first says what they follow.
	event := func(key string, version int64) sqlstreams.Outgoing[Account] {
		return sqlstreams.Outgoing[Account]{Payload: &Account{}, Options: &sqlstreams.ProduceOptions{Key: key, ExpectedVersion: version}}
	}
	if produced, err := producer.ProduceBatch(t.Context(), []sqlstreams.Outgoing[Account]{event("a", 1), event("a", 0), event("b", sqlstreams.NoVersion)}); err != nil || produced[2].ID != 4 {
		t.Fatal(produced, err)
	}
	_, err = producer.ProduceBatch(t.Context(), []sqlstreams.Outgoing[Account]{event("c", sqlstreams.NoVersion), event("a", 1)})
	coded(t, err, sqlstreams.ErrVersionConflict, false)
	if conflict, ok := errors.AsType[*sqlstreams.VersionConflict](err); !ok || *conflict != (sqlstreams.VersionConflict{Message: 1, Expected: 1, Actual: 3}) {
		t.Errorf("%v", err)
	}
	if h, err := stream.Key("c").History(t.Context(), nil); err != nil || len(h) != 0 {
		t.Errorf("of a refused batch there is %v, %v", h, err)
	}
	// What cannot be.
	refused := func(what string, err error) {
		t.Helper()
		t.Log(what)
		coded(t, err, sqlstreams.ErrInvalidOption, false)
	}
	refused("below NoVersion", expect("a", -2))
	refused("without a key", expect("", 3))
	_, err = producer.ProduceBatch(t.Context(), []sqlstreams.Outgoing[Account]{event("a", 3), event("a", 4)})
	refused("a second one of a key", err)
	_, err = producer.ProduceBatch(t.Context(), []sqlstreams.Outgoing[Account]{event("a", 0), event("a", 3)})
	refused("behind one of its key", err)
	_, err = producer.Produce(t.Context(), &Account{}, &sqlstreams.ProduceOptions{Key: "a", ExpectedVersion: 3, IdempotencyKey: "i"})
	refused("with an idempotency key", err)
	_, err = producer.ProduceBatch(t.Context(), []sqlstreams.Outgoing[Account]{event("a", 3), {Payload: &Account{}, Options: &sqlstreams.ProduceOptions{IdempotencyKey: "i"}}})
	refused("beside an idempotency key", err)
	refused("in a transaction", client.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := producer.ProduceTx(ctx, tx, &Account{}, &sqlstreams.ProduceOptions{Key: "a", ExpectedVersion: 3})
		return err
	}))
	plain, err := sql.Open("pgx", db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	tx, err := plain.Begin()
	if err != nil {
		t.Fatal(err)
	}
	_, err = producer.ProduceSQLTx(t.Context(), tx, &Account{}, &sqlstreams.ProduceOptions{Key: "a", ExpectedVersion: 3})
	refused("in a transaction of database/sql", err)
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if n := db.QueryInt(t, `select (select count(*) from sqlstreams.inbox) + (select max(id) from sqlstreams.log_1)`); n != 4 {
		t.Errorf("what was refused left something: %d", n)
	}
	stream = accounts(t, openOn(t, pool, &sqlstreams.ClientConfig{DisableManager: true}), &sqlstreams.StreamConfig{})
	coded(t, expect("a", 3), sqlstreams.ErrNotKeyed, false)
}

func TestUpdate(t *testing.T) {
	client, _, _ := open(t, &sqlstreams.ClientConfig{DisableManager: true})
	stream := accounts(t, client, &sqlstreams.StreamConfig{Keyed: true})
	key := stream.Key("a")
	add := func(current *Account) (*Account, error) {
		if current == nil {
			return &Account{Cents: 1}, nil
		}
		return &Account{Cents: current.Cents + 1}, nil
	}
	for i := range 3 {
		produced, err := key.Update(t.Context(), add, &sqlstreams.UpdateOptions{Produce: &sqlstreams.ProduceOptions{Headers: map[string]string{"n": fmt.Sprint(i)}}})
		if err != nil || produced.ID != int64(i+1) {
			t.Fatal(produced, err)
		}
	}
	if v, err := key.Get(t.Context()); err != nil || v.Payload.Cents != 3 || v.Headers["n"] != "2" {
		t.Fatalf("%+v, %v", v, err)
	}
	no := errors.New("no")
	if _, err := key.Update(t.Context(), func(*Account) (*Account, error) { return nil, no }, nil); err != no {
		t.Errorf("%v", err)
	}
	// Somebody else is quicker each time: it gives up.
	tries := 0
	_, err := key.Update(t.Context(), func(current *Account) (*Account, error) {
		tries++
		put(t, stream, "a", 100)
		return current, nil
	}, &sqlstreams.UpdateOptions{MaxAttempts: 3})
	coded(t, err, sqlstreams.ErrVersionConflict, false)
	if tries != 3 {
		t.Errorf("%d tries", tries)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = key.Update(ctx, func(current *Account) (*Account, error) {
		put(t, stream, "a", 100)
		cancel()
		return current, nil
	}, nil)
	if err == nil {
		t.Error("it went on although its context had ended")
	}
	for _, o := range []sqlstreams.UpdateOptions{{MaxAttempts: -1}, {MaxAttempts: 1001}, {Produce: &sqlstreams.ProduceOptions{Key: "b"}}, {Produce: &sqlstreams.ProduceOptions{ExpectedVersion: 1}},
		{Produce: &sqlstreams.ProduceOptions{IdempotencyKey: "i"}}} {
		_, err := key.Update(t.Context(), add, &o)
		coded(t, err, sqlstreams.ErrInvalidOption, false)
	}
	_, err = key.Update(t.Context(), nil, nil)
	coded(t, err, sqlstreams.ErrInvalidOption, false)
}

// Sixteen writers in four clients count on three keys, while backends are terminated under them: no count is lost, and none is counted twice.
func TestNoUpdateIsLost(t *testing.T) {
	client, db, pool := open(t, &sqlstreams.ClientConfig{DisableManager: true})
	accounts(t, client, &sqlstreams.StreamConfig{Keyed: true})
	const writers, clients, keys, each = 16, 4, 3, 25
	var running sync.WaitGroup
	var mu sync.Mutex
	counted := map[string]int{}
	for c := range clients {
		stream := accounts(t, openOn(t, pool, &sqlstreams.ClientConfig{DisableManager: true}), nil)
		for w := range writers / clients {
			running.Go(func() {
				for n := range each {
					name := fmt.Sprint((c + w + n) % keys)
					for {
						_, err := stream.Key(name).Update(t.Context(), func(current *Account) (*Account, error) {
							if current == nil {
								return &Account{Cents: 1}, nil
							}
							return &Account{Cents: current.Cents + 1}, nil
						}, &sqlstreams.UpdateOptions{MaxAttempts: 1000})
						if err == nil {
							break
						}
						// A connection that was lost before anything was sent, or while reading; never an unknown outcome: that is settled.
						if e, ok := errors.AsType[*sqlstreams.Error](err); !ok || !e.Retryable || e.OutcomeUnknown {
							t.Error(err)
							return
						}
					}
					mu.Lock()
					counted[name]++
					mu.Unlock()
				}
			})
		}
	}
	stop := make(chan struct{})
	var killer sync.WaitGroup
	killer.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			pause(5*time.Millisecond + rand.N(20*time.Millisecond))
			db.SuperuserExec(t, `select pg_terminate_backend(pid) from (select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and query ilike '%sqlstreams%' order by random() limit 1) q`)
		}
	})
	running.Wait()
	close(stop)
	killer.Wait()
	stream := accounts(t, client, nil)
	total := 0
	for name, n := range counted {
		total += n
		v, err := stream.Key(name).Get(t.Context())
		for err != nil { // its connection may be one that was terminated
			v, err = stream.Key(name).Get(t.Context())
		}
		if v.Payload.Cents != n {
			t.Errorf("key %s counts %d, %d updates returned", name, v.Payload.Cents, n)
		}
		history, err := stream.Key(name).History(t.Context(), &sqlstreams.HistoryOptions{Limit: 1000})
		if err != nil || len(history) != n {
			t.Errorf("key %s has %d versions, %v", name, len(history), err)
		}
		for i, v := range history {
			if v.Payload.Cents != n-i {
				t.Fatalf("version %d of key %s counts %d", n-i, name, v.Payload.Cents)
			}
		}
	}
	if total != writers*each {
		t.Errorf("%d updates", total)
	}
}
