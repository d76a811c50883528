package store

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// oneConn makes every call use the same connection, and so the same hints.
func oneConn(c *pgxpool.Config) { c.MaxConns = 1 }

// Within the time that a hint is trusted, rows are found that were inserted before it was taken and committed after, in savepoints too.
func TestHintFindsWhatCommitsLate(t *testing.T) {
	in := installAs(t, pgtest.NewDatabase(t), "sqlstreams", oneConn)
	ctx := context.Background()
	stream := in.stream(t, "s", 0)
	drain := func() int {
		t.Helper()
		reply, err := in.Drain(ctx, stream, 100)
		if err != nil {
			t.Fatal(err)
		}
		return reply.Moved
	}
	hinted := func() *string {
		t.Helper()
		conn, err := in.pool.Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		return hintFor(conn.Conn(), "sqlstreams", stream, time.Now())
	}
	begin := func() pgx.Tx {
		t.Helper()
		tx, err := in.db.Conn(t).Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	put := func(tx pgx.Tx) {
		t.Helper()
		if err := in.PutTx(ctx, tx, stream, KindJSON, messages(`1`)); err != nil {
			t.Fatal(err)
		}
	}
	early, nested, busy := begin(), begin(), begin()
	put(early)
	inner, err := nested.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	put(inner)
	// This one has its transaction id before the hint is taken, and produces after.
	if _, err := busy.Exec(ctx, `select pg_current_xact_id()`); err != nil {
		t.Fatal(err)
	}
	snapshotHolder := begin()
	if _, err := snapshotHolder.Exec(ctx, `set transaction isolation level repeatable read; select 1`); err != nil {
		t.Fatal(err)
	}
	for range 100 { // the looks below must be shown to use the hint: else this is another test
		if n := drain(); n != 0 {
			t.Fatalf("moved %d rows of open transactions", n)
		}
		if hinted() != nil {
			break
		}
	}
	if hinted() == nil {
		t.Fatal("a complete look left no hint")
	}
	put(busy)
	for name, tx := range map[string]pgx.Tx{"inserted before": early, "with a transaction id from before": busy} {
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if n := drain(); n != 1 {
			t.Errorf("%s: moved %d rows, want 1", name, n)
		}
	}
	if err := errors.Join(inner.Commit(ctx), nested.Commit(ctx)); err != nil {
		t.Fatal(err)
	}
	if n := drain(); n != 1 {
		t.Errorf("savepoint: moved %d rows, want 1", n)
	}
	late := begin()
	put(late)
	if err := late.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if n := drain(); n != 1 {
		t.Errorf("begun after: moved %d rows, want 1", n)
	}
}

// A batch that went behind a full inbox must not be hidden by the hint of the look that its own transaction made.
func TestOwnBatchIsFoundAfterFullInbox(t *testing.T) {
	in := installAs(t, pgtest.NewDatabase(t), "sqlstreams", oneConn)
	ctx := context.Background()
	stream := in.stream(t, "s", 0)
	in.sql(t, `insert into {schema}.inbox (stream_id, payload) select 1, '1' from generate_series(1, 1500)`)
	reply, err := in.Append(ctx, &AppendRequest{Stream: stream, Kind: KindJSON, Producer: uuid.New(), Batch: 1, Messages: messages(`"last"`)})
	if err != nil || reply.First != 0 || reply.Moved != 1000 {
		t.Fatalf("%+v, %v: want the batch behind what waits", reply, err)
	}
	if reply, err := in.Drain(ctx, stream, 1000); err != nil || reply.Moved != 501 || reply.More {
		t.Fatalf("%+v, %v", reply, err)
	}
	got, err := in.Read(ctx, stream, 1500, 1501)
	if err != nil || len(got) != 1 || string(got[0].Payload) != `"last"` {
		t.Errorf("%v, %v", got, err)
	}
}

func TestPartsOfTheInboxRotate(t *testing.T) {
	in := install(t)
	ctx := context.Background()
	stream := in.stream(t, "s", 0)
	rotate := func(want string) {
		t.Helper()
		got, err := in.RotateInbox(ctx, 1)
		if err != nil || got != want {
			t.Fatalf("rotate: %q, %v, want %q", got, err, want)
		}
	}
	empty := func(part int, age time.Duration, want string) {
		t.Helper()
		got, err := in.EmptyInboxPart(ctx, part, age)
		if err != nil || got != want {
			t.Fatalf("empty part %d: %q, %v, want %q", part, got, err, want)
		}
	}
	put := func() pgx.Tx {
		t.Helper()
		tx, err := in.db.Conn(t).Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := in.PutTx(ctx, tx, stream, KindJSON, messages(`1`, `2`)); err != nil {
			t.Fatal(err)
		}
		return tx
	}
	rotate("not needed") // nothing is in it
	pinned := put()
	rotate("rotated")
	empty(0, 0, "busy")               // an open producer holds the part
	empty(1, 0, "not needed")         // the current one never
	empty(0, time.Hour, "not needed") // retired too shortly for young snapshots
	if err := pinned.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	empty(0, 0, "busy") // rows are in it
	if reply, err := in.Drain(ctx, stream, 10); err != nil || reply.Moved != 2 {
		t.Fatalf("%+v, %v", reply, err)
	}
	reader, err := in.db.Conn(t).Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Exec(ctx, `select count(*) from sqlstreams.inbox`); err != nil {
		t.Fatal(err)
	}
	empty(0, 0, "busy") // somebody reads it
	if err := reader.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	empty(0, 0, "emptied")
	empty(0, 0, "not needed")

	// Open producers pin one part after the other: further ones are made.
	var open []pgx.Tx
	for range 6 {
		open = append(open, put())
		rotate("rotated")
	}
	if n := in.count(t, `select count(*) from {schema}.inbox_part`); n < 6 {
		t.Errorf("%d parts, want more than there were", n)
	}
	for _, tx := range open {
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if reply, err := in.Drain(ctx, stream, 100); err != nil || reply.Moved != 12 {
		t.Fatalf("%+v, %v", reply, err)
	}
}

// The statements of the drain must find rows by index and position, whatever the statistics say: the inbox is empty when it is analysed and full a minute later.
func TestDrainIsPlannedForAFullInbox(t *testing.T) {
	in := install(t)
	ctx := context.Background()
	in.stream(t, "s", 0)
	tx, err := in.db.Conn(t).Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `select set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
		set_config('enable_bitmapscan', 'off', true), set_config('enable_material', 'off', true), set_config('jit', 'off', true)`); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		sql  string
		want []string
	}{
		"find":       {`select i.ctid from sqlstreams.inbox i where i.stream_id = 1 order by i.seq limit 1001`, []string{"Index"}},
		"find by id": {`select r.ctid from pg_snapshot_xip('1:9:3,4') as x (xid) cross join lateral (select i.ctid from sqlstreams.inbox i where i.stream_id = 1 and i.xid = x.xid offset 0) r`, []string{"Index", ".xid = x.xid"}},
		"insert":     {`select i.payload from unnest('{0}'::smallint[], '{"(0,1)"}'::tid[]) with ordinality as p (part, position, n) join sqlstreams.inbox i on i.part = p.part and i.ctid = p.position`, []string{"Tid Scan"}},
		"delete":     {`delete from sqlstreams.inbox i using unnest('{0}'::smallint[], '{"(0,1)"}'::tid[]) as p (part, position) where i.part = p.part and i.ctid = p.position`, []string{"Tid Scan"}},
	} {
		rows, err := tx.Query(ctx, "explain (verbose, costs off) "+c.sql)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		plan := strings.Join(lines, "\n")
		for _, want := range c.want {
			if !strings.Contains(plan, want) {
				t.Errorf("%s: no %q in\n%s", name, want, plan)
			}
		}
		if strings.Contains(plan, "Seq Scan") {
			t.Errorf("%s: scans a table\n%s", name, plan)
		}
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
}
