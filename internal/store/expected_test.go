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

	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// expecting is a message of a key that expects a version.
func expecting(key string, version int64) Outgoing {
	return Outgoing{Payload: []byte(`1`), Version: 1, Key: key, ExpectedVersion: version}
}

func (in *installation) expect(stream int, batch ...Outgoing) (AppendReply, error) {
	return in.Append(context.Background(), &AppendRequest{Stream: stream, Kind: KindJSON, Producer: uuid.New(), Batch: 1, Wait: time.Second, Messages: batch})
}

// wants checks what a batch that was to conflict says.
func wants(t testing.TB, err error, want ...VersionConflict) {
	t.Helper()
	conflicts, ok := errors.AsType[Conflicts](err)
	if !ok || !errors.Is(err, diag.ErrVersionConflict) || diag.Retryable(err) || diag.Unknown(err) {
		t.Fatalf("%v; wanted conflicts %v", err, want)
	}
	var got []VersionConflict
	for _, c := range conflicts {
		got = append(got, *c)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestExpectedVersions(t *testing.T) {
	in := install(t)
	stream := in.keyedStream(t, "s", 3)
	in.appendKeys(t, stream, "a", "b", "c", "a", "b", "x", "x")
	in.hideLog(t, stream)
	for _, ok := range []struct {
		key     string
		version int64
		first   int64
	}{{"a", 4, 8}, {"a", 8, 9}, {"c", 3, 10}, {"new", NoVersion, 11}, {"new", 11, 12}} {
		if reply, err := in.expect(stream, expecting(ok.key, ok.version)); err != nil || reply.First != ok.first {
			t.Fatalf("%+v: %+v, %v", ok, reply, err)
		}
	}
	_, err := in.expect(stream, expecting("a", 8))
	wants(t, err, VersionConflict{Message: 0, Expected: 8, Actual: 9})
	_, err = in.expect(stream, expecting("a", NoVersion))
	wants(t, err, VersionConflict{Message: 0, Expected: NoVersion, Actual: 9})
	_, err = in.expect(stream, expecting("nobody", 5))
	wants(t, err, VersionConflict{Message: 0, Expected: 5, Actual: NoVersion})
	_, err = in.expect(stream, expecting("b", 6)) // that id has another key
	wants(t, err, VersionConflict{Message: 0, Expected: 6, Actual: 5})
	_, err = in.expect(stream, expecting("a", math.MaxInt64))
	wants(t, err, VersionConflict{Message: 0, Expected: math.MaxInt64, Actual: 9})
	// All conflicts of a batch are told, and nothing of it is stored; without one, what follows a message of its key follows it.
	plain := Outgoing{Payload: []byte(`1`), Version: 1, Key: "plain"}
	_, err = in.expect(stream, plain, expecting("a", 9), expecting("b", 2), plain, expecting("c", NoVersion))
	wants(t, err, VersionConflict{Message: 2, Expected: 2, Actual: 5}, VersionConflict{Message: 4, Expected: NoVersion, Actual: 10})
	if reply, err := in.expect(stream, expecting("a", 9), Outgoing{Payload: []byte(`1`), Version: 1, Key: "a"}, expecting("b", 5), plain); err != nil || reply.First != 13 {
		t.Fatal(reply, err)
	}
	if got := in.versions(t, stream, "a", math.MaxInt64, 3); got[0] != 14 || got[1] != 13 {
		t.Errorf("%v", got)
	}
	if got := in.versions(t, stream, "plain", math.MaxInt64, 3); len(got) != 1 {
		t.Errorf("a refused batch left %v", got)
	}
}

// What is committed and waits in the inbox goes before the message that expects; what is not committed does not count.
func TestExpectedVersionsSeeWhatWaitsInTheInbox(t *testing.T) {
	in := install(t)
	ctx := context.Background()
	stream := in.keyedStream(t, "s", 0)
	in.appendKeys(t, stream, "a")
	put := func(n int, key string) func() {
		tx, err := in.pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		batch := make([]Outgoing, n)
		for i := range batch {
			batch[i] = Outgoing{Payload: []byte(`1`), Version: 1, Key: key}
		}
		if err := in.PutTx(ctx, tx, stream, KindJSON, batch); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := tx.Commit(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	commit := put(1, "a")
	if reply, err := in.expect(stream, expecting("a", 1)); err != nil || reply.First != 2 {
		t.Fatalf("an open transaction counted: %+v, %v", reply, err)
	}
	commit()
	_, err := in.expect(stream, expecting("a", 2))
	wants(t, err, VersionConflict{Expected: 2, Actual: 3})
	if in.count(t, `select count(*) from {schema}.inbox`) != 0 {
		t.Error("what was moved for a message that was refused did not stay moved")
	}
	// More than one append moves: nobody knows yet what the key's newest is.
	put(2500, "b")()
	for i := range 2 {
		if _, err := in.expect(stream, expecting("a", 3)); !errors.Is(err, diag.ErrStreamBusy) || !diag.Retryable(err) {
			t.Fatalf("attempt %d beside a full inbox: %v", i, err)
		}
	}
	if reply, err := in.expect(stream, expecting("a", 3)); err != nil || reply.First != 2504 {
		t.Fatalf("%+v, %v", reply, err)
	}
}

// An inbox that does not fit below the last leaf's end is moved in steps, between which leaves are made; the key's newest message lies in a leaf that came into use a moment ago.
func TestExpectedVersionsWhereLeavesEnd(t *testing.T) {
	in := install(t)
	ctx := context.Background()
	stream := in.keyedStream(t, "s", 10)
	for i := range 20 {
		tx, err := in.pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var batch []Outgoing
		for range 37 {
			batch = append(batch, Outgoing{Payload: []byte(`1`), Version: 1, Key: "k"})
		}
		if err := in.PutTx(ctx, tx, stream, KindJSON, batch); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		_, err = in.expect(stream, expecting("k", NoVersion))
		if i == 0 && diag.CodeOf(err) == diag.StreamBusy {
			_, err = in.expect(stream, expecting("k", NoVersion))
		}
		newest := int64(37*(i+1) + i)
		wants(t, err, VersionConflict{Expected: NoVersion, Actual: newest})
		if reply, err := in.expect(stream, expecting("k", newest)); err != nil || reply.First != newest+1 {
			t.Fatalf("%+v, %v", reply, err)
		}
	}
}

// The lock is waited for, and the inbox is no way out.
func TestExpectedVersionsWaitForTheLock(t *testing.T) {
	in := install(t)
	ctx := context.Background()
	stream := in.keyedStream(t, "s", 0)
	holder, err := in.db.Conn(t).Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(ctx, `select pg_advisory_xact_lock($1, $2)`, in.names.Lock("stream"), stream); err != nil {
		t.Fatal(err)
	}
	req := &AppendRequest{Stream: stream, Kind: KindJSON, Producer: uuid.New(), Batch: 1, Wait: 50 * time.Millisecond, Messages: []Outgoing{expecting("a", NoVersion)}}
	if _, err := in.Append(ctx, req); !errors.Is(err, diag.ErrStreamBusy) || !diag.Retryable(err) {
		t.Fatalf("%v", err)
	}
	if n := in.count(t, `select (select count(*) from {schema}.inbox) + (select count(*) from {schema}.producer_batch)`); n != 0 {
		t.Errorf("%d rows were written", n)
	}
	if err := holder.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	// Sent again under the same number it is the same batch: it says what is stored, and is in no conflict with itself.
	for i := range 3 {
		if reply, err := in.Append(ctx, req); err != nil || reply.First != 1 || reply.Repeated != (i > 0) {
			t.Fatalf("%+v, %v", reply, err)
		}
	}
}

func TestExpectedVersionsNeedTheIndex(t *testing.T) {
	in := install(t)
	stream := in.stream(t, "s", 0)
	in.appendKeys(t, stream, "a")
	if _, err := in.expect(stream, expecting("a", 1)); !errors.Is(err, diag.ErrNotKeyed) || diag.Retryable(err) {
		t.Errorf("not keyed: %v", err)
	}
	in.keyedStream(t, "s", 0)
	if _, err := in.expect(stream, expecting("a", 1)); !errors.Is(err, diag.ErrKeyIndexBuilding) || !diag.Retryable(err) {
		t.Errorf("without the index: %v", err)
	}
	in.buildKeyIndexes(t)
	if reply, err := in.expect(stream, expecting("a", 1)); err != nil || reply.First != 2 {
		t.Errorf("%+v, %v", reply, err)
	}
}

func TestConflictsOfAnotherShapeAreNoPanic(t *testing.T) {
	for _, found := range []string{"", "x", "1", "1=x", "-1=3", "7=3", "0=1,"} {
		if err := conflict("produce to", "s", []Outgoing{expecting("a", 1)}, found); diag.CodeOf(err) != diag.DatabaseError {
			t.Errorf("%q: %v", found, err)
		}
	}
	if text := fmt.Sprint(conflict("produce to", "s", []Outgoing{expecting("a", 12)}, "0=-1")); !strings.Contains(text, "SQL0152") || !strings.Contains(text, "expected 12, and the newest version is none") {
		t.Error(text)
	}
}
