package docs_test

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

func TestMain(m *testing.M) { pgtest.Main(m) }

// patience bounds what a test waits for; a loaded machine needs several times what an idle one does.
const patience = 90 * time.Second

// open returns a client on a database of the test's own, and the pool that it was given.
func open(t *testing.T) (*sqlstreams.Client, *pgxpool.Pool, *pgtest.Database) {
	t.Helper()
	db := pgtest.NewDatabase(t)
	pool := db.Pool(t)
	return openOn(t, pool, nil), pool, db
}

func openOn(t *testing.T, pool *pgxpool.Pool, config *sqlstreams.ClientConfig) *sqlstreams.Client {
	t.Helper()
	var cfg sqlstreams.ClientConfig
	if config != nil {
		cfg = *config
	}
	cfg.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	client, err := sqlstreams.NewClient(t.Context(), pool, &cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(context.Background()) })
	return client
}

func register[T any](t *testing.T, client *sqlstreams.Client, name string) *sqlstreams.Stream[T] {
	t.Helper()
	stream, err := sqlstreams.RegisterStream[T](t.Context(), client, name, nil)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// running starts a Consume call, which the test's end stops.
func running(t *testing.T, consume func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- consume(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Consume: %v", err)
		}
	})
}

// page returns the text of a page.
func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// finished waits until the group has recorded everything that was produced before, dead letters included.
func finished(t *testing.T, client *sqlstreams.Client, db *pgtest.Database, stream, group string) {
	t.Helper()
	pgtest.Eventually(t, patience, "group "+group+" has finished", func() bool {
		s, err := client.GetGroup(t.Context(), stream, group)
		if err != nil {
			t.Fatal(err)
		}
		return s.Committed == s.Head && s.Pending+s.Running+s.Waiting == 0 && db.QueryInt(t, `select count(*) from sqlstreams.inbox`) == 0
	})
}

// tally counts how often each thing happened.
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
