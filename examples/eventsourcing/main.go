// Command eventsourcing keeps accounts as events: an account is what the events of its key add up to, and an event is stored only if it follows what was read.
package main

import (
	"context"
	"errors"
	"log"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sqlstreams/sqlstreams"
)

type Event struct{ Cents int64 } // paid in; negative: paid out

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	check(err)
	client, err := sqlstreams.NewClient(ctx, pool, nil)
	check(err)
	defer client.Close(ctx)
	events, err := sqlstreams.RegisterStream[Event](ctx, client, "accounts", &sqlstreams.StreamConfig{Keyed: true})
	check(err)
	check(book(ctx, events, "a-1", 100, 0, sqlstreams.NoVersion))
	balance, version := load(ctx, events, "a-1") // two requests see the same hundred cents
	log.Printf("one: %v", book(ctx, events, "a-1", -70, balance, version))
	log.Printf("two: %v", book(ctx, events, "a-1", -70, balance, version))
}

// book decides by what was read. If the account has changed since, it reads again and decides anew.
func book(ctx context.Context, events *sqlstreams.Stream[Event], key string, cents, balance, version int64) error {
	for {
		if balance+cents < 0 {
			return errors.New("not enough money")
		}
		_, err := events.Producer(nil).Produce(ctx, &Event{cents}, &sqlstreams.ProduceOptions{Key: key, ExpectedVersion: version})
		if !errors.Is(err, sqlstreams.ErrVersionConflict) {
			return err
		}
		log.Printf("conflict: it has changed since version %d", version)
		balance, version = load(ctx, events, key)
	}
}

func load(ctx context.Context, events *sqlstreams.Stream[Event], key string) (balance, version int64) {
	history, err := events.Key(key).History(ctx, &sqlstreams.HistoryOptions{Limit: 10_000})
	check(err)
	for _, v := range history {
		balance, version = balance+v.Payload.Cents, max(version, v.ID)
	}
	return balance, version
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
