package examples

import (
	"os"
	"strings"
	"testing"

	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// short holds an example to what can be read at a glance.
func short(t *testing.T, name string) {
	t.Helper()
	text, err := os.ReadFile(name + "/main.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n >= 60 {
		t.Errorf("%s has %d lines", name, n)
	}
}

// The second request is told that the account has changed, reads it again, and decides otherwise.
func TestEventSourcing(t *testing.T) {
	t.Parallel()
	short(t, "eventsourcing")
	db := pgtest.NewDatabase(t)
	_, stderr, status := run(t, command(t, db.DSN, build(t, "eventsourcing")))
	if status != 0 {
		t.Fatalf("status %d\n%s", status, stderr)
	}
	rest := stderr
	for _, line := range []string{"one: <nil>\n", "conflict: it has changed since version 1\n", "two: not enough money\n"} {
		_, after, found := strings.Cut(rest, line)
		if !found {
			t.Fatalf("%q is missing in\n%s", line, stderr)
		}
		rest = after
	}
	if n := db.QueryInt(t, `select sum((payload->>'Cents')::int) from sqlstreams.log_1 where message_key = 'a-1'`); n != 30 {
		t.Errorf("%d cents are left", n)
	}
}

func TestKeyValue(t *testing.T) {
	t.Parallel()
	short(t, "keyvalue")
	stdout, stderr, status := run(t, command(t, pgtest.NewDatabase(t).DSN, build(t, "keyvalue")))
	if status != 0 || stdout != "" {
		t.Fatalf("status %d", status)
	}
	for _, line := range []string{"colour is green\n", "the copy holds map[colour:green ready:yes]\n"} {
		if !strings.Contains(stderr, line) {
			t.Errorf("%q is missing in\n%s", line, stderr)
		}
	}
}
