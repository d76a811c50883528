package sqlstreamstest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

func TestTestsShareADatabaseAndNothingElse(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	shared := db.Pool(t)
	t.Run("tests", func(t *testing.T) {
		for n := range 8 {
			t.Run(fmt.Sprint(n), func(t *testing.T) {
				t.Parallel()
				orders := register(t, New(t, shared, nil))
				produce(t, orders, order{ID: fmt.Sprint(n)})
			})
		}
		t.Run("of an address", func(t *testing.T) {
			t.Parallel()
			i := Open(t, db.DSN, nil)
			if n := i.Pool().Config().MaxConns; n != poolConns {
				t.Errorf("the pool has %d connections", n)
			}
			produce(t, register(t, i), order{ID: "1"})
			RequireProduced(t, i.Client().Stream("orders"), order{ID: "1"})
		})
	})
	if n := db.QueryInt(t, `select count(*) from pg_namespace where nspname like 'sqlstreamstest%'`); n != 0 {
		t.Errorf("%d schemas are left", n)
	}
}

// What Create makes is what the steps make one by one, so the client finds nothing to do.
func TestTheSchemaIsAtTheLatestStep(t *testing.T) {
	t.Parallel()
	i := New(t, pool(t), nil)
	client, err := sqlstreams.NewClient(t.Context(), i.Pool(), &sqlstreams.ClientConfig{Schema: i.Schema(), ManualMigration: true})
	if err != nil {
		t.Fatal(err)
	}
	client.Close(t.Context())
}

func TestAnInstallationIsRefused(t *testing.T) {
	t.Parallel()
	p := pool(t)
	contains(t, failure(t, func(t testing.TB) { New(t, nil, nil) }), "the pool is nil")
	contains(t, failure(t, func(t testing.TB) {
		New(t, p, &Options{Client: sqlstreams.ClientConfig{Schema: "shop"}})
	}), `has a Schema, "shop"`)
	if got := failure(t, func(t testing.TB) { Open(t, "postgres://u:secret@h:port/", nil) }); got != "sqlstreamstest: the DSN cannot be parsed" {
		t.Error(got)
	}
}

func TestTheSchemaOfATestThatFailedCanBeKept(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	p := db.Pool(t)
	for _, failed := range []bool{false, true} {
		var schema string
		r := &recorder{failed: failed}
		t.Run(fmt.Sprint(failed), func(t *testing.T) {
			r.TB = t
			schema = New(r, p, &Options{KeepOnFailure: true}).Schema()
		})
		if kept := db.QueryInt(t, `select count(*) from pg_namespace where nspname = $1`, schema) == 1; kept != failed || failed && !strings.Contains(r.logged, schema) {
			t.Errorf("failed %t, kept %t, logged %q", failed, kept, r.logged)
		}
	}
}

// An installation is made and dropped in far less than migrating takes. The bound is wide, for a machine at work; the figure is told.
func TestAnInstallationTakesLittleTime(t *testing.T) {
	p := pool(t)
	best := time.Hour
	for n := range 10 {
		began := time.Now()
		t.Run(fmt.Sprint(n), func(t *testing.T) { New(t, p, nil) })
		best = min(best, time.Since(began))
	}
	t.Logf("%v at best", best)
	if best > time.Second {
		t.Errorf("an installation takes %v", best)
	}
}
