package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams/internal/pgserver"
)

// opTimeout bounds one helper's work on a database.
const opTimeout = time.Minute

// Database is one test's own database.
type Database struct {
	Server       *pgserver.Server
	Name         string
	DSN          string // over TCP, as Owner
	SuperuserDSN string // over TCP, as the superuser

	pool *pgxpool.Pool // for Exec and QueryInt
}

// NewDatabase makes an empty database on the shared server, dropped at the
// test's end whoever is still connected.
func NewDatabase(t testing.TB) *Database {
	t.Helper()
	db := newDatabase(t, SharedServer(t))
	t.Cleanup(func() {
		if err := db.admin(context.Background(), `drop database "`+db.Name+`" with (force)`); err != nil {
			t.Errorf("pgtest: drop database %s: %v", db.Name, err)
		}
	})
	db.open(t)
	return db
}

// NewDatabaseOn makes an empty database on a test's own server, with which it
// goes: the test may end with the server down.
func NewDatabaseOn(t testing.TB, server *pgserver.Server) *Database {
	t.Helper()
	db := newDatabase(t, server)
	db.open(t)
	return db
}

func newDatabase(t testing.TB, server *pgserver.Server) *Database {
	t.Helper()
	db := &Database{Server: server, Name: databaseName(t.Name())}
	db.SuperuserDSN = server.DSN(db.Name)
	dsn, err := withUser(db.SuperuserDSN, Owner)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	db.DSN = dsn
	// template0 takes no connections that could get in the way, and is as empty
	// as template1.
	if err := db.admin(t.Context(), `create database "`+db.Name+`" owner `+Owner+` template template0`); err != nil {
		t.Fatalf("pgtest: create database %s: %v", db.Name, err)
	}
	return db
}

// databaseName names the test, for people who look at the log, and is unique.
func databaseName(test string) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(test))
	return name[:min(len(name), 40)] + "_" + strings.ToLower(rand.Text()[:12])
}

func withUser(dsn, user string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return "", err
	}
	u.User = url.User(user)
	return u.String(), nil
}

// admin runs one statement in the database postgres, as the superuser.
func (db *Database) admin(ctx context.Context, sql string) error {
	ctx, cancel := context.WithTimeout(ctx, opTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, db.Server.SocketDSN("postgres"))
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

// open makes the pool behind Exec and QueryInt, which connects when used.
func (db *Database) open(t testing.TB) {
	t.Helper()
	db.pool = db.PoolConfig(t, func(c *pgxpool.Config) {
		c.MaxConns = 4
		// The server may have been restarted in between.
		c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return true }
	})
}

// Pool opens a pool of at most eight connections, closed at the test's end.
func (db *Database) Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return db.PoolConfig(t, func(*pgxpool.Config) {})
}

// PoolConfig is Pool with a say in its configuration.
func (db *Database) PoolConfig(t testing.TB, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	return OpenPool(t, db.DSN, change)
}

// OpenPool opens a pool on any database, of at most eight connections unless
// change says otherwise, closed at the test's end. A connection that the test
// has not given back by then fails it.
func OpenPool(t testing.TB, dsn string, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	cfg.MaxConns = 8
	change(cfg)
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatalf("pgtest: open a pool: %v", err)
	}
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			pool.Close()
		}()
		select {
		case <-closed:
		case <-time.After(10 * time.Second):
			t.Errorf("pgtest: the test has not given back %d connections of a pool", pool.Stat().AcquiredConns())
		}
	})
	return pool
}

// Conn opens a connection, closed at the test's end.
func (db *Database) Conn(t testing.TB) *pgx.Conn {
	t.Helper()
	return Connect(t, db.DSN)
}

// SuperuserConn opens a connection as the superuser, closed at the test's end.
func (db *Database) SuperuserConn(t testing.TB) *pgx.Conn {
	t.Helper()
	return Connect(t, db.SuperuserDSN)
}

// Connect opens a connection to any database, closed at the test's end.
func Connect(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), opTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = conn.Close(ctx) // the test may have broken it
	})
	return conn
}

// Exec runs a statement on a connection of its own choice.
func (db *Database) Exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), opTimeout)
	defer cancel()
	if _, err := db.pool.Exec(ctx, sql, args...); err != nil {
		t.Fatalf("exec %s: %v", sql, err)
	}
}

// SuperuserExec runs a statement in the database as the superuser.
func (db *Database) SuperuserExec(t testing.TB, sql string, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), opTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, db.SuperuserDSN)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	_, err = conn.Exec(ctx, sql, args...)
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		t.Fatalf("exec %s: %v", sql, err)
	}
}

// QueryInt returns the one number that a query gives.
func (db *Database) QueryInt(t testing.TB, sql string, args ...any) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), opTimeout)
	defer cancel()
	var n int64
	if err := db.pool.QueryRow(ctx, sql, args...).Scan(&n); err != nil {
		t.Fatalf("query %s: %v", sql, err)
	}
	return n
}
