package sqlstreams_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// quickly compacts at once; tests take the steps of upkeep themselves.
func quickly() *sqlstreams.StreamConfig {
	return &sqlstreams.StreamConfig{Compacted: true, CompactionLag: time.Millisecond, TombstoneTTL: time.Hour}
}

func compact(t testing.TB, db *pgtest.Database) {
	t.Helper()
	db.Exec(t, `call sqlstreams.compact(1, 1000, null, null)`)
}

func TestTombstones(t *testing.T) {
	client, _, pool := open(t, &sqlstreams.ClientConfig{DisableManager: true})
	plain := register[Account](t, client, "plain")
	_, err := plain.Producer(nil).Produce(t.Context(), nil, &sqlstreams.ProduceOptions{Key: "a"})
	coded(t, err, sqlstreams.ErrInvalidMessage, false)
	_, err = plain.Key("a").Delete(t.Context(), nil)
	coded(t, err, sqlstreams.ErrInvalidMessage, false)
	stream := accounts(t, client, quickly())
	producer := stream.Producer(nil)
	_, err = producer.Produce(t.Context(), nil, nil)
	coded(t, err, sqlstreams.ErrInvalidMessage, false)
	type seen struct {
		key     string
		present bool
	}
	got := make(chan seen, 100)
	consume(t, group(t, stream, "g", nil), &sqlstreams.ConsumeOptions{Handlers: 1, PollInterval: 10 * time.Millisecond}, func(ctx context.Context, a *Account) error {
		meta, _ := sqlstreams.MetaFromContext(ctx)
		got <- seen{meta.Key, a != nil}
		return nil
	})
	expect := func(want ...seen) {
		t.Helper()
		for _, w := range want {
			if g := <-got; g != w {
				t.Errorf("the handler got %+v, not %+v", g, w)
			}
		}
	}
	a := stream.Key("a")
	first := put(t, stream, "a", 1)
	if _, err := a.Delete(t.Context(), &sqlstreams.ProduceOptions{ExpectedVersion: first + 7}); !errors.Is(err, sqlstreams.ErrVersionConflict) {
		t.Errorf("%v", err)
	}
	deleted, err := a.Delete(t.Context(), &sqlstreams.ProduceOptions{ExpectedVersion: first, Headers: map[string]string{"why": "closed"}})
	if err != nil {
		t.Fatal(err)
	}
	expect(seen{"a", true}, seen{"a", false})
	// A tombstone is a version without a payload; what comes next follows it.
	v, err := a.Get(t.Context())
	if err != nil || v.ID != deleted.ID || v.Payload != nil || v.Redacted || v.Headers["why"] != "closed" {
		t.Errorf("%+v, %v", v, err)
	}
	_, err = producer.Produce(t.Context(), &Account{}, &sqlstreams.ProduceOptions{Key: "a", ExpectedVersion: sqlstreams.NoVersion})
	coded(t, err, sqlstreams.ErrVersionConflict, false)
	// In a batch, and in a transaction.
	if _, err := producer.ProduceBatch(t.Context(), []sqlstreams.Outgoing[Account]{{Payload: &Account{Cents: 2}, Options: &sqlstreams.ProduceOptions{Key: "b"}}, {Options: &sqlstreams.ProduceOptions{Key: "b"}}}); err != nil {
		t.Fatal(err)
	}
	if err := client.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if _, err := producer.ProduceTx(ctx, tx, nil, &sqlstreams.ProduceOptions{Key: "c"}); err != nil {
			return err
		}
		_, err := producer.ProduceBatchTx(ctx, tx, []sqlstreams.Outgoing[Account]{{Options: &sqlstreams.ProduceOptions{Key: "d"}}, {Options: &sqlstreams.ProduceOptions{Key: "e"}}})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	expect(seen{"b", true}, seen{"b", false}, seen{"c", false}, seen{"d", false}, seen{"e", false})
	// Update sees that there is nothing, and can delete.
	if _, err := a.Update(t.Context(), func(current *Account) (*Account, error) { return &Account{Cents: 9}, nil }, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := a.Update(t.Context(), func(current *Account) (*Account, error) { return nil, nil }, nil); err != nil {
			t.Fatal(err)
		}
	}
	expect(seen{"a", true}, seen{"a", false})
	if h, err := a.History(t.Context(), nil); err != nil || len(h) != 4 {
		t.Errorf("%d versions, %v; deleting twice is once too often", len(h), err)
	}
	// JSON null is an ordinary payload, and bytes that are none are too.
	null := accountsOf[*Account](t, client, "accounts")
	var none *Account
	if _, err := null.Producer(nil).Produce(t.Context(), &none, &sqlstreams.ProduceOptions{Key: "n"}); err != nil {
		t.Fatal(err)
	}
	expect(seen{"n", true})
	raw, err := sqlstreams.RegisterStream[[]byte](t.Context(), client, "raw", &sqlstreams.StreamConfig{Codec: sqlstreams.Raw{}, Compacted: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := raw.Producer(nil).ProduceBatch(t.Context(), []sqlstreams.Outgoing[[]byte]{{Payload: &[]byte{}, Options: &sqlstreams.ProduceOptions{Key: "r"}}, {Options: &sqlstreams.ProduceOptions{Key: "s"}}}); err != nil {
		t.Fatal(err)
	}
	bytes := make(chan bool, 2)
	consume(t, group(t, raw, "g", nil), &sqlstreams.ConsumeOptions{Handlers: 1, PollInterval: 10 * time.Millisecond}, func(_ context.Context, p *[]byte) error {
		bytes <- p != nil
		return nil
	})
	if r, s := <-bytes, <-bytes; !r || s {
		t.Errorf("an empty payload and a tombstone were told apart wrongly: %v, %v", r, s)
	}
	for _, config := range []sqlstreams.StreamConfig{{TombstoneTTL: time.Hour}, {CompactionLag: time.Hour}, {Compacted: true, CompactionLag: time.Microsecond}, {Compacted: true, TombstoneTTL: 367 * 24 * time.Hour}} {
		_, err := sqlstreams.RegisterStream[Account](t.Context(), openOn(t, pool, &sqlstreams.ClientConfig{DisableManager: true}), "accounts", &config)
		coded(t, err, sqlstreams.ErrInvalidOption, false)
	}
}

func accountsOf[T any](t testing.TB, client *sqlstreams.Client, name string) *sqlstreams.Stream[T] {
	t.Helper()
	stream, err := sqlstreams.RegisterStream[T](t.Context(), client, name, nil)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// Producers, groups that began before, in the middle and after, and compaction at once: each group sees the newest version of each key last, and in the end the log holds nothing else.
func TestGroupsSeeTheNewestVersionLastBesideCompaction(t *testing.T) {
	client, db, _ := open(t, &sqlstreams.ClientConfig{DisableManager: true})
	stream := accounts(t, client, quickly())
	const keys, producers, each = 20, 4, 300
	type view struct {
		mu   sync.Mutex
		last map[string]int
	}
	follow := func(name string) *view {
		v := &view{last: map[string]int{}}
		consume(t, group(t, stream, name, nil), &sqlstreams.ConsumeOptions{Handlers: 1, PollInterval: 10 * time.Millisecond}, func(ctx context.Context, a *Account) error {
			meta, _ := sqlstreams.MetaFromContext(ctx)
			v.mu.Lock()
			defer v.mu.Unlock()
			if a == nil {
				delete(v.last, meta.Key)
			} else {
				v.last[meta.Key] = a.Cents
			}
			return nil
		})
		return v
	}
	views := []*view{follow("before")}
	var producing, compacting sync.WaitGroup
	var mu sync.Mutex
	truth := map[string]int{}
	halfway := make(chan struct{}, producers)
	for p := range producers {
		producing.Go(func() {
			random := rand.New(rand.NewPCG(uint64(p), 7))
			for n := range each {
				if n == each/2 {
					halfway <- struct{}{}
				}
				key := fmt.Sprint(p, "-", random.IntN(keys/producers)) // each has keys of its own, so that it knows what is last
				var payload *Account
				if random.IntN(6) > 0 {
					payload = &Account{Cents: n}
				}
				if _, err := stream.Producer(nil).Produce(t.Context(), payload, &sqlstreams.ProduceOptions{Key: key}); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if delete(truth, key); payload != nil {
					truth[key] = n
				}
				mu.Unlock()
			}
		})
	}
	stop := make(chan struct{})
	compacting.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				compact(t, db)
				pause(5 * time.Millisecond)
			}
		}
	})
	<-halfway
	views = append(views, follow("middle"))
	producing.Wait()
	close(stop)
	compacting.Wait()
	pgtest.Eventually(t, 10*time.Second, "only the newest of each key is left", func() bool {
		compact(t, db)
		return db.QueryInt(t, `select count(*) - count(distinct message_key) from sqlstreams.log_1`) == 0
	})
	views = append(views, follow("after"))
	for i, v := range views {
		pgtest.Eventually(t, 20*time.Second, "a group has the newest of every key", func() bool {
			v.mu.Lock()
			defer v.mu.Unlock()
			return fmt.Sprint(v.last) == fmt.Sprint(truth)
		})
		if t.Failed() {
			t.Logf("group %d: %v\nwanted %v", i, v.last, truth)
		}
	}
	for key, cents := range truth {
		if v, err := stream.Key(key).Get(t.Context()); err != nil || v.Payload == nil || v.Payload.Cents != cents {
			t.Errorf("key %s: %+v, %v", key, v, err)
		}
	}
	for _, name := range []string{"before", "middle", "after"} {
		pgtest.Eventually(t, 10*time.Second, "the group has caught up", func() bool {
			s, err := client.GetGroup(t.Context(), "accounts", name)
			return err == nil && s.Backlog == 0 && s.OpenClaims == 0 && s.Pending == 0
		})
	}
}

// What waits for a retry, or for its key, and is removed meanwhile because it was replaced, ends; it is counted, and what waits behind it goes on.
func TestDeliveriesOfReplacedMessagesEnd(t *testing.T) {
	client, db, _ := open(t, &sqlstreams.ClientConfig{DisableManager: true})
	stream := accounts(t, client, quickly())
	var mu sync.Mutex
	var ran []int
	instance := group(t, stream, "g", &sqlstreams.ConsumerConfig{KeyOrder: sqlstreams.Ordered, Message: &sqlstreams.MessageOptions{BaseDelay: time.Hour, MaxDelay: time.Hour}})
	consume(t, instance, &sqlstreams.ConsumeOptions{PollInterval: 10 * time.Millisecond}, func(_ context.Context, a *Account) error {
		mu.Lock()
		defer mu.Unlock()
		ran = append(ran, a.Cents)
		if a.Cents == 0 {
			return errors.New("not now")
		}
		return nil
	})
	for i := range 4 {
		put(t, stream, "a", i)
	}
	pgtest.Eventually(t, 20*time.Second, "one is in backoff, the others wait behind it", func() bool {
		return db.QueryInt(t, `select count(*) from sqlstreams.delivery where state = 'pending'`) == 1 && db.QueryInt(t, `select count(*) from sqlstreams.delivery where state = 'waiting'`) == 3
	})
	pgtest.Eventually(t, 10*time.Second, "only the newest is left", func() bool {
		compact(t, db)
		return db.QueryInt(t, `select count(*) from sqlstreams.log_1`) == 1
	})
	if _, err := client.Group("accounts", "g").RetryNow(t.Context(), &sqlstreams.DeliveryFilter{}, nil); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, 20*time.Second, "all have ended", func() bool { return db.QueryInt(t, `select count(*) from sqlstreams.delivery`) == 0 })
	mu.Lock()
	defer mu.Unlock()
	if fmt.Sprint(ran) != "[0 3]" {
		t.Errorf("ran %v", ran)
	}
	if h := instance.Health(); h.Superseded != 3 || h.Dead != 0 {
		t.Errorf("%d were counted as superseded", h.Superseded)
	}
}

// Upkeep compacts, also where nobody consumes; a registration lets it look at once.
func TestUpkeepCompacts(t *testing.T) {
	client, db, _ := open(t, nil)
	stream := accounts(t, client, quickly())
	for i := range 50 {
		put(t, stream, fmt.Sprint(i%3), i)
	}
	pgtest.Eventually(t, 60*time.Second, "three are left", func() bool {
		accounts(t, client, nil)
		return db.QueryInt(t, `select count(*) from sqlstreams.log_1`) == 3
	})
}
