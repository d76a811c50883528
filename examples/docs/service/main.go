// Command service is the program of docs/start.md: an HTTP service that produces in its own transactions and consumes in the same process.
package main

import (
	"context"
	"errors"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/sqlstreams/sqlstreams"
	"golang.org/x/sync/errgroup"
)

type WelcomeEmail struct{ UserID string }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("DATABASE_URL"), os.Getenv("LISTEN_ADDRESS")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, database, address string) error {
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close() // after the client
	client, err := sqlstreams.NewClient(ctx, pool, nil)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		client.Close(ctx)
	}()
	emails, err := sqlstreams.RegisterStream[WelcomeEmail](ctx, client, "signup.welcome-email", nil)
	if err != nil {
		return err
	}
	instance, err := emails.RegisterConsumer(ctx, "email-sender", nil)
	if err != nil {
		return err
	}

	producer := emails.Producer(nil)
	server := &http.Server{Addr: address, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.FormValue("user")
		err := client.InTx(r.Context(), func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `insert into users (id) values ($1)`, id); err != nil {
				return err
			}
			_, err := producer.ProduceTx(ctx, tx, &WelcomeEmail{UserID: id}, nil)
			return err
		})
		if err != nil {
			http.Error(w, "sign-up failed", http.StatusInternalServerError)
		}
	})}

	// Whichever part fails ends the others, and so does the signal.
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error {
		return instance.Consume(ctx, func(ctx context.Context, email *WelcomeEmail) error {
			log.Printf("sending to %s", email.UserID)
			return nil
		}, &sqlstreams.ConsumeOptions{StopTimeout: 20 * time.Second})
	})
	work.Go(func() error {
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	work.Go(func() error {
		<-ctx.Done()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return server.Shutdown(ctx)
	})
	return work.Wait()
}
