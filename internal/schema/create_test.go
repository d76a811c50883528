package schema

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

func TestCreateMakesWhatTheStepsMake(t *testing.T) {
	t.Parallel()
	conn := pgtest.NewDatabase(t).Conn(t)
	var made [2][]string
	for i, create := range []func(n *Names) error{
		func(n *Names) error { _, err := Up(t.Context(), conn, n); return err },
		func(n *Names) error { return Create(t.Context(), conn, n) },
	} {
		n := names(t)
		if err := create(n); err != nil {
			t.Fatal(err)
		}
		rows, err := conn.Query(t.Context(), n.Expand(`select concat(c.relkind, ' ', c.relname, ' ', pg_get_indexdef(c.oid), c.reloptions) from pg_class c where c.relnamespace = '{schema_text}'::regnamespace
			union all select pg_get_functiondef(p.oid) from pg_proc p where p.pronamespace = '{schema_text}'::regnamespace
			union all select concat(d.conname, ' ', pg_get_constraintdef(d.oid)) from pg_constraint d where d.connamespace = '{schema_text}'::regnamespace
			union all select concat(m.version, m.name, m.checksum, m.breaking) from {schema}.migration m order by 1`))
		if err != nil {
			t.Fatal(err)
		}
		if made[i], err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), n.Expand(`drop schema {schema} cascade`)); err != nil {
			t.Fatal(err)
		}
	}
	if len(made[0]) < 50 {
		t.Errorf("%d objects", len(made[0]))
	}
	if diff := cmp.Diff(made[0], made[1]); diff != "" {
		t.Errorf("(- Up, + Create)\n%s", diff)
	}
}

func TestCreateRefusesASchemaThatIsThere(t *testing.T) {
	t.Parallel()
	conn := pgtest.NewDatabase(t).Conn(t)
	if err := Create(t.Context(), conn, names(t)); err != nil {
		t.Fatal(err)
	}
	if err := Create(t.Context(), conn, names(t)); err == nil {
		t.Error("it was created twice")
	}
	if status := conn.PgConn().TxStatus(); status != 'I' {
		t.Errorf("the connection is left in state %c", status)
	}
}
