package store

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

func (in *installation) compactedStream(t testing.TB, name string, partitionRows int, lag, ttl time.Duration) int {
	t.Helper()
	config := fmt.Appendf(nil, `{"v":1,"keyed":true,"compacted":true,"compaction_lag_ms":%d,"tombstone_ttl_ms":%d}`, lag.Milliseconds(), ttl.Milliseconds())
	st, err := in.RegisterStream(context.Background(), name, KindJSON, config, true, partitionRows)
	if err != nil {
		t.Fatal(err)
	}
	return st.ID
}

// compact takes steps until nothing is left to do now; it says how many messages were removed.
func (in *installation) compact(t testing.TB, stream, limit int) (removed int64) {
	t.Helper()
	for {
		reply, err := in.Compact(context.Background(), stream, limit)
		if err != nil {
			t.Fatal(err)
		}
		removed += reply.Removed
		if !reply.More {
			return removed
		}
	}
}

// remaining are the ids that the log holds.
func (in *installation) remaining(t testing.TB, stream int) []int64 {
	t.Helper()
	messages, err := in.Page(context.Background(), stream, 0, 10000)
	if err != nil {
		t.Fatal(err)
	}
	var ids []int64
	for len(messages) > 0 {
		ids = append(ids, idsOf(messages)...)
		if messages, err = in.Page(context.Background(), stream, ids[len(ids)-1], 10000); err != nil {
			t.Fatal(err)
		}
	}
	return ids
}

// record is the reference: what was appended, by id.
type record struct {
	keys       []string
	tombstones []bool
}

// kept are the ids that must be there once everything is old: what has no key, the newest of each key unless it is a tombstone, and the newest of all.
func (r *record) kept(withTombstones bool) []int64 {
	ids := map[int64]bool{}
	newest := map[string]int{}
	for i, key := range r.keys {
		if key == "" {
			ids[int64(i+1)] = true
		} else {
			newest[key] = i
		}
	}
	for _, i := range newest {
		if withTombstones || !r.tombstones[i] || i == len(r.keys)-1 {
			ids[int64(i+1)] = true
		}
	}
	return slices.Sorted(maps.Keys(ids))
}

// Random histories of appends, batches, inboxes and steps of compaction on small leaves, against a map: what must be there is there all the time, and in the end nothing else.
func TestCompactionKeepsTheNewestOfEachKey(t *testing.T) {
	t.Parallel()
	in := install(t)
	for seed := range uint64(6) {
		random := rand.New(rand.NewPCG(seed, 1))
		stream := in.compactedStream(t, fmt.Sprint("s", seed), 1+random.IntN(30), time.Millisecond, time.Millisecond)
		var r record
		outgoing := func() (all []Outgoing) {
			for range 1 + random.IntN(12) {
				o := Outgoing{Payload: []byte(`1`), Version: 1}
				if random.IntN(8) > 0 {
					o.Key = fmt.Sprint("k", random.IntN(15))
					if random.IntN(5) == 0 {
						o.Payload = nil
					}
				}
				r.keys, r.tombstones = append(r.keys, o.Key), append(r.tombstones, o.Payload == nil)
				all = append(all, o)
			}
			return all
		}
		for range 60 {
			switch random.IntN(6) {
			case 0, 1:
				if _, err := in.Append(t.Context(), &AppendRequest{Stream: stream, Kind: KindJSON, Producer: uuid.New(), Batch: 1, Wait: time.Second, Messages: outgoing()}); err != nil {
					t.Fatal(err)
				}
			case 2:
				tx, err := in.pool.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if err := in.PutTx(t.Context(), tx, stream, KindJSON, outgoing()); err != nil {
					t.Fatal(err)
				}
				if err := tx.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				if _, err := in.Drain(t.Context(), stream, 1000); err != nil {
					t.Fatal(err)
				}
				// What is more than fits takes another drain, once the leaves are there.
				if _, err := in.Drain(t.Context(), stream, 1000); err != nil {
					t.Fatal(err)
				}
			default:
				if _, err := in.Compact(t.Context(), stream, 1+random.IntN(20)); err != nil {
					t.Fatal(err)
				}
				if random.IntN(3) > 0 {
					continue
				}
				left := in.remaining(t, stream)
				for _, id := range r.kept(false) {
					if !slices.Contains(left, id) {
						t.Fatalf("seed %d: message %d of key %q is gone", seed, id, r.keys[id-1])
					}
				}
			}
		}
		want := r.kept(false)
		pgtest.Eventually(t, 10*time.Second, "nothing else is left", func() bool {
			in.compact(t, stream, 7)
			return len(in.remaining(t, stream)) == len(want)
		})
		if diff := cmp.Diff(want, in.remaining(t, stream)); diff != "" {
			t.Fatalf("seed %d: %s", seed, diff)
		}
		if n := in.count(t, `select removed from {schema}.compaction where stream_id = $1`, stream); n != int64(len(r.keys)-len(want)) {
			t.Errorf("seed %d: %d of %d messages were removed, and %d are noted", seed, len(r.keys)-len(want), len(r.keys), n)
		}
		writer := func() int64 {
			return in.count(t, `select xmin::text::bigint from {schema}.compaction where stream_id = $1`, stream)
		}
		pgtest.Eventually(t, 10*time.Second, "passes that find nothing write nothing", func() bool {
			before := writer()
			return in.compact(t, stream, 7) == 0 && writer() == before
		})
	}
}

// Young replacements, and tombstones that have not had their time, keep what is there.
func TestCompactionWaitsForLagAndTombstones(t *testing.T) {
	in := install(t)
	stream := in.compactedStream(t, "s", 0, time.Hour, 24*time.Hour)
	in.appendKeys(t, stream, "a", "b", "a", "c", "b")
	age := func(id int, by string) {
		in.sql(t, fmt.Sprintf(`update {schema}.log_%d_1 set appended_at = clock_timestamp() - interval '%s' where id <= %d`, stream, by, id))
	}
	if n := in.compact(t, stream, 100); n != 0 {
		t.Errorf("%d messages were removed at once", n)
	}
	age(3, "61 minutes")
	if n := in.compact(t, stream, 100); n != 1 {
		t.Errorf("%d messages were removed when one had been replaced for an hour", n)
	}
	if diff := cmp.Diff([]int64{2, 3, 4, 5}, in.remaining(t, stream)); diff != "" {
		t.Error(diff)
	}
	tombstone := []Outgoing{{Version: 1, Key: "a"}}
	if _, err := in.Append(t.Context(), &AppendRequest{Stream: stream, Kind: KindJSON, Producer: uuid.New(), Batch: 1, Wait: time.Second, Messages: tombstone}); err != nil {
		t.Fatal(err)
	}
	in.appendKeys(t, stream, "d")
	age(6, "23 hours")
	in.compact(t, stream, 100)
	if diff := cmp.Diff([]int64{4, 5, 6, 7}, in.remaining(t, stream)); diff != "" {
		t.Error(diff)
	}
	age(6, "25 hours")
	in.compact(t, stream, 100)
	if diff := cmp.Diff([]int64{4, 5, 7}, in.remaining(t, stream)); diff != "" {
		t.Error(diff)
	}
	// For who expects, the key has none from now on.
	_, err := in.expect(stream, expecting("a", 6))
	wants(t, err, VersionConflict{Expected: 6, Actual: NoVersion})
	if reply, err := in.expect(stream, expecting("a", NoVersion)); err != nil || reply.First != 8 {
		t.Error(reply, err)
	}
}

// A tombstone that is the newest message of the log stays, because ids go on from it; once it is not, it goes.
func TestTheNewestMessageOfTheLogStays(t *testing.T) {
	in := install(t)
	stream := in.compactedStream(t, "s", 2, time.Millisecond, time.Millisecond)
	in.appendKeys(t, stream, "a", "a", "a", "a")
	if _, err := in.Append(t.Context(), &AppendRequest{Stream: stream, Kind: KindJSON, Producer: uuid.New(), Batch: 1, Wait: time.Second, Messages: []Outgoing{{Version: 1, Key: "a"}}}); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, 10*time.Second, "the others are gone", func() bool {
		in.compact(t, stream, 100)
		return len(in.remaining(t, stream)) == 1
	})
	if reply := in.appendKeys(t, stream, "b"); reply.First != 6 {
		t.Errorf("after all others were removed a message got id %d", reply.First)
	}
	pgtest.Eventually(t, 10*time.Second, "the tombstone is gone", func() bool {
		in.compact(t, stream, 100)
		return slices.Equal(in.remaining(t, stream), []int64{6})
	})
	if got := in.versions(t, stream, "a", math.MaxInt64, 10); got != nil {
		t.Errorf("%v", got)
	}
}

// Beside another compaction of the stream, without an index on a leaf, and on a stream that is not compacted, a step does nothing.
func TestStepsThatDoNothing(t *testing.T) {
	in := install(t)
	stream := in.stream(t, "s", 0)
	in.appendKeys(t, stream, "a", "a", "a")
	idle := func(what string) {
		t.Helper()
		if n := in.compact(t, stream, 100); n != 0 || len(in.remaining(t, stream)) != 3 {
			t.Errorf("%s: %d messages were removed", what, n)
		}
	}
	idle("not compacted")
	in.compactedStream(t, "s", 0, time.Millisecond, time.Millisecond)
	in.sql(t, fmt.Sprintf(`update {schema}.log_%d_1 set appended_at = clock_timestamp() - interval '1 hour'`, stream))
	idle("without the index")
	in.buildKeyIndexes(t)
	tx, err := in.db.Conn(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select pg_advisory_xact_lock($1, $2)`, in.names.Lock("compaction"), stream); err != nil {
		t.Fatal(err)
	}
	idle("beside another")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := in.compact(t, stream, 100); n != 2 {
		t.Errorf("%d messages were removed", n)
	}
	if streams, err := in.StreamsCompacted(t.Context(), 0); err != nil || !slices.Equal(streams, []int{stream}) {
		t.Error(streams, err)
	}
	if _, err := in.Compact(t.Context(), 99, 1); err != nil {
		t.Errorf("a stream that is gone: %v", err)
	}
	if err := in.DropStream(t.Context(), stream, ""); err != nil || in.count(t, `select count(*) from {schema}.compaction`) != 0 {
		t.Errorf("%v; what was noted of a deleted stream is still there", err)
	}
}

func workRequest(group, stream, limit int) *delivery.WorkRequest {
	return &delivery.WorkRequest{Group: group, Stream: stream, Instance: uuid.New(), RangeToken: uuid.New(), MaxMessages: limit, MaxBytes: 1 << 20, Margins: time.Minute}
}

// Claims of a compacted log are as large as they would be of a dense one, and say that there is more.
func TestClaimsOverGapsAreWhole(t *testing.T) {
	in := install(t)
	stream := in.compactedStream(t, "s", 1000, time.Millisecond, time.Hour)
	var keys []string
	for i := range 3000 { // every thirtieth one is the newest of its key
		if i%30 == 29 {
			keys = append(keys, fmt.Sprint("only", i))
		} else {
			keys = append(keys, "a")
		}
	}
	in.appendKeys(t, stream, keys...)
	in.sql(t, fmt.Sprintf(`update {schema}.log_%d set appended_at = clock_timestamp() - interval '1 hour'`, stream))
	in.compact(t, stream, 500)
	left := len(in.remaining(t, stream))
	if left != 101 {
		t.Fatalf("%d messages are left", left)
	}
	group := in.group(t, stream, "g", "beginning")
	var sizes []int
	for more := true; more; {
		reply := in.work(t, workRequest(group, stream, 20))
		if reply.Range == nil {
			break
		}
		found, err := in.Read(t.Context(), stream, reply.Range.Low, reply.Range.High)
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, len(found))
		more = reply.More
	}
	total := 0
	for _, n := range sizes {
		total += n
	}
	if total != left || len(sizes) > 8 {
		t.Errorf("claims of %v messages, of %d", sizes, left)
	}
}

// A handler's failure that ends the attempts of a message which was removed meanwhile leaves no dead letter: there is nothing to put into it, and a newer message of its key is there.
func TestNoDeadLetterOfWhatWasReplaced(t *testing.T) {
	in := install(t)
	stream := in.compactedStream(t, "s", 0, time.Millisecond, time.Hour)
	group := in.group(t, stream, "g", "beginning")
	in.appendKeys(t, stream, "a", "a")
	claimed := in.work(t, workRequest(group, stream, 20))
	if claimed.Range == nil {
		t.Fatal("nothing was claimed")
	}
	pgtest.Eventually(t, 10*time.Second, "the first is removed", func() bool { return in.compact(t, stream, 100) == 1 })
	dead := func(id int64) delivery.Outcome {
		return delivery.Outcome{ID: id, Kind: delivery.Dead, Attempt: 1, Reason: delivery.Exhausted, Error: "no"}
	}
	req := workRequest(group, stream, 20)
	req.Results = []delivery.RangeResult{{RangeRef: delivery.RangeRef{Low: claimed.Range.Low, Token: claimed.Range.Token}, Outcomes: []delivery.Outcome{dead(1), dead(2)}}}
	in.work(t, req)
	if n := in.count(t, `select sum(message_id) from {schema}.dead_letter where payload is not null`); n != 2 {
		t.Errorf("dead letters %d", n)
	}
	if n := in.count(t, `select count(*) from {schema}.dead_letter`); n != 1 {
		t.Errorf("%d dead letters", n)
	}
}
