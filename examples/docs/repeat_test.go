package docs_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// The three patterns for effects that may be repeated; each is run twice for the same payment, as after a crash between the handler's return and its record.

func upsert(pool *pgxpool.Pool) func(context.Context, *Payment) error {
	// doc: failures/upsert
	book := func(ctx context.Context, p *Payment) error {
		_, err := pool.Exec(ctx, `insert into ledger (payment_id, account, cents) values ($1, $2, $3) on conflict (payment_id) do nothing`, p.PaymentID, p.Account, p.Cents)
		return err
	}
	// doc: end
	return book
}

func mark(pool *pgxpool.Pool, group *sqlstreams.GroupHandle) func(context.Context, *Payment) error {
	// doc: failures/mark
	credit := func(ctx context.Context, p *Payment) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			first, err := sqlstreams.Once(ctx, tx, group, "credit "+p.PaymentID)
			if err != nil || !first { // not the first: it has happened already
				return err
			}
			_, err = tx.Exec(ctx, `update account set cents = cents + $2 where id = $1`, p.Account, p.Cents)
			return err
		})
	}
	// doc: end
	return credit
}

func provider(providerURL string) func(context.Context, *Payment) error {
	// doc: failures/provider
	charge := func(ctx context.Context, p *Payment) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, providerURL, nil)
		if err != nil {
			return err
		}
		request.Header.Set("Idempotency-Key", "charge-"+p.PaymentID) // the same for each attempt
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		return response.Body.Close()
	}
	// doc: end
	return charge
}

func TestEffectsThatMayBeRepeated(t *testing.T) {
	t.Parallel()
	client, pool, db := open(t)
	payments, err := sqlstreams.RegisterStream[Payment](t.Context(), client, "payments.requested", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := payments.RegisterConsumer(t.Context(), "charge-cards", nil); err != nil {
		t.Fatal(err)
	}
	db.Exec(t, `create table ledger (payment_id text primary key, account text not null, cents bigint not null)`)
	db.Exec(t, `create table account (id text primary key, cents bigint not null)`)
	db.Exec(t, `insert into account (id, cents) values ('a-1', 100)`)
	var charges tally
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { charges.add(r.Header.Get("Idempotency-Key")) }))
	t.Cleanup(api.Close)
	for range 2 {
		for _, handler := range []func(context.Context, *Payment) error{upsert(pool), mark(pool, client.Group("payments.requested", "charge-cards")), provider(api.URL)} {
			if err := handler(t.Context(), &Payment{PaymentID: "p-1", Account: "a-1", Cents: 50}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := db.QueryInt(t, `select sum(cents) from ledger`); n != 50 {
		t.Errorf("the ledger says %d", n)
	}
	if n := db.QueryInt(t, `select cents from account`); n != 150 {
		t.Errorf("the account holds %d", n)
	}
	if charges.count("charge-p-1") != 2 || charges.distinct() != 1 {
		t.Errorf("the provider saw %v", charges.seen)
	}
}

func TestEffectsInTheTransactionOfTheMessage(t *testing.T) {
	t.Parallel()
	client, _, db := open(t)
	db.Exec(t, `create table account (id text primary key, cents bigint not null)`)
	db.Exec(t, `insert into account (id, cents) values ('a-1', 100)`)
	payments, err := sqlstreams.RegisterStream[Payment](t.Context(), client, "payments.requested", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := payments.Producer(nil).Produce(t.Context(), &Payment{PaymentID: "p-1", Account: "a-1", Cents: 50}, nil); err != nil {
		t.Fatal(err)
	}
	instance, err := payments.RegisterConsumer(t.Context(), "charge-cards", nil)
	if err != nil {
		t.Fatal(err)
	}
	running(t, func(ctx context.Context) error { return credited(ctx, instance) })
	pgtest.Eventually(t, patience, "it is credited", func() bool { return db.QueryInt(t, `select cents from account`) == 150 })
	finished(t, client, db, "payments.requested", "charge-cards")
}

func credited(ctx context.Context, instance *sqlstreams.Consumer[Payment]) error {
	var err error
	// doc: failures/transaction
	err = instance.ConsumeTx(ctx, func(ctx context.Context, tx pgx.Tx, p *Payment) error {
		_, err := tx.Exec(ctx, `update account set cents = cents + $2 where id = $1`, p.Account, p.Cents)
		return err // nil: the update and the message are committed together
	}, nil)
	// doc: end
	return err
}
