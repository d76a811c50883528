package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams/internal/pgserver"
)

// Owner is the role that databases belong to.
const Owner = "app"

// startTimeout bounds what a test waits for a server.
const startTimeout = 2 * time.Minute

// shared is the binary's server. It is a package variable because package
// testing hands nothing from TestMain to a test; only Main and the functions
// below use it.
var shared sharedServer

type sharedServer struct {
	mu      sync.Mutex
	opts    pgserver.Options
	server  *pgserver.Server
	err     error // why there is none
	started bool
	closed  bool
}

// Option changes what Main does.
type Option func(*pgserver.Options)

// WithServer sets the options of the shared server. Default: the zero Options.
func WithServer(opts pgserver.Options) Option {
	return func(o *pgserver.Options) { *o = opts }
}

// WithSetting sets one setting of the shared server.
func WithSetting(name, value string) Option {
	return func(o *pgserver.Options) {
		settings := map[string]string{name: value}
		for n, v := range o.Settings {
			if n != name {
				settings[n] = v
			}
		}
		o.Settings = settings
	}
}

// Main runs the tests of a binary, ends the shared server and exits.
func Main(m *testing.M, opts ...Option) {
	shared.configure(opts)
	code := m.Run()
	if err := shared.close(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func (s *sharedServer) configure(opts []Option) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, opt := range opts {
		opt(&s.opts)
	}
}

func (s *sharedServer) get() (*pgserver.Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("the shared server is closed")
	}
	if !s.started {
		s.started = true
		s.server, s.err = startShared(s.opts)
	}
	return s.server, s.err
}

// startShared starts a server that outlives the test which asked first.
func startShared(opts pgserver.Options) (*pgserver.Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	server, err := pgserver.Start(ctx, opts)
	if err != nil {
		return nil, err
	}
	if err := createOwner(ctx, server); err != nil {
		return nil, errors.Join(err, server.Close())
	}
	return server, nil
}

func (s *sharedServer) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.server == nil {
		return nil
	}
	return s.server.Close()
}

// createOwner makes the role Owner unless the server has it.
func createOwner(ctx context.Context, server *pgserver.Server) error {
	conn, err := pgx.Connect(ctx, server.SocketDSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // what was asked of it is known by then
	var exists bool
	if err := conn.QueryRow(ctx, "select exists (select from pg_roles where rolname = $1)", Owner).Scan(&exists); err != nil || exists {
		return err
	}
	_, err = conn.Exec(ctx, "create role "+Owner+" login createrole createdb")
	return err
}

// SharedServer returns the server that the binary's tests share. A test must
// not stop, pause or break it.
func SharedServer(t testing.TB) *pgserver.Server {
	t.Helper()
	server, err := shared.get()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return server
}

// NewServer starts a server for one test, which may do with it what it likes.
// It is closed at the test's end; if the test failed, the end of the server's
// log is in its output.
func NewServer(t testing.TB, opts pgserver.Options) *pgserver.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	server, err := pgserver.Start(ctx, opts)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	closeAtEnd(t, server)
	if err := createOwner(ctx, server); err != nil {
		t.Fatalf("pgtest: create role %s: %v", Owner, err)
	}
	return server
}

// NewStandby starts a hot standby of a server, closed at the test's end.
func NewStandby(t testing.TB, primary *pgserver.Server, opts pgserver.Options) *pgserver.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	standby, err := primary.Standby(ctx, opts)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	closeAtEnd(t, standby)
	return standby
}

func closeAtEnd(t testing.TB, server *pgserver.Server) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of the server on port %d ends:\n%s", server.Port(), server.LogTail())
		}
		if err := server.Close(); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
}
