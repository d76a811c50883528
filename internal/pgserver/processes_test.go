package pgserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// again is this binary in another role.
func again(ctx context.Context, role, dir string, env ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), append(env, envRole+"="+role, envDir+"="+dir)...)
	return cmd
}

// openDir makes a folder that the servers' user can enter.
func openDir(t *testing.T) string {
	t.Helper()
	parent := memoryFolder(1 << 30)
	if parent == "" {
		parent = "/tmp"
	}
	dir, err := os.MkdirTemp(parent, "pgserver-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := poll(ctx, func() (bool, error) { return cond(), nil }); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// owned starts a process that owns a server.
func owned(t *testing.T, role, dir string) (cmd *exec.Cmd, postmaster int, folder string) {
	t.Helper()
	cmd = again(t.Context(), role, dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(line, &postmaster, &folder); err != nil {
		t.Fatal(err)
	}
	return cmd, postmaster, folder
}

func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var killed *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &killed) {
		t.Fatalf("the killed process ended with %v", err)
	}
}

func serverRuns(t *testing.T, pid int, folder string) bool {
	return strings.Contains(commandLine(t.Context(), pid), folder)
}

func TestServerAndFolderGoWhenTheirOwnerIsKilled(t *testing.T) {
	t.Parallel()
	cmd, pid, folder := owned(t, "owner", openDir(t))
	if !serverRuns(t, pid, folder) {
		t.Fatal("the server does not run")
	}
	kill(t, cmd)
	eventually(t, "the server ends", func() bool { return !serverRuns(t, pid, folder) })
	eventually(t, "its folder goes", func() bool {
		_, err := os.Stat(folder)
		return errors.Is(err, fs.ErrNotExist)
	})
}

func TestNextStartRemovesWhatOwnerAndWatchdogLeft(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	cmd, pid, folder := owned(t, "owner without watchdog", dir)
	kill(t, cmd)
	if !serverRuns(t, pid, folder) {
		t.Fatal("the server ended though nobody was left to end it")
	}
	file, err := readPIDFile(filepath.Join(folder, dataFolder))
	if err != nil || file.pid != pid {
		t.Fatalf("postmaster.pid says %+v, %v", file, err)
	}
	s, err := Start(t.Context(), Options{Parent: dir})
	if err != nil {
		t.Fatal(err)
	}
	if unusedSegment(file) {
		t.Error("the orphan's shared memory is there")
	}
	if serverRuns(t, pid, folder) {
		t.Error("the orphan still runs")
	}
	if _, err := os.Stat(folder); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the orphan's folder is there: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestEightProcessesMakeOneTemplate(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	b, err := Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The same binaries, but initdb keeps count.
	bin, count := filepath.Join(dir, "bin"), filepath.Join(dir, "count")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"postgres", "pg_ctl"} {
		if err := os.Symlink(b.path(name), filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	script := fmt.Sprintf("#!/bin/sh\necho >>%s\nexec %s \"$@\"\n", count, b.path("initdb"))
	if err := os.WriteFile(filepath.Join(bin, "initdb"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(count, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(count, 0o666); err != nil {
		t.Fatal(err)
	}

	var g errgroup.Group
	for range 8 {
		g.Go(func() error {
			out, err := again(t.Context(), "template", dir, EnvBin+"="+bin, "XDG_CACHE_HOME="+dir, "HOME="+dir).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	runs, err := os.ReadFile(count)
	if err != nil {
		t.Fatal(err)
	}
	if len(runs) != 1 {
		t.Errorf("initdb ran %d times, want once", len(runs))
	}
	left, err := filepath.Glob(filepath.Join(dir, folderPrefix+"*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestKilledServerLeavesNoSharedMemory(t *testing.T) {
	t.Parallel()
	s, err := Start(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	file, err := readPIDFile(s.DataDir())
	if err != nil || file.shmID == "" {
		t.Fatalf("postmaster.pid says %+v, %v", file, err)
	}
	if err := s.Kill9(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if unusedSegment(file) {
		t.Errorf("segment %s is still there", file.shmID)
	}
}
