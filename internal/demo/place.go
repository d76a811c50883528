package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgserver"
)

// closeTimeout bounds cleaning up, which has time of its own: an interrupted run has none left.
const closeTimeout = 30 * time.Second

// place is where the demo happens: a database, and in it two schemas of the demo's own.
type place struct {
	dsn      string
	schema   string // of the installation
	business string // of the business tables
	keep     bool
	server   *pgserver.Server // nil: somebody else's
	pool     *pgxpool.Pool
	client   *sqlstreams.Client
}

// openPlace finds or starts a server, installs SQLStreams and makes the business tables.
func openPlace(ctx context.Context, s *story, o *Options) (_ *place, err error) {
	name := "sqlstreams_demo_" + strings.ToLower(rand.Text()[:8])
	p := &place{dsn: o.DSN, schema: name, business: name + "_shop", keep: o.Keep}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if err := p.findServer(ctx, s); err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(p.dsn)
	if err != nil {
		// pgx's error repeats the DSN, which may hold a password.
		return nil, errors.New("the database's address cannot be parsed")
	}
	config.MaxConns = 4
	if p.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	if err := p.createTables(ctx); err != nil {
		return nil, fmt.Errorf("make the business tables: %w", err)
	}
	logger := slog.New(slog.NewJSONHandler(&lines{each: func(l []byte) { s.tell(logged("this process", l)) }}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if p.client, err = sqlstreams.NewClient(ctx, p.pool, &sqlstreams.ClientConfig{Schema: p.schema, Logger: logger}); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *place) findServer(ctx context.Context, s *story) error {
	after := "dropped at the end"
	if p.keep {
		after = "kept"
	}
	if p.dsn == "" {
		server, err := pgserver.Start(ctx, pgserver.Options{})
		if err != nil {
			return err
		}
		p.server, p.dsn = server, server.DSN("postgres")
		s.tell(say(plain, "server", "no database is given, so a disposable PostgreSQL %s on %s, removed at the end", server.Version(), server.Addr()))
		return nil
	}
	s.tell(say(plain, "server", "the given database; schemas %s and %s, %s", p.schema, p.business, after))
	return nil
}

// The business tables. The payment's id is the key of what handlers do, so that to do it again changes a row and adds none. runs says how often
// it was done: that a message ran again is a figure and not a guess.
const tables = `
create schema {business};
create table {business}.payments (id bigint generated always as identity primary key, card text not null, bank text not null, cents bigint not null);
create table {business}.bank (name text primary key);
create table {business}.run (id bigint generated always as identity primary key, group_name text not null, payment_id bigint not null, message_id bigint not null,
	attempt integer not null, pid integer not null, began_at timestamptz not null default clock_timestamp(), ended_at timestamptz, error text);
create index on {business}.run (group_name, payment_id);
create table {business}.charge (payment_id bigint primary key, message_id bigint not null, runs integer not null default 1, done_at timestamptz not null default clock_timestamp());
create table {business}.audit (payment_id bigint primary key, message_id bigint not null, runs integer not null default 1, done_at timestamptz not null default clock_timestamp())`

func (p *place) createTables(ctx context.Context) error {
	_, err := p.pool.Exec(ctx, p.sql(tables))
	return err
}

// sql puts the names of the schemas into a statement.
func (p *place) sql(text string) string { return expand(text, p.schema, p.business) }

func expand(text, schema, business string) string {
	return strings.NewReplacer("{schema}", quote(schema), "{business}", quote(business)).Replace(text)
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// one reads a row into the given targets; whether there was one it says.
func (p *place) one(ctx context.Context, sql string, args []any, into ...any) (bool, error) {
	err := p.pool.QueryRow(ctx, p.sql(sql), args...).Scan(into...)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at the tables: %w", err)
	}
	return true, nil
}

// close removes what the demo made.
func (p *place) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if p.client != nil {
		p.client.Close(ctx)
	}
	var errs []error
	if p.pool != nil {
		// A server that goes takes its schemas along.
		for _, schema := range []string{p.business, p.schema} {
			if p.server != nil || p.keep {
				break
			}
			if _, err := p.pool.Exec(ctx, "drop schema if exists "+quote(schema)+" cascade"); err != nil {
				errs = append(errs, fmt.Errorf("drop schema %s: %w", schema, err))
			}
		}
		p.pool.Close()
	}
	if p.server != nil {
		errs = append(errs, p.server.Close())
	}
	return errors.Join(errs...)
}
