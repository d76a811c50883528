package docs_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

func ordered(ctx context.Context, payments *sqlstreams.Stream[Payment], use func(*sqlstreams.Consumer[Payment])) error {
	// doc: order/ordered
	consumer, err := payments.RegisterConsumer(ctx, "update-balance", &sqlstreams.ConsumerConfig{
		KeyOrder: sqlstreams.Ordered, // by message key, over all instances
	})
	if err != nil {
		return err
	}
	_, err = payments.Producer(nil).Produce(ctx, &Payment{PaymentID: "p-4"}, &sqlstreams.ProduceOptions{Key: "account-7"})
	// doc: end
	use(consumer)
	return err
}

func parking(ctx context.Context, payments *sqlstreams.Stream[Payment], use func(*sqlstreams.Consumer[Payment])) error {
	// doc: order/park
	consumer, err := payments.RegisterConsumer(ctx, "update-balance", &sqlstreams.ConsumerConfig{
		KeyOrder:            sqlstreams.Ordered,
		ParkKeyOnDeadLetter: true, // its successors wait until somebody decides
	})
	if err != nil {
		return err
	}
	// doc: end
	use(consumer)
	return nil
}

// The first of three payments of an account dies. Its successors go on, or wait until it was redriven and has succeeded.
func TestOrderByKeyOnTheseTwoWays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		declare func(context.Context, *sqlstreams.Stream[Payment], func(*sqlstreams.Consumer[Payment])) error
		parks   bool
		want    []string
	}{
		{"ordered", ordered, false, []string{"p-1 dies", "p-2", "p-3", "p-4", "p-1 out of order"}},
		{"parking", parking, true, []string{"p-1 dies", "p-1", "p-2", "p-3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			client, _, db := open(t)
			payments := register[Payment](t, client, "payments.requested")
			for _, id := range []string{"p-1", "p-2", "p-3"} {
				if _, err := payments.Producer(nil).Produce(t.Context(), &Payment{PaymentID: id}, &sqlstreams.ProduceOptions{Key: "account-7"}); err != nil {
					t.Fatal(err)
				}
			}
			var consumer *sqlstreams.Consumer[Payment]
			if err := c.declare(t.Context(), payments, func(got *sqlstreams.Consumer[Payment]) { consumer = got }); err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			var ran []string
			died := false
			running(t, func(ctx context.Context) error {
				return consumer.Consume(ctx, func(ctx context.Context, p *Payment) error {
					meta, _ := sqlstreams.MetaFromContext(ctx)
					mu.Lock()
					defer mu.Unlock()
					text := p.PaymentID
					if meta.OutOfOrder {
						text += " out of order"
					}
					if text == "p-1" && !died {
						died = true
						ran = append(ran, "p-1 dies")
						return sqlstreams.Terminal(errors.New("no such account"))
					}
					ran = append(ran, text)
					return nil
				}, nil)
			})
			group := client.Group("payments.requested", "update-balance")
			count := func() int {
				mu.Lock()
				defer mu.Unlock()
				return len(ran)
			}
			pgtest.Eventually(t, patience, "the first is dead", func() bool { return db.QueryInt(t, `select count(*) from sqlstreams.dead_letter`) == 1 })
			if !c.parks {
				pgtest.Eventually(t, patience, "its successors went on", func() bool { return count() == 4 })
			} else {
				pgtest.Eventually(t, patience, "its successors wait", func() bool {
					return db.QueryInt(t, `select count(*) from sqlstreams.delivery where state = 'waiting'`) == 2
				})
			}
			if n, err := group.Redrive(t.Context(), nil, nil); err != nil || n != 1 {
				t.Fatalf("redriven: %d, %v", n, err)
			}
			pgtest.Eventually(t, patience, "all have run", func() bool { return count() == len(c.want) })
			if !slices.Equal(ran, c.want) {
				t.Errorf("ran %q, want %q", ran, c.want)
			}
		})
	}
}
