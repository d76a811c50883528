package seeds

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// patience bounds a build or a run.
const patience = 2 * time.Minute

// TestHandlersOfThePages builds a program around each handler in a module of its own, and has it send one message to a mail API that answers.
func TestHandlersOfThePages(t *testing.T) {
	t.Parallel()
	for _, handler := range []string{"post", "request"} {
		t.Run(handler, func(t *testing.T) {
			t.Parallel()
			program := build(t, handler)
			sent := make(chan string, 10)
			api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				sent <- r.Method + " " + string(body)
			}))
			defer api.Close()
			db := pgtest.NewDatabase(t)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, program)
			cmd.Env = append(os.Environ(), "DATABASE_URL="+db.DSN, "MAIL_API="+api.URL)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			stop, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			select {
			case got := <-sent:
				if got != "POST u-1" {
					t.Errorf("the mail API got %q", got)
				}
			case err := <-ended:
				t.Fatalf("it ended before it had sent anything: %v\n%s", err, out.String())
			}
			if err := stop.Close(); err != nil {
				t.Error(err)
			}
			if err := <-ended; err != nil || !strings.Contains(out.String(), "abandoned_count=0") {
				t.Errorf("it ended with %v\n%s", err, out.String())
			}
			if n := len(sent); n != 0 {
				t.Errorf("%d mails too many", n)
			}
		})
	}
}

// build makes the module, vets it and builds its program.
func build(t *testing.T, handler string) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	text := strings.TrimSuffix(read(t, "testdata/"+handler+".txt"), "\n")
	write(t, dir, "main.go", strings.Replace(read(t, "testdata/main.txt"), "{{handler}}", text, 1))
	write(t, dir, "go.sum", read(t, "../../go.sum"))
	// The versions that this module uses are those that are in the module cache.
	const own = "github.com/sqlstreams/sqlstreams"
	mod := strings.Replace(read(t, "../../go.mod"), "module "+own+"\n", "module example.com/mailer\n", 1)
	write(t, dir, "go.mod", mod+"\nrequire "+own+" v0.0.0\n\nreplace "+own+" => "+strconv.Quote(root)+"\n")
	run := func(args ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir = dir
		// Nothing is fetched: what this module needs is in the module cache, or these tests would not have been built.
		cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	run("vet", "./...")
	run("build", "-o", "mailer", ".")
	return filepath.Join(dir, "mailer")
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
