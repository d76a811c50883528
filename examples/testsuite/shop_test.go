package shop_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/sqlstreamstest"

	shop "github.com/sqlstreams/sqlstreams/examples/testsuite"
)

// database opens the pool that all tests share, and makes the program's own table. Tests keep apart by the ids of their orders.
var database = sync.OnceValues(func() (*pgxpool.Pool, error) {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("TEST_DATABASE_URL"))
	if err != nil {
		return nil, err
	}
	_, err = pool.Exec(ctx, `create table if not exists orders (id text primary key, email text not null)`)
	return pool, err
})

// fixture is one test's shop: its messages are its own.
type fixture struct {
	*shop.Shop
	client *sqlstreams.Client
	pool   *pgxpool.Pool

	mu   sync.Mutex
	sent []string
}

func open(t *testing.T, answer func(n int) error) *fixture {
	t.Helper()
	t.Parallel()
	pool, err := database()
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{client: sqlstreamstest.New(t, pool, nil).Client(), pool: pool}
	f.Shop, err = shop.New(t.Context(), f.client, func(_ context.Context, email, _ string) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.sent = append(f.sent, email)
		return answer(len(f.sent))
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// mails is how many were sent.
func (f *fixture) mails() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.sent)
}

// run confirms orders until the test ends.
func (f *fixture) run(t *testing.T) *sqlstreams.GroupHandle {
	t.Helper()
	group := f.client.Group(shop.Stream, shop.Mailing)
	sqlstreamstest.Run(t, func(ctx context.Context) error { return f.Run(ctx, sqlstreamstest.Quick(nil)) })
	return group
}

func (f *fixture) place(t *testing.T) shop.Order {
	t.Helper()
	order := shop.Order{ID: rand.Text(), Email: "ada@example.com"}
	if err := f.Place(t.Context(), order); err != nil {
		t.Fatal(err)
	}
	return order
}

func well(int) error { return nil }

func TestAnOrderIsAnnounced(t *testing.T) {
	f := open(t, well)
	order := f.place(t)
	sqlstreamstest.RequireProduced(t, f.client.Stream(shop.Stream), order)
	if all := sqlstreamstest.Produced[shop.Order](t, f.client.Stream(shop.Stream)); all[0].Key != order.ID {
		t.Errorf("its key is %q", all[0].Key)
	}
}

func TestAnOrderThatIsRefusedIsNotAnnounced(t *testing.T) {
	f := open(t, well)
	order := f.place(t)
	if err := f.Place(t.Context(), order); err == nil {
		t.Error("an order was placed twice")
	}
	sqlstreamstest.RequireProduced(t, f.client.Stream(shop.Stream), order)
}

func TestTheKeyKeepsTheMailServerFromSendingTwice(t *testing.T) {
	t.Parallel()
	var keys []string
	mails := shop.Mails{Send: func(_ context.Context, _, key string) error { keys = append(keys, key); return nil }}
	for attempt := range 2 {
		opts := &sqlstreamstest.HandleOptions{Meta: sqlstreams.Meta{Key: "o-1", Redelivered: attempt > 0}}
		if err := sqlstreamstest.Handle(t, mails.Confirm, &shop.Order{ID: "o-1"}, opts); err != nil {
			t.Error(err)
		}
	}
	if fmt.Sprint(keys) != "[o-1 o-1]" {
		t.Errorf("keys %v", keys)
	}
}

func TestOrdersAreConfirmed(t *testing.T) {
	f := open(t, well)
	f.place(t)
	f.place(t)
	if status := sqlstreamstest.Drain(t, f.run(t)); status.Dead != 0 || f.mails() != 2 {
		t.Errorf("%d mails, %d dead letters", f.mails(), status.Dead)
	}
}

func TestAMailServerThatFailsIsAskedAgain(t *testing.T) {
	f := open(t, func(n int) error {
		if n < 5 {
			return errors.New("503")
		}
		return nil
	})
	f.place(t)
	// The waits between five attempts would take 15 s.
	if status := sqlstreamstest.DrainNow(t, f.run(t)); status.Dead != 0 || f.mails() != 5 {
		t.Errorf("%d mails, %d dead letters", f.mails(), status.Dead)
	}
}

func TestAMailboxThatIsNotThereIsADeadLetter(t *testing.T) {
	f := open(t, func(int) error { return shop.ErrMailbox })
	f.place(t)
	if status := sqlstreamstest.Drain(t, f.run(t)); status.Dead != 1 || f.mails() != 1 {
		t.Errorf("%d mails, %d dead letters", f.mails(), status.Dead)
	}
}

func TestAtNightMailsWait(t *testing.T) {
	f := open(t, func(n int) error {
		if n == 1 {
			return shop.ErrNight
		}
		return nil
	})
	f.place(t)
	group := f.run(t)
	if n := sqlstreamstest.BringForward(t, group); n != 1 {
		t.Errorf("%d mails wait for the morning", n)
	}
	if sqlstreamstest.Drain(t, group); f.mails() != 2 {
		t.Errorf("%d mails", f.mails())
	}
}
