package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	folderPrefix = "sqlstreams-pg-"
	ownerFile    = "owner"
	dataFolder   = "data"
	logFile      = "server.log"
	// Linux allows 107 bytes for a socket's path, others 103.
	maxSocketPath = 99
	socketName    = "/.s.PGSQL.65535"
)

// folder is where one server lives. Its owner file is locked by the process
// that made it for as long as that process lives, so that a folder whose lock
// can be had is one whose maker is dead, whatever pids have been reused and
// whichever container's pids they are.
type folder struct {
	path string
	lock *os.File
}

// parents returns where a server's folder may be, best first.
func parents(opts Options) []string {
	if opts.Parent != "" {
		return []string{opts.Parent}
	}
	list := []string{os.TempDir(), "/tmp", "/var/tmp"}
	// Somebody who set TMPDIR had a reason, and what is measured on a durable
	// server is its disk.
	if os.Getenv("TMPDIR") == "" && !opts.Durable {
		if dir := memoryFolder(4 << 30); dir != "" {
			list = append([]string{dir}, list...)
		}
	}
	return list
}

// newFolder makes a folder under the first parent that will do, after removing
// those that dead processes left there.
func newFolder(ctx context.Context, parents []string, as *account) (*folder, error) {
	var reasons []error
	for _, dir := range parents {
		if err := suits(dir, as); err != nil {
			reasons = append(reasons, err)
			continue
		}
		if err := sweep(ctx, dir); err != nil {
			return nil, fmt.Errorf("remove what dead processes left in %s: %w", dir, err)
		}
		f, err := makeFolder(dir, as)
		if err == nil {
			return f, nil
		}
		reasons = append(reasons, err)
	}
	return nil, fmt.Errorf("no place for the server's folder: %w", errors.Join(reasons...))
}

// suits says whether a server's folder can be in dir.
func suits(dir string, as *account) error {
	if n := len(dir) + 1 + len(folderPrefix) + 10 + len(socketName); n > maxSocketPath {
		return fmt.Errorf("a socket's path in %s would have %d bytes, and %d are allowed", dir, n, maxSocketPath)
	}
	return as.reach(dir)
}

func makeFolder(parent string, as *account) (*folder, error) {
	path, err := os.MkdirTemp(parent, folderPrefix+"*")
	if err != nil {
		return nil, err
	}
	f := &folder{path: path}
	if err := f.claim(as); err != nil {
		return nil, errors.Join(err, f.remove())
	}
	return f, nil
}

// claim locks the owner file before it has its name, so that nobody can find
// it and think its maker dead.
func (f *folder) claim(as *account) error {
	hidden := filepath.Join(f.path, ownerFile+".new")
	lock, err := os.OpenFile(hidden, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	f.lock = lock
	locked, err := tryLock(lock)
	if err != nil {
		return err
	}
	if !locked {
		return fmt.Errorf("%s is locked, though it was made just now", hidden)
	}
	// The pid is for people who look; only the lock decides.
	if _, err := fmt.Fprintln(lock, os.Getpid()); err != nil {
		return err
	}
	if err := os.Rename(hidden, filepath.Join(f.path, ownerFile)); err != nil {
		return err
	}
	return as.own(f.path)
}

// remove removes the folder and gives up its lock.
func (f *folder) remove() error {
	err := os.RemoveAll(f.path)
	if f.lock != nil {
		err = errors.Join(err, f.lock.Close())
		f.lock = nil
	}
	return err
}

// sweep removes the folders in parent whose makers are dead, and ends what
// still runs in them. Other users' folders are left alone.
func sweep(ctx context.Context, parent string) error {
	paths, err := filepath.Glob(filepath.Join(parent, folderPrefix+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range paths {
		errs = append(errs, sweepOne(ctx, path))
	}
	return errors.Join(errs...)
}

func sweepOne(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() {
		return nil // gone since, or not one of ours
	}
	lock, err := os.OpenFile(filepath.Join(path, ownerFile), os.O_RDWR, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Being made just now, being removed, or its maker died in between.
		if uid, _, ok := owner(info); ok && uid == os.Geteuid() && time.Since(info.ModTime()) > 10*time.Minute {
			return os.RemoveAll(path)
		}
		return nil
	case errors.Is(err, fs.ErrPermission):
		return nil // another user's
	case err != nil:
		return err
	}
	defer lock.Close() //nolint:errcheck // nothing was written
	free, err := tryLock(lock)
	if err != nil || !free {
		return err
	}
	if err := endLeftover(ctx, filepath.Join(path, dataFolder)); err != nil {
		return err
	}
	return os.RemoveAll(path)
}

// endLeftover ends a postmaster that outlived both its maker and its watchdog.
func endLeftover(ctx context.Context, data string) error {
	f, err := readPIDFile(data)
	if err != nil || f.pid == 0 {
		return nil // it never ran, ended by itself, or was just about to
	}
	runs := func() bool { return strings.Contains(commandLine(ctx, f.pid), data) }
	if runs() { // else it is dead, and the pid may be somebody else's by now
		left, err := children(ctx, f.pid)
		if err != nil {
			return err
		}
		for _, p := range append(left, process{pid: f.pid}) {
			if err := signal(p.pid, sigKill); err != nil {
				return err
			}
		}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		if err := poll(ctx, func() (bool, error) { return !runs(), nil }); err != nil {
			return err
		}
		if err := waitGone(ctx, left); err != nil {
			return err
		}
	}
	removeSegment(ctx, f)
	return nil
}
