package cli

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/schema"
	"github.com/sqlstreams/sqlstreams/internal/store"
)

// connection is a client with the pool below it.
type connection struct {
	*sqlstreams.Client
	pool  *pgxpool.Pool
	names *schema.Names
}

// openOptions say what a command needs of its connection.
type openOptions struct {
	migrate bool // creates or upgrades the schema if need be
	listen  bool // consumes as a group, so announcements are worth a connection
	strict  bool // never changes a stored declaration
	quiet   bool // nothing is logged
}

// closeTimeout bounds what closing waits for.
const closeTimeout = 30 * time.Second

// connect opens a pool and a client on it. ctx bounds the opening only.
func (a *app) connect(ctx context.Context, o openOptions) (*connection, error) {
	names, err := schema.NewNames(a.flags.schema)
	if err != nil {
		return nil, err
	}
	pool, err := a.openPool(ctx)
	if err != nil {
		return nil, err
	}
	client, err := sqlstreams.NewClient(ctx, pool, &sqlstreams.ClientConfig{
		Schema: a.flags.schema, DisableManager: true, ManualMigration: !o.migrate, PollOnly: !o.listen, StrictRegistration: o.strict, Logger: a.logger(o.quiet),
	})
	if err != nil {
		pool.Close()
		return nil, forOperators(err)
	}
	return &connection{Client: client, pool: pool, names: names}, nil
}

// forOperators leaves out what an error tells programmers; the hint below it says what to do.
func forOperators(err error) error {
	e, ok := errors.AsType[*diag.Error](err)
	if !ok || e.Code != diag.SchemaOld {
		return err
	}
	c := *e
	c.Detail, _, _ = strings.Cut(e.Detail, ": run `")
	return &c
}

// close sends what is on its way and gives everything back, also when the command was interrupted.
func (c *connection) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	c.Close(ctx)
	c.pool.Close()
}

// openPool opens connections to the database, none of them yet.
func (a *app) openPool(ctx context.Context) (*pgxpool.Pool, error) {
	const op, object = "connect to", "the database"
	dsn, source := a.dsn()
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		// The driver's text repeats the string, which may hold a password.
		return nil, &diag.Error{Code: diag.InvalidOption, Op: op, Object: object, Detail: source + " cannot be parsed: it is postgres://user@host:port/database or host=… dbname=… (its text is withheld)"}
	}
	config.ConnConfig.RuntimeParams["application_name"] = "sqlstreams-cli"
	if a.flags.readOnly {
		config.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = 10 * time.Second
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	return pool, store.ClassifyNoEffect(op, object, err)
}

// dsn returns the connection string and what gave it. An empty string lets the driver read the PG* variables.
func (a *app) dsn() (dsn, source string) {
	if a.flags.database != "" {
		return a.flags.database, "--database"
	}
	if dsn := a.env.Getenv("DATABASE_URL"); dsn != "" {
		return dsn, "DATABASE_URL"
	}
	return "", "what the PG* variables say"
}

// nowhere: nobody said where the database is.
func (a *app) nowhere() bool {
	dsn, _ := a.dsn()
	return dsn == "" && a.env.Getenv("PGHOST") == "" && a.env.Getenv("PGSERVICE") == ""
}

func (a *app) logger(quiet bool) *slog.Logger {
	var w io.Writer = a.env.Stderr
	if quiet {
		w = io.Discard
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// maxPayload is the stream's limit, which bounds a line of input.
func (c *connection) maxPayload(ctx context.Context, stream string) (int, error) {
	info, err := c.GetStream(ctx, stream)
	if err != nil {
		return 0, err
	}
	return info.MaxPayload, nil
}
