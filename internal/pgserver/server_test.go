package pgserver_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams/internal/pgserver"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

const patience = 20 * time.Second

// text returns the one string that a query gives on a new connection.
func text(t *testing.T, dsn, sql string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	var s string
	if err := conn.QueryRow(ctx, sql).Scan(&s); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return s
}

func exec(t *testing.T, dsn, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// log is a writer that several goroutines may use.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func TestServerIsAsAsked(t *testing.T) {
	t.Parallel()
	var logged log
	s := pgtest.NewServer(t, pgserver.Options{
		Settings: map[string]string{"work_mem": "5MB", "max_connections": "50", "app.quote": "it's"},
		HBA:      []string{"host all guarded 127.0.0.1/32 scram-sha-256"},
		Files:    map[string][]byte{"note.txt": []byte("hello")},
		Log:      &logged,
	})
	for _, dsn := range []string{s.DSN("postgres"), s.SocketDSN("postgres")} {
		for name, want := range map[string]string{
			"work_mem": "5MB", "max_connections": "50", "app.quote": "it's", "wal_level": "replica",
			"max_prepared_transactions": "20", "max_wal_senders": "10", "fsync": "off",
			"full_page_writes": "off", "synchronous_commit": "on", "server_encoding": "UTF8",
			"listen_addresses": "127.0.0.1", "port": strconv.Itoa(s.Port()), "timezone": "UTC",
			"data_directory": s.DataDir(),
		} {
			if got := text(t, dsn, "select current_setting('"+name+"')"); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
	}
	if v := text(t, s.DSN("postgres"), "show server_version_num"); !strings.HasPrefix(v, strconv.Itoa(s.Major())) {
		t.Errorf("server says version %s, Major %d", v, s.Major())
	}
	if v := text(t, s.DSN("postgres"), "select datcollate from pg_database where datname = 'template0'"); v != "C" {
		t.Errorf("databases sort by %s, want C", v)
	}
	if got := text(t, s.DSN("postgres"), "select pg_read_file('note.txt')"); got != "hello" {
		t.Errorf("the file holds %q", got)
	}

	exec(t, s.DSN("postgres"), "create role guarded login password 'right'")
	u, err := url.Parse(s.DSN("postgres"))
	must(t, err)
	u.User = url.UserPassword("guarded", "right")
	if got := text(t, u.String(), "select current_user::text"); got != "guarded" {
		t.Errorf("current_user is %s", got)
	}
	u.User = url.UserPassword("guarded", "wrong")
	if conn, err := pgx.Connect(t.Context(), u.String()); err == nil {
		t.Error("a wrong password was let in", conn.Close(t.Context()))
	}

	pgtest.Eventually(t, patience, "the log reaches the writer", func() bool {
		return strings.Contains(logged.String(), "password authentication failed")
	})
	if !strings.Contains(s.LogTail(), "password authentication failed") {
		t.Errorf("the log file ends with:\n%s", s.LogTail())
	}
}

func TestDurableServerKeepsTheServersDefaults(t *testing.T) {
	t.Parallel()
	s := pgtest.NewServer(t, pgserver.Options{Durable: true})
	for _, name := range []string{"fsync", "full_page_writes", "synchronous_commit"} {
		if got := text(t, s.DSN("postgres"), "show "+name); got != "on" {
			t.Errorf("%s is %s", name, got)
		}
	}
}

func TestFailedStartShowsTheLogAndLeavesNothing(t *testing.T) {
	t.Parallel()
	parent, err := os.MkdirTemp("/tmp", "pgserver-test-")
	must(t, err)
	defer os.RemoveAll(parent)
	must(t, os.Chmod(parent, 0o755))
	_, err = pgserver.Start(t.Context(), pgserver.Options{Parent: parent, Settings: map[string]string{"work_mem": "plenty"}})
	if err == nil || !strings.Contains(err.Error(), `invalid value for parameter "work_mem": "plenty"`) {
		t.Errorf("Start = %v", err)
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestCommittedDataOutlivesEveryWayToEnd(t *testing.T) {
	t.Parallel()
	s := pgtest.NewServer(t, pgserver.Options{})
	dsn := s.DSN("postgres")
	exec(t, dsn, "create table kept (how text)")
	for how, end := range map[string]func() error{
		"fast":      func() error { return s.Stop(t.Context(), pgserver.Fast) },
		"smart":     func() error { return s.Stop(t.Context(), pgserver.Smart) },
		"immediate": func() error { return s.Stop(t.Context(), pgserver.Immediate) },
		"kill -9":   func() error { return s.Kill9(t.Context()) },
		"paused": func() error {
			return errors.Join(s.Pause(t.Context()), s.Kill9(t.Context()))
		},
		"paused, fast": func() error {
			return errors.Join(s.Pause(t.Context()), s.Stop(t.Context(), pgserver.Fast))
		},
	} {
		exec(t, dsn, "insert into kept values ('"+how+"')")
		if err := end(); err != nil {
			t.Fatalf("%s: %v", how, err)
		}
		if s.PID() != 0 {
			t.Errorf("%s: the postmaster's pid is still %d", how, s.PID())
		}
		if err := s.Stop(t.Context(), pgserver.Fast); err == nil {
			t.Errorf("%s: a server that is down was stopped", how)
		}
		port := s.Port()
		if err := s.StartAgain(t.Context()); err != nil {
			t.Fatalf("%s: %v", how, err)
		}
		if s.Port() != port {
			t.Errorf("%s: the port went from %d to %d", how, port, s.Port())
		}
		if got := text(t, dsn, "select count(*)::text from kept where how = '"+how+"'"); got != "1" {
			t.Errorf("%s: %s rows, want 1", how, got)
		}
	}
	if err := s.StartAgain(t.Context()); err == nil {
		t.Error("a running server was started")
	}
	must(t, s.Restart(t.Context(), pgserver.Fast))
}

func TestSmartStopWaitsForClients(t *testing.T) {
	t.Parallel()
	s := pgtest.NewServer(t, pgserver.Options{})
	conn, err := pgx.Connect(t.Context(), s.DSN("postgres"))
	must(t, err)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Stop(short, pgserver.Smart); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Stop with a client there = %v", err)
	}
	must(t, conn.Close(t.Context()))
	pgtest.Eventually(t, patience, "the server ends", func() bool { return s.PID() == 0 })
}

func TestKilledBackendTakesAllSessionsAlong(t *testing.T) {
	t.Parallel()
	s := pgtest.NewServer(t, pgserver.Options{})
	conn, bystander := pgtest.Connect(t, s.DSN("postgres")), pgtest.Connect(t, s.DSN("postgres"))
	postmaster := s.PID()
	if err := s.KillBackend(t.Context(), os.Getpid()); err == nil {
		t.Fatal("a process that is no backend was killed")
	}
	must(t, s.KillBackend(t.Context(), pgtest.BackendPID(t, conn)))
	pgtest.Eventually(t, patience, "the bystander's session ends", func() bool {
		_, err := bystander.Exec(t.Context(), "select 1")
		return err != nil
	})
	pgtest.Eventually(t, patience, "the server recovers", func() bool {
		again, err := pgx.Connect(t.Context(), s.DSN("postgres"))
		if err != nil {
			return false
		}
		return again.Close(t.Context()) == nil
	})
	if s.PID() != postmaster {
		t.Errorf("the postmaster was %d and is %d", postmaster, s.PID())
	}
}

func TestPausedServerAnswersWhenResumed(t *testing.T) {
	t.Parallel()
	s := pgtest.NewServer(t, pgserver.Options{})
	conn := pgtest.Connect(t, s.DSN("postgres"))
	must(t, s.Pause(t.Context()))
	answered := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "select 1")
		answered <- err
	}()
	// Somebody new is let in by the kernel and then hears nothing.
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if c, err := pgx.Connect(short, s.DSN("postgres")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("connecting to a paused server gave %v, %v", c, err)
	}
	select {
	case err := <-answered:
		t.Errorf("a paused server answered: %v", err)
	default:
	}
	must(t, s.Resume(t.Context()))
	must(t, <-answered)
}

// TestEveryVersion does on each installed version what depends on it.
func TestEveryVersion(t *testing.T) {
	t.Parallel()
	all, err := pgserver.Versions(t.Context())
	must(t, err)
	for _, b := range all {
		t.Run(strconv.Itoa(b.Major), func(t *testing.T) {
			primary := pgtest.NewServer(t, pgserver.Options{Binaries: b})
			if got := text(t, primary.DSN("postgres"), "show server_version_num"); !strings.HasPrefix(got, strconv.Itoa(b.Major)) {
				t.Errorf("the server is of version %s, want %d", got, b.Major)
			}
			exec(t, primary.DSN("postgres"), "create table seen as select 'before'::text as what")
			standby := pgtest.NewStandby(t, primary, pgserver.Options{Settings: map[string]string{"cluster_name": "second"}})
			follows := func(what string) {
				t.Helper()
				pgtest.Eventually(t, patience, what, func() bool {
					return text(t, standby.DSN("postgres"), "select string_agg(what, ',') from seen") == what
				})
			}
			if got := text(t, standby.DSN("postgres"), "select pg_is_in_recovery()::text"); got != "true" {
				t.Errorf("pg_is_in_recovery is %s on the standby", got)
			}
			follows("before")
			exec(t, primary.DSN("postgres"), "insert into seen values ('after')")
			follows("before,after")

			// Synchronous replication sees the standby by its name.
			exec(t, primary.DSN("postgres"), "alter system set synchronous_standby_names = 'second'")
			exec(t, primary.DSN("postgres"), "select pg_reload_conf()")
			pgtest.Eventually(t, patience, "the standby is synchronous", func() bool {
				return text(t, primary.DSN("postgres"), "select count(*)::text from pg_stat_replication where sync_state = 'sync'") == "1"
			})

			must(t, primary.Kill9(t.Context()))
			must(t, primary.StartAgain(t.Context()))
			exec(t, primary.DSN("postgres"), "insert into seen values ('restarted')")
			follows("before,after,restarted")

			must(t, primary.Kill9(t.Context()))
			must(t, standby.Promote(t.Context()))
			exec(t, standby.DSN("postgres"), "insert into seen values ('promoted')")
			follows("before,after,restarted,promoted")
			must(t, standby.Restart(t.Context(), pgserver.Immediate))
			follows("before,after,restarted,promoted")
		})
	}
}

func TestClosedServerIsGone(t *testing.T) {
	t.Parallel()
	s, err := pgserver.Start(t.Context(), pgserver.Options{})
	must(t, err)
	pid := s.PID()
	must(t, s.Close())
	must(t, s.Close())
	if _, err := os.Stat(s.Dir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is there: %v", err)
	}
	if s.PID() != 0 || pid == 0 {
		t.Errorf("the postmaster was %d and is %d", pid, s.PID())
	}
	if err := s.StartAgain(t.Context()); err == nil {
		t.Error("a closed server was started")
	}
}
