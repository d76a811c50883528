package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

// P8: a claim's read locks the leaf it needs, not all there are.
func TestReadLocksOnlyItsLeaf(t *testing.T) {
	in := install(t)
	ctx := context.Background()
	stream := in.stream(t, "s", 10)
	var many []string
	for range 500 {
		many = append(many, `1`)
	}
	in.append(t, stream, many...)
	if n := in.count(t, `select count(*) from {schema}.partition`); n < 50 {
		t.Fatalf("%d partitions", n)
	}
	at, found, err := in.leafOf(ctx, stream, 105)
	if err != nil || !found || at != (leaf{101, 111}) {
		t.Fatalf("the leaf of 105: %v, %v, %v", at, found, err)
	}
	tx, err := in.db.SuperuserConn(t).Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := tx.Query(ctx, forLeaf(in.text["read_range"], stream, at.low), pgx.QueryExecModeExec, int64(101), int64(105))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for rows.Next() {
		n++
	}
	if rows.Err() != nil || n != 5 {
		t.Fatalf("%d rows, %v", n, rows.Err())
	}
	var tables int
	if err := tx.QueryRow(ctx, `select count(*) from pg_locks l join pg_class c on c.oid = l.relation where l.pid = pg_backend_pid() and c.relname like 'log_1%' and c.relkind in ('r', 'p')`).Scan(&tables); err != nil {
		t.Fatal(err)
	}
	if tables != 1 {
		t.Errorf("%d tables are locked, want 1", tables)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
}

// Batches, drains, ranges and deliveries across the ends of leaves, on a log whose whole cannot be named.
func TestEachStatementNamesItsLeaf(t *testing.T) {
	in := install(t)
	ctx := context.Background()
	stream := in.stream(t, "s", 5)
	group := in.group(t, stream, "g", "beginning")
	if err := in.makeLeaves(ctx, in.pool, stream, 2000); err != nil {
		t.Fatal(err)
	}
	in.hideLog(t, stream)

	var want []string
	names := func(n int) (out []string) {
		for range n {
			want = append(want, fmt.Sprintf(`"m%d"`, len(want)+1))
			out = append(out, want[len(want)-1])
		}
		return out
	}
	for _, n := range []int{1, 3, 1, 12, 2, 30, 1} { // into an empty log, below an end, to an end, over several
		in.append(t, stream, names(n)...)
	}
	put := func(n int) {
		tx, err := in.pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := in.PutTx(ctx, tx, stream, KindJSON, messages(names(n)...)); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
	}
	put(17)
	for _, limit := range []int{4, 13} {
		if reply, err := in.Drain(ctx, stream, limit); err != nil || reply.Moved != limit {
			t.Fatalf("%+v, %v", reply, err)
		}
	}
	put(8)
	in.append(t, stream, names(6)...) // takes the inbox along

	// A batch that holds more than it says is refused, across an end too.
	lie := &AppendRequest{Stream: stream, Kind: KindJSON, Producer: uuid.New(), Batch: 1, Wait: time.Second, Messages: messages(`1`, `2`, `3`, `4`, `5`, `6`)}
	p := pack(KindJSON, lie.Messages)
	if _, err := in.pool.Exec(ctx, in.text["append"], stream, KindJSON, 1000, lie.Producer, 1, 4, p.payloads, p.bytes, p.versions, p.keys, p.routingKeys, p.headers, p.options, nil, nil); err == nil {
		t.Fatal("a batch of six was taken for one of four")
	}

	// Some are removed, so that whole leaves are empty.
	in.sql(t, fmt.Sprintf(`delete from {schema}.whole_%d where id between 24 and 41`, stream))
	kept := append(append([]string{}, want[:23]...), want[41:]...)
	var got []string
	var ranges []delivery.RangeRef
	for {
		token := uuid.New()
		reply := in.work(t, &delivery.WorkRequest{Group: group, Stream: stream, Instance: uuid.New(), RangeToken: token, MaxMessages: 100, MaxBytes: 1 << 20, Margins: time.Minute})
		if reply.Range == nil {
			break
		}
		read, err := in.Read(ctx, stream, reply.Range.Low, reply.Range.High)
		if err != nil || len(read) == 0 {
			t.Fatalf("range %+v: %d messages, %v", reply.Range, len(read), err)
		}
		for _, m := range read {
			got = append(got, string(m.Payload))
		}
		ranges = append(ranges, delivery.RangeRef{Low: reply.Range.Low, Token: token})
	}
	if diff := cmp.Diff(kept, got); diff != "" {
		t.Fatal(diff)
	}

	// Dead letters copy what they hold; one range is broken up.
	outcomes := []delivery.Outcome{}
	for id := ranges[3].Low + 1; id <= ranges[3].Low+2; id++ {
		outcomes = append(outcomes, delivery.Outcome{ID: id, Kind: delivery.Dead, Attempt: 1, Reason: delivery.Exhausted, Error: "no"})
	}
	in.work(t, &delivery.WorkRequest{Group: group, Stream: stream, Instance: uuid.New(), Results: []delivery.RangeResult{{RangeRef: ranges[3], Outcomes: outcomes}}})
	if n := in.count(t, `select count(*) from {schema}.dead_letter where payload is not null`); n != 2 {
		t.Fatalf("%d dead letters with a payload, want 2", n)
	}
	in.sql(t, `update {schema}.claim set expires_at = clock_timestamp() - interval '1 second', reclaims = 3 where low = $1`, ranges[5].Low)
	if reply := in.work(t, &delivery.WorkRequest{Group: group, Stream: stream, Instance: uuid.New(), TakeOver: true}); reply.BrokenUp == 0 {
		t.Fatalf("nothing was broken up: %+v", reply)
	}
	read, err := in.ReadIDs(ctx, stream, group, []int64{60, 3, 30, 47, 4, 9999, 23})
	if err != nil {
		t.Fatal(err)
	}
	got = nil
	for _, m := range read {
		got = append(got, string(m.Payload))
	}
	if diff := cmp.Diff([]string{`"m3"`, `"m4"`, `"m23"`, `"m47"`, `"m60"`}, got); diff != "" {
		t.Fatal(diff)
	}
}

// A leaf that is dropped while a reader remembers it holds nothing; one that is there and cannot be read is an error.
func TestReadOfADroppedLeaf(t *testing.T) {
	in := install(t)
	ctx := context.Background()
	stream := in.stream(t, "s", 2)
	in.append(t, stream, `1`, `2`, `3`, `4`)
	read := func() int {
		t.Helper()
		all, err := in.Read(ctx, stream, 0, 2)
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	if n := read(); n != 2 {
		t.Fatalf("%d messages", n)
	}
	in.sql(t, fmt.Sprintf(`drop table {schema}.log_%d_1`, stream))
	if _, err := in.Read(ctx, stream, 0, 2); err == nil {
		t.Error("a leaf that should be there was missing and nothing was said")
	}
	in.sql(t, `delete from {schema}.partition where stream_id = $1 and low = 1`, stream)
	if n := read(); n != 0 {
		t.Errorf("%d messages after the leaf was dropped", n)
	}
	if all, err := in.ReadIDs(ctx, stream, in.group(t, stream, "g", "beginning"), []int64{1, 2, 3}); err != nil || len(all) != 1 || all[0].ID != 3 {
		t.Errorf("%v, %v", all, err)
	}
}

func TestLeafCacheIsBounded(t *testing.T) {
	var c leafCache
	for i := range int64(100) {
		c.keep(1, leaf{i * 10, i*10 + 10})
		c.keep(1, leaf{i * 10, i*10 + 10})
	}
	if n := len(c.stream[1]); n != rememberedLeaves {
		t.Errorf("%d are remembered", n)
	}
	if l, ok := c.find(1, 995); !ok || l != (leaf{990, 1000}) {
		t.Errorf("%v, %v", l, ok)
	}
	if _, ok := c.find(1, 5); ok {
		t.Error("the first is remembered still")
	}
	c.forget(1)
	if _, ok := c.find(1, 995); ok {
		t.Error("it was to be forgotten")
	}
}
