package pgserver

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSettingsAreQuoted(t *testing.T) {
	got, err := renderSettings(map[string]string{
		"work_mem":       "4MB",
		"app.note":       "it's a \\ and\nmore",
		"archive_mode":   "",
		"log_statement":  "all",
		"TimeZone":       "UTC",
		"a_1.b":          "x",
		"application_id": "é",
	})
	want := `TimeZone = 'UTC'
a_1.b = 'x'
app.note = 'it''s a \\ and\nmore'
application_id = 'é'
archive_mode = ''
log_statement = 'all'
work_mem = '4MB'
`
	if err != nil || got != want {
		t.Errorf("got %v:\n%s", err, got)
	}
	for _, name := range []string{"", "a b", "x = 1\ny", "ü"} {
		if _, err := renderSettings(map[string]string{name: "1"}); err == nil {
			t.Errorf("%q passed as the name of a setting", name)
		}
	}
}

func TestProcessTableIsRead(t *testing.T) {
	p, ok := parseStat("4711 (odd) name (x) S 12 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 2 3\n")
	if !ok || p != (process{pid: 4711, parent: 12, state: 'S', started: "98765"}) {
		t.Errorf("parseStat = %+v, %v", p, ok)
	}
	for _, line := range []string{"", "12", "12 (x", "x (y) S 1", "12 (y) S 1", "12 )y( S"} {
		if p, ok := parseStat(line); ok {
			t.Errorf("parseStat(%q) = %+v", line, p)
		}
	}
	table := parsePS("  1     0 Ss\n 20     1 T+\nrubbish\n 21 x S\n")
	if len(table) != 2 || table[20] != (process{pid: 20, parent: 1, state: 'T'}) {
		t.Errorf("parsePS = %+v", table)
	}

	// Both ways see this process. A system without ps has /proc.
	ways := map[string]func(context.Context) (map[int]process, error){"processes": processes}
	if _, err := exec.LookPath("ps"); err == nil {
		ways["processesByPS"] = processesByPS
	}
	for name, read := range ways {
		table, err := read(t.Context())
		if err != nil || table[os.Getpid()].parent != os.Getppid() {
			t.Errorf("%s: this process is %+v, error %v", name, table[os.Getpid()], err)
		}
	}
}

func TestFolderIsNotMadeWhereASocketCannotBe(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 80))
	if err := os.Mkdir(long, 0o755); err != nil {
		t.Fatal(err)
	}
	if f, err := newFolder(t.Context(), []string{long}, nil); err == nil {
		t.Errorf("made %s", f.path)
	}
	// Nobody asked for that place: it is only where TMPDIR points.
	t.Setenv("TMPDIR", long)
	f, err := newFolder(t.Context(), parents(Options{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(f.path, long) {
		t.Errorf("made %s", f.path)
	}
	if err := f.remove(); err != nil {
		t.Error(err)
	}
}

func TestFolderIsNotMadeWhereTheServersUserCannotGo(t *testing.T) {
	closed := filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	stranger := &account{name: "stranger", uid: os.Geteuid() + 4711, gid: os.Getegid() + 4711}
	if err := stranger.reach(closed); err == nil || !strings.Contains(err.Error(), "is closed to user stranger") {
		t.Errorf("reach = %v", err)
	}
	if err := stranger.reach("/"); err != nil {
		t.Errorf("reach / = %v", err)
	}
}

func TestSweepRemovesOnlyWhatTheDeadLeft(t *testing.T) {
	parent := t.TempDir()
	living, err := makeFolder(parent, nil)
	if err != nil {
		t.Fatal(err)
	}
	dead, err := makeFolder(parent, nil)
	if err != nil {
		t.Fatal(err)
	}
	// A dead process's lock is free.
	if err := dead.lock.Close(); err != nil {
		t.Fatal(err)
	}
	// A folder without an owner is being made, unless it has been for long.
	young, old := filepath.Join(parent, folderPrefix+"young"), filepath.Join(parent, folderPrefix+"old")
	for _, dir := range []string{young, old} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	long := time.Now().Add(-time.Hour)
	if err := os.Chtimes(old, long, long); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(parent, "unrelated")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}

	if err := sweep(t.Context(), parent); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(parent, "*"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{living.path, young, other}
	slices.Sort(want)
	if !slices.Equal(left, want) {
		t.Errorf("left %v, want %v", left, want)
	}
	if err := living.remove(); err != nil {
		t.Error(err)
	}
}

func TestPIDFileIsRead(t *testing.T) {
	dir := t.TempDir()
	if f, err := readPIDFile(dir); f != (pidFile{}) || err != nil {
		t.Errorf("without a file: %+v, %v", f, err)
	}
	for text, want := range map[string]pidFile{
		"123\n/d\n1\n5432\n/s\n127.0.0.1\n  4711    99\nready\n":            {pid: 123, shmKey: 4711, shmID: "99"},
		"123\n/d\n1\n5432\n/s\n127.0.0.1\n18446744073709551615 99\nready\n": {pid: 123, shmKey: -1, shmID: "99"},
		"123\n/d\n": {pid: 123},
	} {
		if err := os.WriteFile(filepath.Join(dir, "postmaster.pid"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if f, err := readPIDFile(dir); f != want || err != nil {
			t.Errorf("%q: %+v, %v", text, f, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "postmaster.pid"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err := readPIDFile(dir); err == nil {
		t.Errorf("an empty file: %+v", f)
	}
}
