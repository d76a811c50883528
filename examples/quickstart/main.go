// Command quickstart is the README's first program: it produces one welcome e-mail to the database that DATABASE_URL names, and consumes it.
package main

import (
	"context"
	"log"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sqlstreams/sqlstreams"
)

type WelcomeEmail struct{ UserID string }

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	check(err)
	client, err := sqlstreams.NewClient(ctx, pool, nil) // creates its schema on first use
	check(err)
	defer client.Close(context.Background())

	emails, err := sqlstreams.RegisterStream[WelcomeEmail](ctx, client, "signup.welcome-email", nil)
	check(err)
	_, err = emails.Producer(nil).Produce(ctx, &WelcomeEmail{UserID: "u-1"}, nil)
	check(err)

	instance, err := emails.RegisterConsumer(ctx, "email-sender", nil)
	check(err)
	check(instance.Consume(ctx, func(ctx context.Context, email *WelcomeEmail) error {
		log.Printf("sending to %s", email.UserID)
		cancel() // one is enough here; Consume then finishes and returns nil
		return nil
	}, nil))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
