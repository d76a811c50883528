package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

const keyedConfig = `{"v":1,"keyed":true}`

func (in *installation) keyedStream(t testing.TB, name string, partitionRows int) int {
	t.Helper()
	st, err := in.RegisterStream(context.Background(), name, KindJSON, []byte(keyedConfig), true, partitionRows)
	if err != nil {
		t.Fatal(err)
	}
	return st.ID
}

// appendKeys appends one message of each key; its payload is its place among them.
func (in *installation) appendKeys(t testing.TB, stream int, keys ...string) AppendReply {
	t.Helper()
	var out []Outgoing
	for i, key := range keys {
		out = append(out, Outgoing{Payload: fmt.Append(nil, i), Version: 1, Key: key})
	}
	reply, err := in.Append(context.Background(), &AppendRequest{Stream: stream, Kind: KindJSON, Producer: uuid.New(), Batch: 1, Wait: time.Second, Messages: out})
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

func idsOf(messages []delivery.Message) (ids []int64) {
	for _, m := range messages {
		ids = append(ids, m.ID)
	}
	return ids
}

func (in *installation) versions(t testing.TB, stream int, key string, below int64, limit int) []int64 {
	t.Helper()
	found, err := in.KeyVersions(context.Background(), stream, key, below, limit)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range found {
		if m.Key != key {
			t.Fatalf("message %d of key %q is among those of %q", m.ID, m.Key, key)
		}
	}
	return idsOf(found)
}

// The newest first, over many more leaves than one statement looks at, on a log whose whole cannot be named; keys that are prefixes of each other are apart.
func TestVersionsOfAKeyOverManyLeaves(t *testing.T) {
	in := install(t)
	stream := in.keyedStream(t, "s", 3)
	var keys []string
	want := map[string][]int64{}
	for i := range 200 {
		key := []string{"k", "k1", "", "kk"}[i%4]
		if i == 1 {
			key = "once"
		}
		keys = append(keys, key)
		want[key] = append([]int64{int64(i + 1)}, want[key]...)
	}
	in.appendKeys(t, stream, keys...)
	in.hideLog(t, stream)
	if n := in.count(t, `select count(*) from {schema}.partition where state = 'active' and key_index`); n < 60 {
		t.Fatalf("%d leaves have an index", n)
	}
	for _, key := range []string{"k", "k1", "kk", "once"} {
		if diff := cmp.Diff(want[key], in.versions(t, stream, key, math.MaxInt64, 1000)); diff != "" {
			t.Errorf("%q: %s", key, diff)
		}
		if diff := cmp.Diff(want[key][:1], in.versions(t, stream, key, math.MaxInt64, 1)); diff != "" {
			t.Errorf("newest of %q: %s", key, diff)
		}
	}
	var paged []int64
	for below := int64(math.MaxInt64); ; below = paged[len(paged)-1] {
		page := in.versions(t, stream, "k", below, 7)
		if len(page) == 0 {
			break
		}
		paged = append(paged, page...)
	}
	if diff := cmp.Diff(want["k"], paged); diff != "" {
		t.Error(diff)
	}
	if got := in.versions(t, stream, "nobody", math.MaxInt64, 10); got != nil {
		t.Errorf("%v", got)
	}
	in.sql(t, `update {schema}.stream set first_id = 150 where id = $1`, stream)
	if got := in.versions(t, stream, "once", math.MaxInt64, 10); got != nil {
		t.Errorf("below first_id there is %v", got)
	}
}

// A page is about 8 MiB at the most, but one message at least.
func TestVersionsAreBoundedByBytes(t *testing.T) {
	in := install(t)
	stream := in.keyedStream(t, "s", 0)
	large := `"` + strings.Repeat("x", 5<<20) + `"`
	for range 3 {
		if _, err := in.Append(context.Background(), &AppendRequest{Stream: stream, Kind: KindJSON, Producer: uuid.New(), Batch: 1, Wait: time.Second,
			Messages: []Outgoing{{Payload: []byte(large), Version: 1, Key: "k"}}}); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]int64{3, 2}, in.versions(t, stream, "k", math.MaxInt64, 10)); diff != "" {
		t.Error(diff)
	}
}

// Whatever the statistics say, a key is found by the index: one that is not there costs a few pages, not the leaf.
func TestAKeyIsFoundByTheIndexWhateverTheStatisticsSay(t *testing.T) {
	in := install(t)
	stream := in.keyedStream(t, "s", 0)
	var keys []string
	for i := range 5000 {
		keys = append(keys, []string{"a", "c"}[i%2])
	}
	in.appendKeys(t, stream, keys...)
	for _, analysed := range []bool{false, true} {
		if analysed {
			in.sql(t, fmt.Sprintf(`analyze {schema}.log_%d_1`, stream))
		}
		for _, key := range []string{"a", "b"} {
			conn := in.db.SuperuserConn(t)
			var before, after int64
			tx, err := conn.Begin(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			const seen = `select coalesce(sum(seq_tup_read), 0)::bigint + coalesce(sum(idx_tup_fetch), 0)::bigint from pg_stat_xact_user_tables where relname like 'log_%'`
			if err := tx.QueryRow(context.Background(), seen).Scan(&before); err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(context.Background(), in.text["key_ids"], stream, key, int64(math.MaxInt64), 1, int64(1), lookLeaves); err != nil {
				t.Fatal(err)
			}
			if err := tx.QueryRow(context.Background(), seen).Scan(&after); err != nil {
				t.Fatal(err)
			}
			if after-before > 2 {
				t.Errorf("key %q (analysed: %v): %d rows were read", key, analysed, after-before)
			}
			if err := tx.Rollback(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestKeysOfStreamsThatAreNotKeyed(t *testing.T) {
	in := install(t)
	stream := in.stream(t, "s", 0)
	in.appendKeys(t, stream, "k")
	if _, err := in.KeyVersions(context.Background(), stream, "k", math.MaxInt64, 1); !errors.Is(err, diag.ErrNotKeyed) || diag.Retryable(err) {
		t.Errorf("not keyed: %v", err)
	}
	if _, err := in.KeyVersions(context.Background(), 99, "k", math.MaxInt64, 1); !errors.Is(err, diag.ErrStreamNotFound) {
		t.Errorf("not there: %v", err)
	}
}
