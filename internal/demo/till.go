package demo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams"
)

// till takes payments: each row of the business table is written in one transaction with its message.
type till struct {
	place    *place
	producer *sqlstreams.Producer[Payment]

	mu   sync.Mutex
	next int
}

// errChangedMind rolls a transaction back.
var errChangedMind = errors.New("the customer has changed their mind")

// take produces a payment for each bank in one transaction and returns their ids. If last is given it is called at the end of the transaction;
// its error rolls everything back and is returned beside the ids.
func (t *till) take(ctx context.Context, last func() error, banks ...string) (ids []int64, err error) {
	err = t.place.client.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		ids = ids[:0]
		for _, bank := range banks {
			p := invoice(t.number(), bank)
			if err := tx.QueryRow(ctx, t.place.sql(`insert into {business}.payments (card, bank, cents) values ($1, $2, $3) returning id`), p.Card, p.Bank, p.Cents).Scan(&p.ID); err != nil {
				return fmt.Errorf("write a payment: %w", err)
			}
			if _, err := t.producer.ProduceTx(ctx, tx, &p, nil); err != nil {
				return err
			}
			ids = append(ids, p.ID)
		}
		if last != nil {
			return last()
		}
		return nil
	})
	return ids, err
}

func (t *till) number() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.next++
	return t.next
}

// steadily takes ordinary payments at a steady rate until ctx or stop ends; only then it returns nil.
func (t *till) steadily(ctx context.Context, stop <-chan struct{}, p *pace) error {
	tick := time.NewTicker(p.Every)
	defer tick.Stop()
	for i := 0; ; i++ {
		banks := make([]string, p.Together)
		for j := range banks {
			banks[j] = ordinaryBank(i + j)
		}
		if _, err := t.take(ctx, nil, banks...); err != nil {
			return fmt.Errorf("take payments: %w", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-stop:
			return nil
		case <-tick.C:
		}
	}
}
