package sqlstreams_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// Account is the payload of the tests of keys.
type Account struct {
	Cents int `json:"cents"`
}

func accounts(t testing.TB, client *sqlstreams.Client, config *sqlstreams.StreamConfig) *sqlstreams.Stream[Account] {
	t.Helper()
	stream, err := sqlstreams.RegisterStream[Account](t.Context(), client, "accounts", config)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func put(t testing.TB, stream *sqlstreams.Stream[Account], key string, cents int) int64 {
	t.Helper()
	produced, err := stream.Producer(nil).Produce(t.Context(), &Account{Cents: cents}, &sqlstreams.ProduceOptions{Key: key, Headers: map[string]string{"by": "test"}})
	if err != nil {
		t.Fatal(err)
	}
	return produced.ID
}

func TestGetAndHistoryOfAKey(t *testing.T) {
	client, db, _ := open(t, &sqlstreams.ClientConfig{DisableManager: true})
	stream := accounts(t, client, &sqlstreams.StreamConfig{Keyed: true})
	a := stream.Key("a")
	if v, err := a.Get(t.Context()); err != nil || v.ID != sqlstreams.NoVersion || v.Payload != nil {
		t.Fatalf("a key without a message: %+v, %v", v, err)
	}
	if h, err := a.History(t.Context(), nil); err != nil || len(h) != 0 {
		t.Fatalf("a key without a message: %+v, %v", h, err)
	}
	var ids []int64
	for i := range 5 {
		ids = append(ids, put(t, stream, "a", i))
		put(t, stream, "b", 100+i)
	}
	v, err := a.Get(t.Context())
	if err != nil || v.ID != ids[4] || v.Payload == nil || v.Payload.Cents != 4 || v.Headers["by"] != "test" || time.Since(v.AppendedAt) > time.Minute {
		t.Fatalf("%+v, %v", v, err)
	}
	page, err := a.History(t.Context(), &sqlstreams.HistoryOptions{Limit: 2})
	if err != nil || len(page) != 2 || page[0].ID != ids[4] || page[1].Payload.Cents != 3 {
		t.Fatalf("%+v, %v", page, err)
	}
	page, err = a.History(t.Context(), &sqlstreams.HistoryOptions{Before: page[1].ID})
	if err != nil || len(page) != 3 || page[0].ID != ids[2] || page[2].ID != ids[0] {
		t.Fatalf("%+v, %v", page, err)
	}
	// What was produced in a transaction is seen once it has its id.
	if err := client.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := stream.Producer(nil).ProduceTx(ctx, tx, &Account{Cents: 77}, &sqlstreams.ProduceOptions{Key: "a"})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if v, err := a.Get(t.Context()); err != nil || v.ID != ids[4] {
		t.Fatalf("what waits in the inbox was seen: %+v, %v", v, err)
	}
	if n, err := client.Stream("accounts").Sequence(t.Context()); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	if v, err := a.Get(t.Context()); err != nil || v.Payload.Cents != 77 {
		t.Fatalf("%+v, %v", v, err)
	}
	db.Exec(t, `update sqlstreams.log_1 set payload = null, headers = null, redacted_at = clock_timestamp() where id = $1`, ids[0])
	if h, err := a.History(t.Context(), &sqlstreams.HistoryOptions{Before: ids[0] + 1}); err != nil || len(h) != 1 || !h[0].Redacted || h[0].Payload != nil {
		t.Errorf("an erased version: %+v, %v", h, err)
	}
	untyped, err := client.Stream("accounts").Versions(t.Context(), "b", 0, 2)
	if err != nil || len(untyped) != 2 || string(untyped[0].Payload) != `{"cents":104}` {
		t.Errorf("%+v, %v", untyped, err)
	}
}

func TestWhatCannotBeReadByKey(t *testing.T) {
	client, db, _ := open(t, &sqlstreams.ClientConfig{DisableManager: true})
	stream := accounts(t, client, nil)
	_, err := stream.Key("a").Get(t.Context())
	coded(t, err, sqlstreams.ErrNotKeyed, false)
	_, err = client.Stream("accounts").Versions(t.Context(), "a", 0, 1)
	coded(t, err, sqlstreams.ErrNotKeyed, false)
	put(t, stream, "a", 1)
	stream = accounts(t, client, &sqlstreams.StreamConfig{Keyed: true})
	_, err = stream.Key("a").Get(t.Context())
	coded(t, err, sqlstreams.ErrKeyIndexBuilding, true)
	for _, key := range []string{"", "a\x00", "a\x1e", "\xff"} {
		_, err = stream.Key(key).Get(t.Context())
		coded(t, err, sqlstreams.ErrInvalidMessage, false)
	}
	_, err = stream.Key(strings.Repeat("k", 513)).History(t.Context(), nil)
	coded(t, err, sqlstreams.ErrTooLarge, false)
	for _, o := range []sqlstreams.HistoryOptions{{Before: -1}, {Limit: -1}, {Limit: 10001}} {
		_, err = stream.Key("a").History(t.Context(), &o)
		coded(t, err, sqlstreams.ErrInvalidOption, false)
	}
	for _, limit := range []int{0, -1, 10001} {
		_, err = client.Stream("accounts").Versions(t.Context(), "a", 0, limit)
		coded(t, err, sqlstreams.ErrInvalidOption, false)
	}
	if err := client.DeleteStream(t.Context(), "accounts"); err != nil {
		t.Fatal(err)
	}
	_, err = stream.Key("a").Get(t.Context())
	coded(t, err, sqlstreams.ErrStreamNotFound, false)
	if n := db.QueryInt(t, `select count(*) from sqlstreams.duty`); n != 0 {
		t.Errorf("a client without upkeep took %d duties", n)
	}
}

// The stream is full when it is declared keyed, and nobody consumes: the registration itself sees to it that upkeep builds the index, here and after the process has died.
func TestDeclaringAFullStreamKeyedBuildsItsIndex(t *testing.T) {
	client, db, pool := open(t, &sqlstreams.ClientConfig{DisableManager: true})
	stream := accounts(t, client, nil)
	for i := range 100 {
		put(t, stream, fmt.Sprint(i%10), i)
	}
	accounts(t, client, &sqlstreams.StreamConfig{Keyed: true}) // by a process that runs no upkeep
	other := accounts(t, openOn(t, pool, nil), nil)
	pgtest.Eventually(t, 20*time.Second, "the key can be read", func() bool {
		v, err := other.Key("7").Get(t.Context())
		if err != nil && !errors.Is(err, sqlstreams.ErrKeyIndexBuilding) {
			t.Fatal(err)
		}
		return err == nil && v.Payload.Cents == 97
	})
	if n := db.QueryInt(t, `select count(*) from sqlstreams.partition where not key_index`); n != 0 {
		t.Errorf("%d leaves have no index", n)
	}
	if info, err := client.GetStream(t.Context(), "accounts"); err != nil || !info.Keyed {
		t.Errorf("%+v, %v", info, err)
	}
}
