// Package shop takes orders and confirms them by mail. It is an example of a program whose tests use sqlstreamstest: look at shop_test.go.
package shop

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams"
)

// Stream and Mailing are what the program's stream and consumer group are called.
const (
	Stream  = "shop.orders"
	Mailing = "confirmation-mail"
)

// Order is what is announced of an order.
type Order struct {
	ID    string `json:"id"`
	Email string `json:"email"`
}

// What a mail server can say.
var (
	ErrMailbox = errors.New("no such mailbox")
	ErrNight   = errors.New("no mails at night")
)

// Mails sends confirmations. It needs no database.
type Mails struct {
	Send func(ctx context.Context, email, idempotencyKey string) error
}

// Shop is the program.
type Shop struct {
	client *sqlstreams.Client
	orders *sqlstreams.Stream[Order]
	mails  Mails
}

// New declares the stream.
func New(ctx context.Context, client *sqlstreams.Client, send func(ctx context.Context, email, idempotencyKey string) error) (*Shop, error) {
	orders, err := sqlstreams.RegisterStream[Order](ctx, client, Stream, nil)
	if err != nil {
		return nil, err
	}
	return &Shop{client: client, orders: orders, mails: Mails{Send: send}}, nil
}

// Place stores an order and announces it, both or neither.
func (s *Shop) Place(ctx context.Context, o Order) error {
	return s.client.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `insert into orders (id, email) values ($1, $2)`, o.ID, o.Email); err != nil {
			return fmt.Errorf("place order %s: %w", o.ID, err)
		}
		_, err := s.orders.Producer(nil).ProduceTx(ctx, tx, &o, &sqlstreams.ProduceOptions{Key: o.ID})
		return err
	})
}

// Confirm handles one order: it sends the mail. The message's key lets the mail server drop one that it has sent already.
func (m Mails) Confirm(ctx context.Context, o *Order) error {
	meta, _ := sqlstreams.MetaFromContext(ctx)
	switch err := m.Send(ctx, o.Email, meta.Key); {
	case errors.Is(err, ErrMailbox):
		return sqlstreams.Terminal(err)
	case errors.Is(err, ErrNight):
		return sqlstreams.Delay(8 * time.Hour)
	default:
		return err
	}
}

// Run confirms orders until ctx ends.
func (s *Shop) Run(ctx context.Context, opts *sqlstreams.ConsumeOptions) error {
	instance, err := s.orders.RegisterConsumer(ctx, Mailing, &sqlstreams.ConsumerConfig{
		Message: &sqlstreams.MessageOptions{Timeout: 10 * time.Second, MaxAttempts: 5},
	})
	if err != nil {
		return err
	}
	return instance.Consume(ctx, s.mails.Confirm, opts)
}
