package pgserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Mode is a way to stop a server.
type Mode int

// The modes of pg_ctl stop.
const (
	Fast      Mode = iota // ends sessions, rolling back what is open
	Smart                 // waits until all clients have gone
	Immediate             // ends at once; the next start recovers as after a crash
)

func (m Mode) String() string {
	switch m {
	case Fast:
		return "fast"
	case Smart:
		return "smart"
	case Immediate:
		return "immediate"
	}
	return fmt.Sprintf("Mode(%d)", int(m))
}

func (m Mode) signal() (syscall.Signal, error) {
	switch m {
	case Fast:
		return sigInt, nil
	case Smart:
		return sigTerm, nil
	case Immediate:
		return sigQuit, nil
	}
	return 0, fmt.Errorf("%v is no way to stop a server", m)
}

// stopTimeout bounds an operation whose context has no deadline.
const stopTimeout = time.Minute

// errDown is what operations on a running server return when it is down.
var errDown = errors.New("the server is down")

// Stop stops the server and waits until it has ended. When ctx ends first, as
// it may with Smart and a client that stays, the server is still stopping.
func (s *Server) Stop(ctx context.Context, mode Mode) error {
	ctx, cancel := withDefaultTimeout(ctx, stopTimeout)
	defer cancel()
	pm := s.running()
	if pm == nil {
		return errDown
	}
	if err := s.stop(ctx, pm, mode); err != nil {
		return fmt.Errorf("stop the server (%v): %w; its log ends:\n%s", mode, err, tail(s.LogPath()))
	}
	return nil
}

func (s *Server) stop(ctx context.Context, pm *postmaster, mode Mode) error {
	sig, err := mode.signal()
	if err != nil {
		return err
	}
	if err := signal(pm.pid, sig); err != nil {
		return err
	}
	// A paused process does not see the signal.
	if err := resume(ctx, pm); err != nil {
		return err
	}
	select {
	case <-pm.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Restart stops the server and starts it again, on the same port and data.
func (s *Server) Restart(ctx context.Context, mode Mode) error {
	if err := s.Stop(ctx, mode); err != nil {
		return err
	}
	return s.StartAgain(ctx)
}

// Kill9 kills the postmaster and all its children with SIGKILL and returns
// when they are gone, so that StartAgain finds nobody in the data folder.
// Clients get no last word, as when the machine fails.
func (s *Server) Kill9(ctx context.Context) error {
	ctx, cancel := withDefaultTimeout(ctx, stopTimeout)
	defer cancel()
	pm := s.running()
	if pm == nil {
		return errDown
	}
	if err := kill9(ctx, pm); err != nil {
		return fmt.Errorf("kill the server: %w", err)
	}
	return nil
}

func kill9(ctx context.Context, pm *postmaster) error {
	// A stopped postmaster starts no child that the list would miss, and does
	// not notice that its children die. They go first, as they notice that it
	// does and would tell their clients.
	family, err := freeze(ctx, pm)
	if err != nil {
		return err
	}
	for _, p := range append(family, process{pid: pm.pid}) {
		if err := signal(p.pid, sigKill); err != nil {
			return err
		}
	}
	select {
	case <-pm.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	return waitGone(ctx, family)
}

// freeze stops the postmaster with SIGSTOP and lists its children.
func freeze(ctx context.Context, pm *postmaster) ([]process, error) {
	if err := signal(pm.pid, sigStop); err != nil {
		return nil, err
	}
	if err := waitStopped(ctx, pm.pid); err != nil {
		return nil, err
	}
	return children(ctx, pm.pid)
}

// KillBackend kills one child of the postmaster with SIGKILL, as the kernel
// does when memory runs out. The server then ends all its sessions and
// recovers by itself.
func (s *Server) KillBackend(ctx context.Context, pid int) error {
	pm := s.running()
	if pm == nil {
		return errDown
	}
	family, err := children(ctx, pm.pid)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(family, func(p process) bool { return p.pid == pid }) {
		return fmt.Errorf("process %d is no backend of this server", pid)
	}
	return signal(pid, sigKill)
}

// Pause stops the postmaster and all its children in their tracks (SIGSTOP).
// Connections stay open and nobody answers.
func (s *Server) Pause(ctx context.Context) error {
	ctx, cancel := withDefaultTimeout(ctx, stopTimeout)
	defer cancel()
	pm := s.running()
	if pm == nil {
		return errDown
	}
	family, err := freeze(ctx, pm)
	if err != nil {
		return fmt.Errorf("pause the server: %w", err)
	}
	pids := make([]int, 0, len(family))
	for _, p := range family {
		if err := signal(p.pid, sigStop); err != nil {
			return fmt.Errorf("pause the server: %w", err)
		}
		pids = append(pids, p.pid)
	}
	return waitStopped(ctx, pids...)
}

// Resume lets a paused server go on.
func (s *Server) Resume(ctx context.Context) error {
	pm := s.running()
	if pm == nil {
		return errDown
	}
	return resume(ctx, pm)
}

func resume(ctx context.Context, pm *postmaster) error {
	family, err := children(ctx, pm.pid)
	if err != nil {
		return fmt.Errorf("resume the server: %w", err)
	}
	for _, p := range append(family, process{pid: pm.pid}) {
		if err := signal(p.pid, sigCont); err != nil {
			return fmt.Errorf("resume the server: %w", err)
		}
	}
	return nil
}

// Promote makes a standby a primary and returns when it takes writes.
func (s *Server) Promote(ctx context.Context) error {
	ctx, cancel := withDefaultTimeout(ctx, startTimeout)
	defer cancel()
	if err := s.promote(ctx); err != nil {
		return fmt.Errorf("promote the standby: %w; its log ends:\n%s", err, tail(s.LogPath()))
	}
	return nil
}

func (s *Server) promote(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.SocketDSN("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // what was asked of it is known by then
	if _, err := conn.Exec(ctx, "select pg_promote(wait => false)"); err != nil {
		return err
	}
	return poll(ctx, func() (bool, error) {
		var standby bool
		err := conn.QueryRow(ctx, "select pg_is_in_recovery()").Scan(&standby)
		return !standby, err
	})
}

// Close stops the server at once and removes its folder. Calling it again
// returns the same.
func (s *Server) Close() error {
	s.closeOnce.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *Server) close() error {
	s.mu.Lock()
	s.closed = true
	pm := s.pm
	s.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	var errs []error
	if pm != nil {
		errs = append(errs, s.end(ctx, pm))
	}
	if s.logs != nil {
		errs = append(errs, s.logs.close())
	}
	errs = append(errs, s.folder.remove())
	if s.dog != nil {
		errs = append(errs, s.dog.close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close the server: %w", err)
	}
	return nil
}

// end makes sure that nothing of the server is left but files.
func (s *Server) end(ctx context.Context, pm *postmaster) error {
	if !pm.ended() {
		quick, cancel := context.WithTimeout(ctx, 15*time.Second)
		defer cancel()
		if err := s.stop(quick, pm, Immediate); err != nil {
			if err := kill9(ctx, pm); err != nil {
				return err
			}
		}
	}
	f, err := readPIDFile(s.DataDir())
	if err != nil {
		return err
	}
	removeSegment(ctx, f) // there is one only if the postmaster was killed
	return nil
}
