package pgtest_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams/internal/pgserver"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func text(t *testing.T, conn *pgx.Conn, sql string) string {
	t.Helper()
	var s string
	must(t, conn.QueryRow(t.Context(), sql).Scan(&s))
	return s
}

func TestEachTestHasADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	a, b := pgtest.NewDatabase(t), pgtest.NewDatabase(t)
	if a.Server != b.Server || a.Server != pgtest.SharedServer(t) {
		t.Error("the server is not shared")
	}
	if a.Name == b.Name || !strings.HasPrefix(a.Name, "testeachtesthasadatabaseofitsown_") {
		t.Errorf("the databases are %s and %s", a.Name, b.Name)
	}
	a.Exec(t, "create table only_here (id bigint)")
	a.Exec(t, "insert into only_here select generate_series(1, $1::int)", 3)
	if n := a.QueryInt(t, "select count(*) from only_here"); n != 3 {
		t.Errorf("%d rows, want 3", n)
	}
	if n := b.QueryInt(t, "select count(*) from pg_class where relname = 'only_here'"); n != 0 {
		t.Error("the other database has the table too")
	}
}

func TestDatabaseBelongsToARoleThatIsNoSuperuser(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	conn := db.Conn(t)
	if who := text(t, conn, "select current_user::text"); who != pgtest.Owner {
		t.Errorf("connected as %s", who)
	}
	if got := text(t, conn, "select rolsuper::text from pg_roles where rolname = current_user"); got != "false" {
		t.Error("the owner is a superuser")
	}
	db.Exec(t, "create schema works; create table works.too ()")
	if who := text(t, db.SuperuserConn(t), "select current_user::text"); who != pgserver.Superuser {
		t.Errorf("the superuser is %s", who)
	}
	db.SuperuserExec(t, "create table public.of_the_superuser ()")
	if got := text(t, conn, "show work_mem"); got != "7MB" {
		t.Errorf("Main's setting is %s", got)
	}
}

func TestDatabaseIsDroppedWhoeverIsConnected(t *testing.T) {
	t.Parallel()
	var name string
	var left *pgx.Conn
	t.Run("inner", func(t *testing.T) {
		db := pgtest.NewDatabase(t)
		name = db.Name
		conn, err := pgx.Connect(t.Context(), db.DSN)
		must(t, err)
		left = conn
	})
	admin := pgtest.Connect(t, pgtest.SharedServer(t).DSN("postgres"))
	if n := text(t, admin, "select count(*)::text from pg_database where datname = '"+name+"'"); n != "0" {
		t.Error("the database is there")
	}
	if _, err := left.Exec(t.Context(), "select 1"); err == nil {
		t.Error("the connection lives")
	}
}

func TestPoolIsAsAsked(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	if n := db.Pool(t).Config().MaxConns; n != 8 {
		t.Errorf("a pool has %d connections, want 8", n)
	}
	pool := db.PoolConfig(t, func(c *pgxpool.Config) {
		c.MaxConns = 2
		c.ConnConfig.RuntimeParams["application_name"] = "mine"
	})
	var name string
	must(t, pool.QueryRow(t.Context(), "show application_name").Scan(&name))
	if name != "mine" || pool.Config().MaxConns != 2 {
		t.Errorf("application_name %s, %d connections", name, pool.Config().MaxConns)
	}
}

func TestDatabaseOnAServerThatMayBeDown(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, pgserver.Options{})
	db := pgtest.NewDatabaseOn(t, server)
	db.Exec(t, "create table kept (id int)")
	must(t, server.Kill9(t.Context()))
	must(t, server.StartAgain(t.Context()))
	if n := db.QueryInt(t, "select count(*) from kept"); n != 0 {
		t.Errorf("%d rows", n)
	}
	must(t, server.Kill9(t.Context())) // and the test ends so
}

func TestBlockedWaitsForALock(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	db.Exec(t, "create table t (id int)")
	first, second, watch := db.Conn(t), db.SuperuserConn(t), db.Conn(t)
	tx, err := first.Begin(t.Context())
	must(t, err)
	_, err = tx.Exec(t.Context(), "lock table t")
	must(t, err)
	pid := pgtest.BackendPID(t, second)
	done := make(chan error, 1)
	go func() {
		_, err := second.Exec(t.Context(), "select * from t")
		done <- err
	}()
	pgtest.Blocked(t, watch, pid)
	select {
	case err := <-done:
		t.Errorf("the blocked statement ended: %v", err)
	default:
	}
	must(t, tx.Commit(t.Context()))
	must(t, <-done)
}

// recorder stands for a test, to see it fail.
type recorder struct {
	testing.TB
	mu     sync.Mutex
	failed string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) {
	r.mu.Lock()
	r.failed = fmt.Sprintf(format, args...)
	r.mu.Unlock()
	runtime.Goexit()
}

// failure runs f on a test of its own and returns how that failed.
func failure(t *testing.T, f func(testing.TB)) string {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func TestEventuallyFailsWithWhatItWaitedFor(t *testing.T) {
	t.Parallel()
	looks := 0
	pgtest.Eventually(t, time.Minute, "the third look", func() bool { looks++; return looks == 3 })
	got := failure(t, func(tb testing.TB) {
		pgtest.Eventually(tb, 10*time.Millisecond, "pigs fly", func() bool { return false })
	})
	if got != "not within 10ms: pigs fly" {
		t.Errorf("failed with %q", got)
	}
}

func TestServerThatCannotStartFailsTheTest(t *testing.T) {
	t.Parallel()
	got := failure(t, func(tb testing.TB) {
		pgtest.NewServer(tb, pgserver.Options{Binaries: pgserver.Binaries{Dir: "/no/such/folder", Major: 15}})
	})
	if !strings.Contains(got, "/no/such/folder") {
		t.Errorf("failed with %q", got)
	}
	got = failure(t, func(tb testing.TB) { pgtest.Connect(tb, "postgres://127.0.0.1:1/none?connect_timeout=1") })
	if got == "" {
		t.Error("connected to nobody")
	}
}

func TestStandbyFollows(t *testing.T) {
	t.Parallel()
	primary := pgtest.NewServer(t, pgserver.Options{})
	db := pgtest.NewDatabaseOn(t, primary)
	db.Exec(t, "create table t as select 1 as id")
	standby := pgtest.NewStandby(t, primary, pgserver.Options{})
	pgtest.Eventually(t, 20*time.Second, "the standby has the table", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, standby.DSN(db.Name))
		if err != nil {
			return false
		}
		defer conn.Close(ctx)
		var n int
		return conn.QueryRow(ctx, "select count(*) from t").Scan(&n) == nil && n == 1
	})
}
