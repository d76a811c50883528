package docs_test

import (
	"context"
	"errors"
	"testing"

	"github.com/sqlstreams/sqlstreams"
)

// Account is what the streams of the page on keys hold.
type Account struct{ Cents int64 }

func readKey(ctx context.Context, client *sqlstreams.Client) ([]sqlstreams.Version[Account], error) {
	var found []sqlstreams.Version[Account]
	err := func() error {
		// doc: keys/read
		accounts, err := sqlstreams.RegisterStream[Account](ctx, client, "accounts", &sqlstreams.StreamConfig{Keyed: true})
		if err != nil {
			return err
		}
		account := accounts.Key("a-17")
		newest, err := account.Get(ctx)
		if err != nil {
			return err
		}
		if newest.Payload == nil {
			return errors.New("no such account") // newest.ID is NoVersion
		}
		history, err := account.History(ctx, &sqlstreams.HistoryOptions{Limit: 20}) // the newest first
		// doc: end
		found = history
		return err
	}()
	return found, err
}

func TestKeys(t *testing.T) {
	client, _, _ := open(t)
	ctx := t.Context()
	if _, err := readKey(ctx, client); err == nil || err.Error() != "no such account" {
		t.Fatal(err)
	}
	accounts, err := sqlstreams.RegisterStream[Account](ctx, client, "accounts", nil)
	if err != nil {
		t.Fatal(err)
	}
	for cents := range int64(3) {
		if _, err := accounts.Producer(nil).Produce(ctx, &Account{Cents: cents}, &sqlstreams.ProduceOptions{Key: "a-17"}); err != nil {
			t.Fatal(err)
		}
	}
	if found, err := readKey(ctx, client); err != nil || len(found) != 3 || found[0].Payload.Cents != 2 {
		t.Fatal(found, err)
	}
}
