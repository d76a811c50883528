// Command keyvalue keeps settings in a compacted stream: the newest value of each key stays, anybody can read it, and whoever follows the stream has a copy.
package main

import (
	"context"
	"log"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sqlstreams/sqlstreams"
)

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	check(err)
	client, err := sqlstreams.NewClient(ctx, pool, nil)
	check(err)
	defer client.Close(context.Background())
	settings, err := sqlstreams.RegisterStream[string](ctx, client, "settings", &sqlstreams.StreamConfig{Compacted: true})
	check(err)

	set(ctx, settings, "colour", "blue")
	set(ctx, settings, "size", "7")
	set(ctx, settings, "colour", "green")
	_, err = settings.Key("size").Delete(ctx, nil)
	check(err)
	set(ctx, settings, "ready", "yes")
	colour, err := settings.Key("colour").Get(ctx)
	check(err)
	log.Printf("colour is %s", *colour.Payload)

	copied := map[string]string{}
	follower, err := settings.RegisterConsumer(ctx, "follower", nil)
	check(err)
	check(follower.Consume(ctx, func(ctx context.Context, value *string) error {
		meta, _ := sqlstreams.MetaFromContext(ctx)
		if value == nil { // deleted
			delete(copied, meta.Key)
		} else if copied[meta.Key] = *value; meta.Key == "ready" {
			cancel() // a real follower goes on
		}
		return nil
	}, &sqlstreams.ConsumeOptions{Handlers: 1}))
	log.Printf("the copy holds %v", copied)
}

func set(ctx context.Context, settings *sqlstreams.Stream[string], key, value string) {
	_, err := settings.Producer(nil).Produce(ctx, &value, &sqlstreams.ProduceOptions{Key: key})
	check(err)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
