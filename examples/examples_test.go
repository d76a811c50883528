// Package examples holds the tests that run the programs below it, each as a process of its own, as a reader would.
package examples

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// patience bounds one program's run; a loaded machine needs several times what an idle one does.
const patience = 90 * time.Second

// build compiles one of the programs.
func build(t *testing.T, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./"+name).CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return program
}

// command prepares a run of a program on a database; "" leaves it to find one.
func command(t *testing.T, database, program string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program, args...)
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "DATABASE_URL=") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	if database != "" {
		cmd.Env = append(cmd.Env, "DATABASE_URL="+database)
	}
	return cmd
}

// run runs a program to its end.
func run(t *testing.T, cmd *exec.Cmd) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatalf("run %s: %v", cmd.Path, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("status %d\n%s%s", cmd.ProcessState.ExitCode(), out.String(), errs.String())
		}
	})
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func TestQuickstart(t *testing.T) {
	t.Parallel()
	program := build(t, "quickstart")
	db := pgtest.NewDatabase(t)
	// The first run's message is recorded when it ends, so the second run gets its own and no other.
	for i := range 2 {
		stdout, stderr, status := run(t, command(t, db.DSN, program))
		if status != 0 || stdout != "" || strings.Count(stderr, "sending to u-1\n") != 1 || strings.Contains(stderr, " WARN ") || strings.Contains(stderr, " ERROR ") {
			t.Fatalf("run %d: status %d\n%s%s", i+1, status, stdout, stderr)
		}
	}
	if n := db.QueryInt(t, `select count(*) from sqlstreams.claim`) + db.QueryInt(t, `select count(*) from sqlstreams.delivery`); n != 0 {
		t.Errorf("%d ranges and deliveries are left open", n)
	}
}

func TestQuickstartIsTheReadmes(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("quickstart/main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(readme), "```go\n")
	block, _, _ = strings.Cut(block, "```")
	if _, code, _ := strings.Cut(string(program), "\n"); code != block {
		t.Errorf("the first Go code of the README is not what quickstart/main.go holds:\n%s", block)
	}
}

// ending is how the demo's output ends.
var ending = regexp.MustCompile(`(?m)^produced (\d+)\nhandled count-lines (\d+), count-imports (\d+)\nrun again (\d+)\n` +
	`compared lines (\d+) / (\d+), imports (\d+) / (\d+) \(direct / through the streams\)\nlost (\d+)\n\z`)

func TestDemo(t *testing.T) {
	t.Parallel()
	program := build(t, "sourcefiles")

	t.Run("nothing lost", func(t *testing.T) {
		t.Parallel()
		db := pgtest.NewDatabase(t)
		stdout, stderr, status := run(t, command(t, db.DSN, program, "-files", "500"))
		m := ending.FindStringSubmatch(stdout)
		if status != 0 || stderr != "" || m == nil {
			t.Fatalf("status %d, no such ending:\n%s%s", status, stdout, stderr)
		}
		if m[1] != "500" || m[2] != "500" || m[3] != "500" || m[5] != m[6] || m[7] != m[8] || m[9] != "0" {
			t.Errorf("it ends %q", m[0])
		}
		for _, part := range []string{"kill -9", "takeover", "lease 2.6s"} {
			if !strings.Contains(stdout, part) {
				t.Errorf("nothing is said of %q", part)
			}
		}
		if strings.ContainsAny(stdout, "\x1b\r") {
			t.Error("what goes into a pipe has the colours of a terminal")
		}
		if n := schemas(t, db); n != 0 {
			t.Errorf("%d schemas are left", n)
		}
	})

	t.Run("sabotage", func(t *testing.T) {
		t.Parallel()
		stdout, stderr, status := run(t, command(t, "", program, "-files", "500", "-sabotage", "lose-one"))
		m := ending.FindStringSubmatch(stdout)
		if status != 1 || stderr != "" || m == nil {
			t.Fatalf("status %d, no such ending:\n%s%s", status, stdout, stderr)
		}
		if m[1] != "500" || m[2] != "499" || m[3] != "499" || m[5] == m[6] || m[9] != "1" {
			t.Errorf("it ends %q", m[0])
		}
		deleted := regexp.MustCompile(`sabotage +deleted message \d+ .*:\n +(\S+)\n`).FindStringSubmatch(stdout)
		lost := regexp.MustCompile(`lost +(\S+): handled by no group`).FindStringSubmatch(stdout)
		if deleted == nil || lost == nil || deleted[1] != lost[1] {
			t.Errorf("deleted %q, lost %q", deleted, lost)
		}
		server := regexp.MustCompile(`throw-away one on (\S+),`).FindStringSubmatch(stdout)
		if server == nil {
			t.Fatal("it does not say which server it uses")
		}
		if conn, err := net.Dial("tcp", server[1]); err == nil {
			t.Error("its server is still there", conn.Close())
		}
	})

	t.Run("interrupted", func(t *testing.T) {
		t.Parallel()
		db := pgtest.NewDatabase(t)
		if status := interrupt(t, db, program, os.Interrupt); status != 130 {
			t.Errorf("status %d", status)
		}
		if n := schemas(t, db); n != 0 {
			t.Errorf("%d schemas are left", n)
		}
		// A parent that is killed cannot clean up, but its children go with it.
		interrupt(t, db, program, os.Kill)
		pgtest.Eventually(t, 20*time.Second, "the consumers are gone", func() bool {
			return db.QueryInt(t, `select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`) == 0
		})
	})

	t.Run("usage", func(t *testing.T) {
		t.Parallel()
		for _, args := range [][]string{{"-sabotage", "everything"}, {"-files", "7"}, {"now"}, {"-x"}} {
			stdout, stderr, status := run(t, command(t, "", program, args...))
			if status != 2 || stdout != "" || !strings.Contains(stderr, "usage: sourcefiles") {
				t.Errorf("%q: status %d\n%s%s", args, status, stdout, stderr)
			}
		}
	})

	t.Run("no PostgreSQL", func(t *testing.T) {
		t.Parallel()
		cmd := command(t, "", program)
		cmd.Env = append(cmd.Env, "SQLSTREAMS_PG_BIN="+t.TempDir())
		stdout, stderr, status := run(t, cmd)
		if status != 1 || !strings.Contains(stderr, "make demo") {
			t.Errorf("status %d\n%s%s", status, stdout, stderr)
		}
	})
}

func schemas(t *testing.T, db *pgtest.Database) int64 {
	t.Helper()
	return db.QueryInt(t, `select count(*) from pg_namespace where nspname like 'sqlstreams%'`)
}

// interrupt starts the demo, sends a signal once its consumers are at work, and returns the status with which it ends.
func interrupt(t *testing.T, db *pgtest.Database, program string, signal os.Signal) int {
	t.Helper()
	cmd := command(t, db.DSN, program, "-files", "500")
	out := &watched{until: "lease", seen: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-out.seen:
		if err := cmd.Process.Signal(signal); err != nil {
			t.Error(err)
		}
		<-ended
	case err := <-ended:
		t.Fatalf("it ended before its consumers were at work: %v\n%s", err, out)
	}
	return cmd.ProcessState.ExitCode()
}

// watched is output in which something is waited for.
type watched struct {
	until string
	seen  chan struct{}

	mu   sync.Mutex
	text bytes.Buffer
	done bool
}

func (w *watched) Write(data []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(data)
	if !w.done && bytes.Contains(w.text.Bytes(), []byte(w.until)) {
		w.done = true
		close(w.seen)
	}
	return len(data), nil
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}
