package sqlstreamstest

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/schema"
)

// Options describe an installation. Nil or zero: their defaults.
type Options struct {
	// Client describes the client. Its Schema stays unset. ControlConns is 2 by default; Logger is by default the test's output, with warnings and errors only.
	Client sqlstreams.ClientConfig
	// KeepOnFailure leaves the schema of a test that failed where it is, for a look into its tables, and says its name. Default off.
	KeepOnFailure bool
}

// Installation is a throw-away installation: a schema of its own and a client on it.
type Installation struct {
	client *sqlstreams.Client
	pool   *pgxpool.Pool
	schema string
}

// Client returns the client. It is closed when the test ends.
func (i *Installation) Client() *sqlstreams.Client { return i.client }

// Pool returns the pool that the installation was made on.
func (i *Installation) Pool() *pgxpool.Pool { return i.pool }

// Schema returns the name of the schema, for a further client on the same installation (ClientConfig.Schema), or another process. A further client must be closed before the test ends.
func (i *Installation) Schema() string { return i.schema }

// poolConns is how many connections a pool of Open has: a server takes 100 by default, and many tests run at once.
const poolConns = 4

// Open is New on a pool of its own, of four connections at most unless the DSN says otherwise (pool_max_conns), which is closed when the test ends.
func Open(t testing.TB, dsn string, opts *Options) *Installation {
	t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		// pgx's error repeats the DSN, which may hold a password.
		t.Fatal("sqlstreamstest: the DSN cannot be parsed")
	}
	if !strings.Contains(dsn, "pool_max_conns") {
		config.MaxConns = poolConns
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatalf("sqlstreamstest: open a pool: %v", err)
	}
	t.Cleanup(pool.Close)
	return New(t, pool, opts)
}

// New makes an installation in the database that the pool leads to, in a schema with a name of its own, and opens a client on it. When the test ends the client is closed and the schema dropped. The pool stays the
// caller's and can serve many tests at once. The database's role must be allowed to create schemas.
//
// Each installation takes two connections beside the pool's: bound what runs in parallel (go test -parallel) by the server's max_connections.
func New(t testing.TB, pool *pgxpool.Pool, opts *Options) *Installation {
	t.Helper()
	var o Options
	if opts != nil {
		o = *opts
	}
	if pool == nil {
		t.Fatal("sqlstreamstest: the pool is nil")
	}
	if o.Client.Schema != "" {
		t.Fatalf("sqlstreamstest: Options.Client has a Schema, %q; the installation's has a name of its own", o.Client.Schema)
	}
	i := &Installation{pool: pool, schema: "sqlstreamstest_" + strings.ToLower(rand.Text()[:16])}
	if err := i.create(t.Context()); err != nil {
		t.Fatalf("sqlstreamstest: %v", err)
	}
	// Registered before the client is closed, so it runs after.
	t.Cleanup(func() {
		t.Helper()
		if o.KeepOnFailure && t.Failed() {
			t.Logf("sqlstreamstest: schema %s is kept", i.schema)
			return
		}
		if err := i.drop(); err != nil {
			t.Errorf("sqlstreamstest: drop schema %s: %v", i.schema, err)
		}
	})
	config := o.Client
	config.Schema = i.schema
	config.ControlConns = cmp.Or(config.ControlConns, 2)
	if config.Logger == nil {
		out := &output{t: t}
		t.Cleanup(out.end)
		config.Logger = slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	client, err := sqlstreams.NewClient(t.Context(), pool, &config)
	if err != nil {
		t.Fatalf("sqlstreamstest: open the client: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		client.Close(ctx)
	})
	i.client = client
	return i
}

func (i *Installation) create(ctx context.Context) error {
	names, err := schema.NewNames(i.schema)
	if err != nil {
		return err
	}
	conn, err := i.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Release()
	return schema.Create(ctx, conn, names)
}

// dropWait is how long the drop waits for a lock: a transaction that the test left open would keep it waiting for good.
const dropWait = "10s"

// drop runs when the test's context has ended.
func (i *Installation) drop() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return pgx.BeginFunc(ctx, i.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `select set_config('lock_timeout', $1, true), set_config('synchronous_commit', 'off', true), set_config('client_min_messages', 'warning', true)`, dropWait); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `drop schema `+pgx.Identifier{i.schema}.Sanitize()+` cascade`)
		return err
	})
}

// patience is how long a helper waits for what should happen.
const patience = 30 * time.Second
