package docs_test

import (
	"context"
	"errors"
	"log"
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

func withdraw(ctx context.Context, accounts *sqlstreams.Stream[Account]) error {
	withdrawn := func(a *Account) *Account { return &Account{Cents: a.Cents - 1} }
	// doc: keys/expect
	v, err := accounts.Key("a-17").Get(ctx)
	if err != nil {
		return err
	}
	_, err = accounts.Producer(nil).Produce(ctx, withdrawn(v.Payload), &sqlstreams.ProduceOptions{Key: "a-17", ExpectedVersion: v.ID})
	if conflict, ok := errors.AsType[*sqlstreams.VersionConflict](err); ok {
		log.Printf("somebody was quicker: version %d is the newest", conflict.Actual)
	}
	// doc: end
	return err
}

func payIn(ctx context.Context, accounts *sqlstreams.Stream[Account]) error {
	// doc: keys/update
	_, err := accounts.Key("a-17").Update(ctx, func(current *Account) (*Account, error) {
		if current == nil {
			return &Account{Cents: 100}, nil
		}
		return &Account{Cents: current.Cents + 100}, nil
	}, nil)
	// doc: end
	return err
}

// Setting is what the compacted stream of the page holds.
type Setting struct{ Value string }

func set(ctx context.Context, client *sqlstreams.Client) error {
	// doc: keys/compact
	settings, err := sqlstreams.RegisterStream[Setting](ctx, client, "settings", &sqlstreams.StreamConfig{Compacted: true})
	if err != nil {
		return err
	}
	_, err = settings.Producer(nil).Produce(ctx, &Setting{Value: "green"}, &sqlstreams.ProduceOptions{Key: "colour"})
	if err != nil {
		return err
	}
	_, err = settings.Key("size").Delete(ctx, nil) // a tombstone
	// doc: end
	return err
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
	if err := withdraw(ctx, accounts); err != nil {
		t.Fatal(err)
	}
	if err := payIn(ctx, accounts); err != nil {
		t.Fatal(err)
	}
	if v, err := accounts.Key("a-17").Get(ctx); err != nil || v.Payload.Cents != 101 {
		t.Fatal(v, err)
	}
	if err := set(ctx, client); err != nil {
		t.Fatal(err)
	}
	if all, err := client.Stream("settings").Read(ctx, 0, 10); err != nil || len(all) != 2 || string(all[0].Payload) != `{"Value":"green"}` || all[1].Payload != nil {
		t.Fatal(all, err)
	}
}
