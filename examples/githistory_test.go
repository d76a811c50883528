package examples

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// git runs git in a repository, with nobody's settings.
func git(t *testing.T, repository string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", repository, "-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"}, args...)...)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// oddRepository has names and changes that a reader of git's output can stumble over: spaces, quotes, tabs, letters beyond ASCII, binary files, an empty commit, renames, deletions.
func oddRepository(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	git(t, dir, "init", "-q", "-b", "main")
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	commit := func(message string) {
		t.Helper()
		git(t, dir, "add", "-A")
		git(t, dir, "commit", "-q", "--allow-empty", "-m", message)
	}
	write("top.txt", "1\n2\n3\n")
	write("a folder/with \"quotes\".txt", "1\n")
	write("a folder/with\ttab.txt", "1\n2\n")
	write("größe/ñ.txt", "1\n")
	write("bin/data", "\x00\x01\x02")
	commit("one")
	commit("nothing\tchanged\nat all")
	for i := range 40 {
		write(fmt.Sprintf("many/%d/file.txt", i%7), strings.Repeat("line\n", i+1))
		write("top.txt", strings.Repeat("x\n", i))
		commit(fmt.Sprint("change ", i))
	}
	git(t, dir, "mv", "größe/ñ.txt", "moved.txt")
	git(t, dir, "rm", "-q", "bin/data")
	commit("moved and removed")
	return dir
}

var sums = regexp.MustCompile(`^(\d+) folders, (\d+) changes, \d+ lines added, \d+ deleted: the group's sums are git's\n$`)

// A repository's history goes through the command line into two groups, one in Go, one a shell command for each message; produced twice, it is stored once.
func TestGitHistory(t *testing.T) {
	t.Parallel()
	program, sqlstreams := build(t, "githistory"), filepath.Join(t.TempDir(), "sqlstreams")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", sqlstreams, "../cmd/sqlstreams").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	repositories := map[string]string{"odd": oddRepository(t)}
	if exec.CommandContext(t.Context(), "git", "-C", "..", "rev-parse", "HEAD").Run() == nil {
		repositories["this"] = ".."
	} else {
		t.Log("this tree is no git repository: only the made one is read")
	}
	for name, repository := range repositories {
		t.Run(name, func(t *testing.T) {
			db := pgtest.NewDatabase(t)
			var out bytes.Buffer
			listing := command(t, "", program, "list", repository)
			listing.Stdout = &out
			if err := listing.Run(); err != nil {
				t.Fatalf("list: %v", err)
			}
			list := out.String()
			lines := strings.Count(list, "\n")
			for i := range 2 {
				produce := command(t, db.DSN, sqlstreams, "produce", "git-history", "--create", "--key-field", "path", "--idempotency-key-field", "id")
				produce.Stdin = strings.NewReader(list)
				stdout, stderr, status := run(t, produce)
				want := fmt.Sprintf("produced %d messages", lines*(1-i))
				if status != 0 || !strings.Contains(stdout+stderr, want) || !strings.Contains(stdout+stderr, fmt.Sprintf("duplicates %d", lines*i)) {
					t.Fatalf("produce: status %d, want %q\n%s%s", status, want, stdout, stderr)
				}
			}
			for range 2 { // the second run finds nothing to do
				if _, stderr, status := run(t, command(t, db.DSN, program, "fold")); status != 0 || !strings.Contains(stderr, fmt.Sprintf("caught up at message %d; dead letters: 0", lines)) {
					t.Fatalf("fold: status %d\n%s", status, stderr)
				}
			}
			stdout, stderr, status := run(t, command(t, db.DSN, program, "check", repository))
			if found := sums.FindStringSubmatch(stdout); status != 0 || found == nil || found[2] != fmt.Sprint(lines) {
				t.Fatalf("check: status %d\n%s%s", status, stdout, stderr)
			}
			paths := filepath.Join(t.TempDir(), "paths")
			if _, stderr, status := run(t, command(t, db.DSN, sqlstreams, "consume", "git-history", "--group", "paths", "--until", "caught-up", "--handlers", "4",
				"--exec", `printf '%s %s\n' "$SQLSTREAMS_ID" "$SQLSTREAMS_KEY" >> "`+paths+`"`)); status != 0 {
				t.Fatalf("consume: status %d\n%s", status, stderr)
			}
			written, err := os.ReadFile(paths)
			if err != nil || bytes.Count(written, []byte("\n")) != lines {
				t.Fatalf("the command ran for %d of %d messages, %v", bytes.Count(written, []byte("\n")), lines, err)
			}
		})
	}
}
