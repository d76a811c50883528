package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgserver"
)

const (
	streamName   = "go.source-files"
	countLine    = "count-lines"
	countImport  = "count-imports"
	closeTimeout = 30 * time.Second
)

// place is where the demo happens: a database, and in it one schema for SQLStreams and one for the tables of the application. Both are the
// demo's own and are dropped with it.
type place struct {
	dsn    string
	schema string           // of SQLStreams
	app    string           // of the application's tables
	server *pgserver.Server // nil: somebody else's
	pool   *pgxpool.Pool    // the parent's
}

// openPlace finds or starts a server and makes the application's tables.
func openPlace(ctx context.Context, tale *story) (_ *place, err error) {
	name := "sqlstreams_demo_" + strings.ToLower(rand.Text()[:8])
	p := &place{dsn: os.Getenv("DATABASE_URL"), schema: name, app: name + "_app"}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.dsn != "" {
		tale.say("server", "the one that DATABASE_URL names")
		tale.more("schemas %s and %s, dropped at the end", p.schema, p.app)
	} else if err := p.startServer(ctx, tale); err != nil {
		return nil, err
	}
	if p.pool, err = pgxpool.New(ctx, p.dsn); err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	if err := p.createTables(ctx); err != nil {
		return nil, fmt.Errorf("make the application's tables: %w", err)
	}
	return p, nil
}

func (p *place) startServer(ctx context.Context, tale *story) error {
	binaries, err := pgserver.Find(ctx)
	if err != nil {
		return fmt.Errorf("there is no PostgreSQL to use; make demo installs one, or DATABASE_URL names one that runs: %w", err)
	}
	if p.server, err = pgserver.Start(ctx, pgserver.Options{Binaries: binaries}); err != nil {
		return err
	}
	p.dsn = p.server.DSN("postgres")
	tale.say("server", "no DATABASE_URL, so a throw-away one on %s, removed at the end", p.server.Addr())
	tale.more("PostgreSQL %s", p.server.Version())
	return nil
}

// createTables makes what the handlers write to. The path is the primary key: to handle a file twice changes its row and adds none. How often it
// was handled is counted, so that "run again" is a figure and not a guess.
func (p *place) createTables(ctx context.Context) error {
	for _, sql := range []string{
		`create schema %s`,
		`create table %s.file_lines (path text primary key, lines bigint not null, pid integer not null, handled integer not null default 1)`,
		`create table %s.file_imports (path text primary key, imports text[] not null, pid integer not null, handled integer not null default 1)`,
	} {
		if _, err := p.pool.Exec(ctx, fmt.Sprintf(sql, quote(p.app))); err != nil {
			return err
		}
	}
	return nil
}

// client opens the installation.
func (p *place) client(ctx context.Context, tale *story) (*sqlstreams.Client, error) {
	log := &lines{each: func(line []byte) { tale.note("warning", "%s", line) }}
	return sqlstreams.NewClient(ctx, p.pool, &sqlstreams.ClientConfig{Schema: p.schema, Logger: quietLogger(log)})
}

// close removes what the demo made. It has time of its own, because an interrupted demo has none left.
func (p *place) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var errs []error
	if p.pool != nil {
		// A server that goes takes its schemas along.
		for _, schema := range []string{p.app, p.schema} {
			if p.server != nil {
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

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }
