package pgtest_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

const patience = 20 * time.Second

// proxied makes a database with a proxy before it, and a connection through it.
func proxied(t *testing.T) (*pgtest.Database, *pgtest.Proxy, *pgx.Conn) {
	t.Helper()
	db := pgtest.NewDatabase(t)
	db.Exec(t, "create table t (id int)")
	proxy := pgtest.NewProxy(t, db.DSN)
	return db, proxy, pgtest.Connect(t, proxy.DSN(t, db.DSN))
}

func TestProxyForwards(t *testing.T) {
	t.Parallel()
	db, proxy, conn := proxied(t)
	_, err := conn.Exec(t.Context(), "insert into t select generate_series(1, 100000)")
	must(t, err)
	rows, err := conn.Query(t.Context(), "select repeat('x', 100) from t")
	must(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(t, err)
	if len(all) != 100000 || db.QueryInt(t, "select count(*) from t") != 100000 {
		t.Errorf("%d rows came back", len(all))
	}
	if n := proxy.Links(); n != 1 {
		t.Errorf("%d links, want 1", n)
	}
	must(t, conn.Close(t.Context()))
	pgtest.Eventually(t, patience, "the link ends with its connection", func() bool { return proxy.Links() == 0 })
}

func TestFrozenProxyDeliversLate(t *testing.T) {
	t.Parallel()
	db, proxy, conn := proxied(t)
	proxy.Freeze()
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "insert into t values (1)")
		done <- err
	}()
	// A new connection reaches nobody, and is not refused either.
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if c, err := pgx.Connect(short, proxy.DSN(t, db.DSN)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("connecting through a frozen proxy gave %v, %v", c, err)
	}
	select {
	case err := <-done:
		t.Fatalf("a frozen proxy let an answer through: %v", err)
	default:
	}
	if n := db.QueryInt(t, "select count(*) from t"); n != 0 {
		t.Fatal("a frozen proxy let a statement through")
	}
	proxy.Freeze() // again changes nothing
	proxy.Thaw()
	proxy.Thaw()
	must(t, <-done)
	if n := db.QueryInt(t, "select count(*) from t"); n != 1 {
		t.Errorf("%d rows after the thaw, want 1", n)
	}
}

func TestCutWhileFrozenLosesWhatWasSent(t *testing.T) {
	t.Parallel()
	db, proxy, conn := proxied(t)
	proxy.Freeze()
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "insert into t values (1)")
		done <- err
	}()
	pgtest.Eventually(t, patience, "the cut connection fails", func() bool {
		proxy.CutAll()
		select {
		case err := <-done:
			if err == nil {
				t.Fatal("the statement succeeded")
			}
			return true
		default:
			return false
		}
	})
	proxy.Thaw()
	again := pgtest.Connect(t, proxy.DSN(t, db.DSN))
	must(t, again.Ping(t.Context()))
	if n := db.QueryInt(t, "select count(*) from t"); n != 0 {
		t.Errorf("%d rows, want none", n)
	}
}

func TestCommitIsCutOffFromItsAnswer(t *testing.T) {
	t.Parallel()
	db, proxy, conn := proxied(t)
	tx, err := conn.Begin(t.Context())
	must(t, err)
	_, err = tx.Exec(t.Context(), "insert into t values (1)")
	must(t, err)
	cut := proxy.CutWhenSeen(t, "COMMIT")
	err = tx.Commit(t.Context())
	var refused *pgconn.PgError
	if err == nil || errors.As(err, &refused) {
		t.Fatalf("Commit = %v, want a connection that broke", err)
	}
	<-cut
	pgtest.Eventually(t, patience, "the transaction is committed", func() bool {
		return db.QueryInt(t, "select count(*) from t") == 1
	})
	// That was the one cut.
	again := pgtest.Connect(t, proxy.DSN(t, db.DSN))
	_, err = again.Exec(t.Context(), "begin; insert into t values (2); commit")
	must(t, err)
	pgtest.Eventually(t, patience, "the cut link ends", func() bool { return proxy.Links() == 1 })
}

func TestCommitIsCutOffBeforeItArrives(t *testing.T) {
	t.Parallel()
	db, proxy, conn := proxied(t)
	// What was said before the trigger was set does not fire it.
	_, err := conn.Exec(t.Context(), "select 'commit'")
	must(t, err)
	cut := proxy.CutBefore(t, "commit")
	tx, err := conn.Begin(t.Context())
	must(t, err)
	_, err = tx.Exec(t.Context(), "insert into t values (1)")
	must(t, err)
	if err := tx.Commit(t.Context()); err == nil {
		t.Fatal("Commit succeeded")
	}
	<-cut
	pgtest.Eventually(t, patience, "the session ends", func() bool {
		return db.QueryInt(t, "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'") == 0
	})
	if n := db.QueryInt(t, "select count(*) from t"); n != 0 {
		t.Errorf("%d rows, want none", n)
	}
}

// echo answers each connection with what it says.
func echo(t *testing.T) string {
	t.Helper()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn) // ends when the test does
			}()
		}
	}()
	return ln.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", addr)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(patience)))
	return conn
}

func TestSubstringMayArriveInPieces(t *testing.T) {
	t.Parallel()
	proxy := pgtest.NewProxy(t, echo(t))
	conn := dial(t, proxy.Addr)
	cut := proxy.CutWhenSeen(t, "needle")
	buf := make([]byte, 16)
	for _, piece := range []string{"haystack nee", "d"} {
		_, err := conn.Write([]byte(piece))
		must(t, err)
		_, err = io.ReadFull(conn, buf[:len(piece)])
		must(t, err)
	}
	_, err := conn.Write([]byte("LE hay"))
	must(t, err)
	if n, err := conn.Read(buf); err == nil {
		t.Errorf("got %q after the cut", buf[:n])
	}
	<-cut
}

func TestEndOfOneSidePassesAlone(t *testing.T) {
	t.Parallel()
	proxy := pgtest.NewProxy(t, echo(t))
	conn := dial(t, proxy.Addr)
	_, err := conn.Write([]byte("last words"))
	must(t, err)
	must(t, conn.(*net.TCPConn).CloseWrite())
	answer, err := io.ReadAll(conn)
	if string(answer) != "last words" || err != nil {
		t.Errorf("got %q, %v", answer, err)
	}
	pgtest.Eventually(t, patience, "the link ends", func() bool { return proxy.Links() == 0 })
}

func TestDelayIsNoThrottle(t *testing.T) {
	t.Parallel()
	proxy := pgtest.NewProxy(t, echo(t))
	conn := dial(t, proxy.Addr)
	const delay = 50 * time.Millisecond
	proxy.Delay(delay)
	start := time.Now()
	go func() {
		for range 64 { // one after the other each would wait its turn
			if _, err := conn.Write(make([]byte, 16<<10)); err != nil {
				return // the read below fails too
			}
		}
	}()
	_, err := io.CopyN(io.Discard, conn, 64*16<<10)
	must(t, err)
	if took := time.Since(start); took < 2*delay || took > 30*delay {
		t.Errorf("there and back took %v with a delay of %v", took, delay)
	}
	proxy.Delay(0)
}

func TestProxyWithoutAServerEndsConnections(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	nobody := ln.Addr().String()
	must(t, ln.Close())
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", pgtest.NewProxy(t, nobody).Addr)
	if err != nil {
		return // it ended before the system had told us that it began
	}
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(patience)))
	if n, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d bytes from nobody, %v", n, err)
	}
}

func TestProxyLooksForSomething(t *testing.T) {
	t.Parallel()
	proxy := pgtest.NewProxy(t, echo(t))
	if got := failure(t, func(tb testing.TB) { proxy.CutWhenSeen(tb, "") }); got == "" {
		t.Error("an empty substring passed")
	}
}
