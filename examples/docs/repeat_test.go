package docs_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
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

func mark(pool *pgxpool.Pool) func(context.Context, *Payment) error {
	// doc: failures/mark
	credit := func(ctx context.Context, p *Payment) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			mark, err := tx.Exec(ctx, `insert into credited (payment_id) values ($1) on conflict do nothing`, p.PaymentID)
			if err != nil || mark.RowsAffected() == 0 { // none: it has happened already
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
	_, pool, db := open(t)
	db.Exec(t, `create table ledger (payment_id text primary key, account text not null, cents bigint not null)`)
	db.Exec(t, `create table account (id text primary key, cents bigint not null)`)
	db.Exec(t, `create table credited (payment_id text primary key)`)
	db.Exec(t, `insert into account (id, cents) values ('a-1', 100)`)
	var charges tally
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { charges.add(r.Header.Get("Idempotency-Key")) }))
	t.Cleanup(api.Close)
	for range 2 {
		for _, handler := range []func(context.Context, *Payment) error{upsert(pool), mark(pool), provider(api.URL)} {
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
