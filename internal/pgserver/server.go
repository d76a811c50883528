package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// startTimeout bounds a start whose context has no deadline. Recovery after a
// crash is part of a start.
const startTimeout = 2 * time.Minute

// Server is one throw-away server. Its methods may be called from several
// goroutines.
type Server struct {
	bin    Binaries
	as     *account
	folder *folder
	dog    *watchdog
	logs   *logSink
	port   int

	mu     sync.Mutex
	pm     *postmaster // the current or the last one; nil before the first
	closed bool

	closeOnce sync.Once
	closeErr  error
}

// postmaster is one run of the server.
type postmaster struct {
	cmd  *exec.Cmd
	pid  int
	done chan struct{} // closed when it has ended and been waited for
}

func (p *postmaster) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Start makes a server and waits until it answers. ctx bounds the start only;
// Close ends the server.
func Start(ctx context.Context, opts Options) (*Server, error) {
	b := opts.Binaries
	if b == (Binaries{}) {
		found, err := Find(ctx)
		if err != nil {
			return nil, fmt.Errorf("start a PostgreSQL server: %w", err)
		}
		b = found
	}
	s, err := build(ctx, b, opts, func(ctx context.Context, s *Server) error {
		if err := initData(ctx, b, s.DataDir(), s.as); err != nil {
			return err
		}
		settings := []map[string]string{baseSettings(opts.Durable), opts.Settings}
		return writeConfig(s.DataDir(), s.as, settings, opts, true)
	})
	if err != nil {
		return nil, fmt.Errorf("start a PostgreSQL %d server: %w", b.Major, err)
	}
	return s, nil
}

// build makes the folder, has fill put the data into it, and starts the
// server. When any of it fails nothing is left.
func build(ctx context.Context, b Binaries, opts Options, fill func(context.Context, *Server) error) (*Server, error) {
	ctx, cancel := withDefaultTimeout(ctx, startTimeout)
	defer cancel()
	as, err := serverAccount()
	if err != nil {
		return nil, err
	}
	if err := as.reach(b.Dir); err != nil {
		return nil, fmt.Errorf("PostgreSQL's programs: %w", err)
	}
	f, err := newFolder(ctx, parents(opts), as)
	if err != nil {
		return nil, err
	}
	s := &Server{bin: b, as: as, folder: f}
	if err := s.firstStart(ctx, opts, fill); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Server) firstStart(ctx context.Context, opts Options, fill func(context.Context, *Server) error) (err error) {
	if s.dog, err = startWatchdog(s.folder.path); err != nil {
		return err
	}
	if s.logs, err = newLogSink(s.LogPath(), opts.Log); err != nil {
		return err
	}
	if err := fill(ctx, s); err != nil {
		return err
	}
	if s.port = opts.Port; s.port != 0 {
		return s.StartAgain(ctx)
	}
	// Between choosing a port and the server's use of it somebody else can take it.
	for tries := 5; ; tries-- {
		if s.port, err = freePort(ctx); err != nil {
			return err
		}
		err = s.StartAgain(ctx)
		if err == nil || tries == 1 || !portTaken(err) {
			return err
		}
	}
}

// freePort chooses a port below those that systems hand to outgoing
// connections, as one of them would otherwise now and then sit on the port
// while the server is down.
func freePort(ctx context.Context) (int, error) {
	const low, high = 15000, 32000
	var lc net.ListenConfig
	for range 200 {
		port := low + rand.IntN(high-low)
		ln, err := lc.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		if err := ln.Close(); err != nil {
			return 0, err
		}
		return port, nil
	}
	return 0, fmt.Errorf("no free port between %d and %d on 127.0.0.1", low, high)
}

func portTaken(err error) bool {
	return strings.Contains(err.Error(), "could not bind") || strings.Contains(err.Error(), "could not create any TCP/IP sockets")
}

// StartAgain starts a server that is down, on the same port and data, and
// waits until it answers.
func (s *Server) StartAgain(ctx context.Context) error {
	ctx, cancel := withDefaultTimeout(ctx, startTimeout)
	defer cancel()
	pm, err := s.spawn()
	if err != nil {
		return err
	}
	if err := s.waitReady(ctx, pm); err != nil {
		return fmt.Errorf("%w; its log ends:\n%s", err, tail(s.LogPath()))
	}
	return nil
}

// spawn starts a postmaster.
func (s *Server) spawn() (*postmaster, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("the server is closed")
	}
	if s.pm != nil && !s.pm.ended() {
		return nil, errors.New("the server is running")
	}
	if err := s.removeStale(); err != nil {
		return nil, err
	}
	cmd := exec.Command(s.bin.path("postgres"),
		"-D", s.DataDir(),
		"-c", "port="+strconv.Itoa(s.port),
		"-c", `unix_socket_directories="`+s.folder.path+`"`)
	cmd.Dir = s.folder.path
	cmd.Env = environment(s.folder.path)
	cmd.Stdout, cmd.Stderr = s.logs.output, s.logs.output
	cmd.SysProcAttr = sysProcAttr(s.as)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	pm := &postmaster{cmd: cmd, pid: cmd.Process.Pid, done: make(chan struct{})}
	s.pm = pm
	err := s.dog.guard(pm.pid)
	go s.await(pm)
	if err != nil {
		// A server without its watchdog could outlive us.
		return nil, errors.Join(err, signal(pm.pid, sigKill))
	}
	return pm, nil
}

// await collects the postmaster when it ends.
func (s *Server) await(pm *postmaster) {
	// How it ended is in its log, and for tests that kill it no news.
	_ = pm.cmd.Wait()
	// A watchdog that is gone guards nothing, so there is nothing to tell it.
	_ = s.dog.guard(0)
	close(pm.done)
}

// removeStale removes what a killed postmaster left. The server would do the
// same, unless its pid has been given to another process of the user by now;
// here it is known that the postmaster has ended and its children with it.
func (s *Server) removeStale() error {
	for _, name := range []string{
		filepath.Join(s.DataDir(), "postmaster.pid"),
		s.socketPath() + ".lock",
		s.socketPath(),
	} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// waitReady waits until the server answers a connection.
func (s *Server) waitReady(ctx context.Context, pm *postmaster) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		if pm.ended() {
			return errors.New("the server ended while starting")
		}
		if last = s.ping(ctx); last == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the server does not answer: %w (last: %v)", ctx.Err(), last)
		case <-pm.done:
		case <-tick.C:
		}
	}
}

// ping connects once. A server that refuses to authenticate us is ready too:
// Options.HBA may want that.
func (s *Server) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.SocketDSN("postgres"))
	if err != nil {
		var refused *pgconn.PgError
		if errors.As(err, &refused) && strings.HasPrefix(refused.Code, "28") {
			return nil
		}
		return err
	}
	return conn.Close(ctx)
}

// DSN returns the URL of a database over TCP, as the superuser.
func (s *Server) DSN(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.User(Superuser), Path: "/" + database,
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// SocketDSN returns the URL of a database over the unix socket, as the superuser.
func (s *Server) SocketDSN(database string) string {
	q := url.Values{"host": {s.folder.path}, "port": {strconv.Itoa(s.port)}, "sslmode": {"disable"}}
	u := url.URL{Scheme: "postgres", User: url.User(Superuser), Path: "/" + database, RawQuery: q.Encode()}
	return u.String()
}

// Port returns the TCP port, which stays the same while the server lives.
func (s *Server) Port() int { return s.port }

// Addr returns host and port, for net.Dial.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Dir returns the server's folder. The unix socket is in it.
func (s *Server) Dir() string { return s.folder.path }

// DataDir returns the data folder.
func (s *Server) DataDir() string { return filepath.Join(s.folder.path, dataFolder) }

// LogPath returns the file that holds the server's log.
func (s *Server) LogPath() string { return filepath.Join(s.folder.path, logFile) }

// Version returns the server's version in full.
func (s *Server) Version() string { return s.bin.Version }

// Major returns the server's major version.
func (s *Server) Major() int { return s.bin.Major }

// PID returns the postmaster's process id, 0 while the server is down.
func (s *Server) PID() int {
	if pm := s.running(); pm != nil {
		return pm.pid
	}
	return 0
}

// running returns the postmaster, nil while the server is down.
func (s *Server) running() *postmaster {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pm == nil || s.pm.ended() {
		return nil
	}
	return s.pm
}

func (s *Server) socketPath() string {
	return filepath.Join(s.folder.path, ".s.PGSQL."+strconv.Itoa(s.port))
}

// withDefaultTimeout bounds a context that has no deadline.
func withDefaultTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}
