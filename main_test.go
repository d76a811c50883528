package sqlstreams_test

import (
	"context"
	"io"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(envRole); role != "" {
		playRole(role)
	}
	pgtest.Main(m)
}

// WelcomeEmail is the payload of the quickstart.
type WelcomeEmail struct {
	UserID string `json:"user_id"`
}

// quiet is a logger for tests that do not look at logs.
func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// open returns a client on a database of the test's own.
func open(t testing.TB, config *sqlstreams.ClientConfig) (*sqlstreams.Client, *pgtest.Database, *pgxpool.Pool) {
	t.Helper()
	db := pgtest.NewDatabase(t)
	pool := db.Pool(t)
	return openOn(t, pool, config), db, pool
}

func openOn(t testing.TB, pool *pgxpool.Pool, config *sqlstreams.ClientConfig) *sqlstreams.Client {
	t.Helper()
	var cfg sqlstreams.ClientConfig
	if config != nil {
		cfg = *config
	}
	if cfg.Logger == nil {
		cfg.Logger = quiet()
	}
	client, err := sqlstreams.NewClient(t.Context(), pool, &cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		client.Close(ctx)
	})
	return client
}

func register[T any](t testing.TB, client *sqlstreams.Client, name string) *sqlstreams.Stream[T] {
	t.Helper()
	stream, err := sqlstreams.RegisterStream[T](t.Context(), client, name, nil)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func group[T any](t testing.TB, stream *sqlstreams.Stream[T], name string, config *sqlstreams.ConsumerConfig) *sqlstreams.Consumer[T] {
	t.Helper()
	c, err := stream.RegisterConsumer(t.Context(), name, config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// running is a Consume call in the background.
type running struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// consume starts a Consume call; the test's end stops it.
func consume[T any](t testing.TB, c *sqlstreams.Consumer[T], opts *sqlstreams.ConsumeOptions, f func(context.Context, *T) error) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = c.Consume(ctx, f, opts)
	}()
	t.Cleanup(func() { r.stop(t) })
	return r
}

func (r *running) stop(t testing.TB) {
	t.Helper()
	r.cancel()
	select {
	case <-r.done:
	case <-time.NewTimer(40 * time.Second).C:
		t.Error("Consume did not return after its context had ended")
		return
	}
	if r.err != nil {
		t.Errorf("Consume: %v", r.err)
	}
}

// tally counts how often each key was seen.
type tally struct {
	mu   sync.Mutex
	seen map[string]int
}

func (c *tally) add(key string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[string]int{}
	}
	c.seen[key]++
	return c.seen[key]
}

func (c *tally) distinct() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.seen)
}

func (c *tally) count(key string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[key]
}

func (c *tally) total() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, k := range c.seen {
		n += k
	}
	return n
}
