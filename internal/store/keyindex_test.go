package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// build lets upkeep's pass run once.
func (in *installation) buildKeyIndexes(t testing.TB) {
	t.Helper()
	gaps, err := in.KeyIndexGaps(context.Background(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, gap := range gaps {
		if err := in.BuildKeyIndex(context.Background(), gap); err != nil {
			t.Fatal(err)
		}
	}
}

func (in *installation) gaps(t testing.TB) int64 {
	t.Helper()
	return in.count(t, `select count(*) from {schema}.partition where not key_index`)
}

// Declared keyed when it is full and produced to: producers go on, the newest leaf can be read first, and in the end every leaf has a valid index.
func TestKeyedIsSwitchedOnBesideProducers(t *testing.T) {
	in := install(t)
	stream := in.stream(t, "s", 50)
	for range 10 {
		in.appendKeys(t, stream, "a", "b", "c", "d", "e", "f", "g", "h", "i", "j")
	}
	in.keyedStream(t, "s", 50)
	if _, err := in.KeyVersions(context.Background(), stream, "a", math.MaxInt64, 1); !errors.Is(err, diag.ErrKeyIndexBuilding) || !diag.Retryable(err) {
		t.Fatalf("before anything was built: %v", err)
	}
	var producers sync.WaitGroup
	stop := make(chan struct{})
	for i := range 3 {
		producers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
					in.appendKeys(t, stream, fmt.Sprintf("p%d", i))
				}
			}
		})
	}
	pgtest.Eventually(t, 20*time.Second, "every leaf has its index", func() bool {
		in.buildKeyIndexes(t)
		return in.gaps(t) == 0
	})
	close(stop)
	producers.Wait()
	if got := in.versions(t, stream, "a", math.MaxInt64, 100); len(got) != 10 || got[0] != 91 {
		t.Errorf("%v", got)
	}
	total := in.count(t, fmt.Sprintf(`select max(id) from {schema}.log_%d`, stream))
	sum := 0
	for i := range 3 {
		sum += len(in.versions(t, stream, fmt.Sprintf("p%d", i), math.MaxInt64, manyKeys))
	}
	if int64(sum) != total-100 {
		t.Errorf("%d versions of %d messages are found", sum, total-100)
	}
	if n := in.count(t, `select count(*) from pg_index x join pg_class c on c.oid = x.indexrelid where c.relname like 'log\_1\_%\_key' and not x.indisvalid`); n != 0 {
		t.Errorf("%d indexes are not valid", n)
	}
	// Leaves that are made once it is switched off have none.
	if _, err := in.RegisterStream(context.Background(), "s", KindJSON, []byte(`{"v":1}`), true, 0); err != nil {
		t.Fatal(err)
	}
	if err := in.makeLeaves(context.Background(), in.pool, stream, 5000); err != nil {
		t.Fatal(err)
	}
	if in.gaps(t) == 0 {
		t.Error("leaves of a stream that is no longer keyed got the index")
	}
	if gaps, err := in.KeyIndexGaps(context.Background(), 0); err != nil || len(gaps) != 0 {
		t.Errorf("there is something to build for a stream that is no longer keyed: %v, %v", gaps, err)
	}
}

// manyKeys is more than the tests produce.
const manyKeys = 10000

// A build waits for an older transaction without holding producers or readers up. Interrupted, it leaves an index that is not valid; the next pass drops that and builds another.
func TestAnInterruptedBuildIsRepeated(t *testing.T) {
	in := install(t)
	stream := in.stream(t, "s", 0)
	in.appendKeys(t, stream, "a", "b")
	in.keyedStream(t, "s", 0)
	holder, err := in.db.Conn(t).Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	// It has written to the leaf, which no producer of the library leaves open; the build waits for it.
	if _, err := holder.Exec(context.Background(), fmt.Sprintf(`update sqlstreams.log_%d_1 set size = size where id = 1`, stream)); err != nil {
		t.Fatal(err)
	}
	gaps, err := in.KeyIndexGaps(context.Background(), stream)
	if err != nil || len(gaps) < 2 {
		t.Fatalf("%v, %v", gaps, err)
	}
	oldest := gaps[len(gaps)-1]
	ctx, cancel := context.WithCancel(context.Background())
	built := make(chan error)
	go func() { built <- in.BuildKeyIndex(ctx, oldest) }()
	const building = `select count(*) from pg_stat_progress_create_index`
	pgtest.Eventually(t, 10*time.Second, "the build waits", func() bool {
		return in.count(t, building+` where current_locker_pid > 0 or phase like 'waiting%'`) == 1
	})
	if reply := in.appendKeys(t, stream, "a"); reply.First != 3 {
		t.Errorf("beside the build a message got id %d", reply.First)
	}
	if again, err := in.KeyIndexGaps(context.Background(), stream); err != nil || !again[len(again)-1].working {
		t.Errorf("a second process does not see that it is being built: %+v, %v", again, err)
	} else if err := in.BuildKeyIndex(context.Background(), again[len(again)-1]); err != nil {
		t.Errorf("a second process did not leave it alone: %v", err)
	}
	cancel()
	if err := <-built; err == nil {
		t.Fatal("an interrupted build succeeded")
	}
	pgtest.Eventually(t, 10*time.Second, "the server has ended it", func() bool { return in.count(t, building) == 0 })
	if n := in.count(t, `select count(*) from pg_index where not indisvalid`); n != 1 {
		t.Fatalf("%d indexes that are not valid", n)
	}
	if err := holder.Rollback(context.Background()); err != nil {
		t.Fatal(err)
	}
	in.buildKeyIndexes(t)
	if n := in.count(t, `select count(*) from pg_index where not indisvalid`); n != 0 || in.gaps(t) != 0 {
		t.Errorf("%d indexes are not valid, %d leaves have none", n, in.gaps(t))
	}
	if got := in.versions(t, stream, "a", math.MaxInt64, 10); len(got) != 2 || got[0] != 3 {
		t.Errorf("%v", got)
	}
}

// An index that is there but was not noted, because its builder died between the two, is noted and not built again; a leaf that is gone is nobody's failure.
func TestBuildsThatAreNotNeeded(t *testing.T) {
	in := install(t)
	stream := in.keyedStream(t, "s", 0)
	in.sql(t, `update {schema}.partition set key_index = false`)
	gaps, err := in.KeyIndexGaps(context.Background(), 0)
	if err != nil || len(gaps) != 2 {
		t.Fatalf("%v, %v", gaps, err)
	}
	before := in.count(t, `select max(oid::bigint) from pg_class`)
	in.buildKeyIndexes(t)
	if in.gaps(t) != 0 || in.count(t, `select max(oid::bigint) from pg_class`) != before {
		t.Error("what was there was built again, or was not noted")
	}
	if err := in.BuildKeyIndex(context.Background(), KeyIndexGap{Stream: stream, Low: 777}); err != nil {
		t.Errorf("a leaf that is gone: %v", err)
	}
}
