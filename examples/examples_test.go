// Package examples holds the tests that run the programs below it, each as a process of its own, as a reader would.
package examples

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
