package schema

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestNames(t *testing.T) {
	for name, good := range map[string]bool{
		"sqlstreams": true, "with space": true, `q"uote`: true, strings.Repeat("x", 63): true, "é": true,
		"": false, strings.Repeat("x", 64): false, "pg_x": false, "a\x00b": false, "a\xffb": false, "a$sqlstreams$b": false,
	} {
		_, err := NewNames(name)
		if good != (err == nil) || err != nil && !errors.Is(err, diag.ErrInvalidName) {
			t.Errorf("%q: %v", name, err)
		}
	}
	a, err := NewNames("a")
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewNames("b")
	if err != nil {
		t.Fatal(err)
	}
	if a.Channel == b.Channel || a.Lock("stream") == b.Lock("stream") || a.Lock("stream") == a.Lock("group") {
		t.Error("installations and kinds of lock share a key")
	}
	if got := a.Expand("{schema} {schema_text} {log} {unknown}"); got != `"a" "a" '"a".log_' {unknown}` {
		t.Errorf("expanded to %s", got)
	}
}

func TestEveryMigrationHasItsHeader(t *testing.T) {
	steps, err := Migrations()
	if err != nil {
		t.Fatal(err)
	}
	if len(steps) == 0 {
		t.Fatal("no migrations")
	}
	for _, bad := range []string{"-- title: x\nselect", "select 1", "-- title: x\n-- breaking: no\n-- transaction: yes\n"} {
		if _, err := parse("0001_x.sql", bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	if _, err := parse("x.sql", ""); err == nil {
		t.Error("a file without a number was accepted")
	}
}

func names(t *testing.T) *Names {
	t.Helper()
	n, err := NewNames("sqlstreams")
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Eight programs find an empty database at once.
func TestOneMigratesWhileOthersWait(t *testing.T) {
	db := pgtest.NewDatabase(t)
	ctx := context.Background()
	var wg sync.WaitGroup
	applied := make([]int, 8)
	for i := range applied {
		conn := db.Conn(t)
		wg.Go(func() {
			var err error
			if applied[i], err = Up(ctx, conn, names(t)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	total := 0
	for _, n := range applied {
		total += n
	}
	steps, err := Migrations()
	if err != nil {
		t.Fatal(err)
	}
	if total != len(steps) {
		t.Errorf("%d steps applied in all, want %d", total, len(steps))
	}
	state, err := Look(ctx, db.Conn(t), names(t))
	if err != nil || !state.Current() || state.Check(names(t)) != nil {
		t.Errorf("%+v, %v", state, err)
	}
}

func TestStatesThatCannotBeWorkedWith(t *testing.T) {
	ctx := context.Background()
	for name, c := range map[string]struct {
		change string
		want   error
	}{
		"a newer step that is breaking": {`insert into sqlstreams.migration (version, name, checksum, breaking) values (900, 'x', 'x', true)`, diag.ErrSchemaNewer},
		"a newer step that is not":      {`insert into sqlstreams.migration (version, name, checksum, breaking) values (900, 'x', 'x', false)`, nil},
		"a step is missing":             {`delete from sqlstreams.migration where version = (select max(version) from sqlstreams.migration)`, diag.ErrSchemaOld},
		"a step had another text":       {`update sqlstreams.migration set checksum = 'x' where version = 2`, diag.Sentinel(diag.SchemaAltered)},
	} {
		t.Run(name, func(t *testing.T) {
			db := pgtest.NewDatabase(t)
			conn := db.Conn(t)
			if _, err := Up(ctx, conn, names(t)); err != nil {
				t.Fatal(err)
			}
			db.Exec(t, c.change)
			state, err := Look(ctx, conn, names(t))
			if err != nil {
				t.Fatal(err)
			}
			if err := state.Check(names(t)); c.want == nil && err != nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

// An interrupted run goes on where it stopped, and a failed step leaves nothing of itself.
func TestInterruptedMigrationGoesOn(t *testing.T) {
	db := pgtest.NewDatabase(t)
	ctx := context.Background()
	// Something of another name's is in the way of the second step.
	conn := db.Conn(t)
	steps, err := Migrations()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := apply(ctx, conn, names(t), steps[0]); err != nil {
		t.Fatal(err)
	}
	db.Exec(t, `create function sqlstreams.use_leaves(integer, bigint) returns void language sql as 'select'`)
	n, err := Up(ctx, conn, names(t))
	if err == nil || n != 0 {
		t.Fatalf("%d steps, %v", n, err)
	}
	if state, err := Look(ctx, conn, names(t)); err != nil || state.Version != 1 {
		t.Fatalf("%+v, %v", state, err)
	}
	db.Exec(t, `drop function sqlstreams.use_leaves(integer, bigint)`)
	if n, err := Up(ctx, conn, names(t)); err != nil || n != len(steps)-1 {
		t.Fatalf("%d steps, %v", n, err)
	}
}

// Case 38, the schema's part: a start on a current schema takes no lock that DDL or a dump could mind.
func TestLookTakesNoLockThatCounts(t *testing.T) {
	db := pgtest.NewDatabase(t)
	ctx := context.Background()
	conn := db.Conn(t)
	if _, err := Up(ctx, conn, names(t)); err != nil {
		t.Fatal(err)
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Look(ctx, tx.Conn(), names(t)); err != nil {
		t.Fatal(err)
	}
	rows, err := tx.Query(ctx, `select distinct l.mode from pg_locks l where l.pid = pg_backend_pid() and l.locktype in ('relation', 'advisory')`)
	if err != nil {
		t.Fatal(err)
	}
	modes, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range modes {
		if mode != "AccessShareLock" {
			t.Errorf("takes %s", mode)
		}
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
}
