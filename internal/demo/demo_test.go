package demo

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// TestMain also is what the demo starts as its children.
func TestMain(m *testing.M) {
	if IsChild() {
		if Child() != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	pgtest.Main(m)
}

// watched is the output of a run, in which something can be waited for.
type watched struct {
	until string
	seen  func() // called once

	mu   sync.Mutex
	text bytes.Buffer
}

func (w *watched) Write(data []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text.Write(data)
	if w.seen != nil && strings.Contains(w.text.String(), w.until) {
		w.seen()
		w.seen = nil
	}
	return len(data), nil
}

// tell runs a demo to its end, and shows what it said if the test fails.
func tell(t *testing.T, ctx context.Context, o Options, w *watched) (string, error) {
	t.Helper()
	o.Brief, o.Out = true, w
	err := Run(ctx, o)
	text := w.text.String()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("error %v\n%s", err, text)
		}
	})
	return text, err
}

// ending is how the output ends: produced, handled, run again, dead left, redriven and lost by group, and what was lost.
var ending = regexp.MustCompile(`(?m)^group .*\ncharge-cards +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) +(\d+)\naudit-payments +(\d+) +(\d+) +(\d+) +(\d+) +(\d+) +(\d+)\nlost (\d+)\n\z`)

func figures(t *testing.T, text string) (n []int) {
	t.Helper()
	m := ending.FindStringSubmatch(text)
	if m == nil {
		t.Fatal("the output has no such ending")
	}
	for _, digits := range m[1:] {
		i, err := strconv.Atoi(digits)
		if err != nil {
			t.Fatal(err)
		}
		n = append(n, i)
	}
	return n
}

func TestNothingIsLost(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	text, err := tell(t, t.Context(), Options{DSN: db.DSN}, &watched{})
	if err != nil {
		t.Fatal(err)
	}
	n := figures(t, text)
	if produced := n[0]; produced < 100 || n[1] != produced || n[6] != produced || n[7] != produced {
		t.Errorf("produced and handled: %d", n)
	}
	if n[2] == 0 || n[8] != 0 || n[3]+n[9] != 0 || n[4] != refusals || n[10] != 0 || n[5]+n[11]+n[12] != 0 {
		t.Errorf("run again, dead, redriven, lost: %d", n)
	}
	kill := regexp.MustCompile(`kill -9 +pid (\d+), .*\n.*it held messages \d+-\d+`).FindStringSubmatch(text)
	takeover := regexp.MustCompile(`takeover +(\d+\.\d) s after the kill pid (\d+) begins with what pid (\d+) held`).FindStringSubmatch(text)
	if kill == nil || takeover == nil || takeover[3] != kill[1] || takeover[2] == kill[1] {
		t.Errorf("kill %q, takeover %q", kill, takeover)
	}
	for _, part := range []string{
		`looked for payment \d+: 0 rows, 0 messages`, `run again +all \d+ are charged and recorded; \d+ messages? ran again \(\d`, `abandoned +recorded for attempt 1: "hard timeout after 1.05s`,
		`elsewhere +attempt 2 of message`, `attempt 1, in pid \d+: busy-bank answers 503`, `attempt 3, \S+ later, in pid \d+: charged`, `3 +terminal +card ending in # refused`,
		`3 charged, 0 dead letters left`, `has stopped; it says that it abandoned 1 handler`, `2.5s = QueueMargin 1s`,
	} {
		if !regexp.MustCompile(part).MatchString(text) {
			t.Errorf("nothing is said of %s", part)
		}
	}
	hang := regexp.MustCompile(`elsewhere .* in pid (\d+), succeeds .* goroutine in pid (\d+) still hangs`).FindStringSubmatch(text)
	if hang == nil || hang[1] == hang[2] {
		t.Errorf("hang and retry: %q", hang)
	}
	story, _, _ := strings.Cut(text, "\ngroup ")
	for _, l := range strings.Split(story, "\n") {
		if !regexp.MustCompile(`^ *\d+\.\d s  \S* *\S`).MatchString(l) {
			t.Errorf("a line without its time: %q", l)
		}
	}
	if strings.ContainsAny(text, "\x1b\r") {
		t.Error("what goes into a pipe has the colours of a terminal")
	}
	nothingLeft(t, db, 0)
}

// nothingLeft checks which schemas there are, and that every process has gone.
func nothingLeft(t *testing.T, db *pgtest.Database, schemas int64) {
	t.Helper()
	if n := db.QueryInt(t, `select count(*) from pg_namespace where nspname like 'sqlstreams%'`); n != schemas {
		t.Errorf("%d schemas are left, want %d", n, schemas)
	}
	pgtest.Eventually(t, 20*time.Second, "every connection is gone", func() bool {
		return db.QueryInt(t, `select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`) == 0
	})
}

func TestSabotageIsNoticed(t *testing.T) {
	t.Parallel()
	text, err := tell(t, t.Context(), Options{Sabotage: LoseOne}, &watched{})
	lost, ok := errors.AsType[*LostError](err)
	if !ok || lost.Lost != 1 {
		t.Fatal(err)
	}
	n := figures(t, text)
	if n[1] != n[0]-1 || n[7] != n[6]-1 || n[5] != 1 || n[11] != 1 || n[12] != 1 {
		t.Errorf("it ends %d", n)
	}
	deleted := regexp.MustCompile(`sabotage +message \d+, payment (\d+), deleted`).FindStringSubmatch(text)
	named := regexp.MustCompile(`lost +payment (\d+): handled by no group`).FindStringSubmatch(text)
	if deleted == nil || named == nil || deleted[1] != named[1] {
		t.Errorf("deleted %q, lost %q", deleted, named)
	}
	server := regexp.MustCompile(`disposable PostgreSQL .* on (\S+), removed`).FindStringSubmatch(text)
	if server == nil {
		t.Fatal("it does not say which server it uses")
	}
	if conn, err := net.Dial("tcp", server[1]); err == nil {
		t.Error("its server is still there", conn.Close())
	}
}

func TestAnInterruptedRunCleansUpAndClaimsNothing(t *testing.T) {
	t.Parallel()
	for keep, schemas := range map[bool]int64{false: 0, true: 2} {
		db := pgtest.NewDatabase(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		text, err := tell(t, ctx, Options{DSN: db.DSN, Keep: keep}, &watched{until: "kill -9", seen: cancel})
		if !errors.Is(err, context.Canceled) || !strings.HasSuffix(text, "\nlost unknown\n") || strings.Contains(text, "lost 0") {
			t.Errorf("keep %v: %v", keep, err)
		}
		nothingLeft(t, db, schemas)
	}
}

func TestARunThatCannotBeCompletedClaimsNothing(t *testing.T) {
	t.Parallel()
	text, err := tell(t, t.Context(), Options{DSN: "postgres://nobody@127.0.0.1:1/none"}, &watched{})
	if err == nil || !strings.HasSuffix(text, "\nlost unknown\n") {
		t.Error(err)
	}
	// The parent hears of a child that fails.
	db := pgtest.NewDatabase(t)
	text, err = tell(t, t.Context(), Options{DSN: db.DSN, ChildArgs: []string{"-test.run=^$"}}, &watched{until: "instances", seen: func() {
		db.Exec(t, `do $$ begin execute (select format('drop schema %I cascade', nspname) from pg_namespace where nspname like 'sqlstreams%shop'); end $$`)
	}})
	if err == nil || !strings.HasSuffix(text, "\nlost unknown\n") {
		t.Error(err)
	}
	nothingLeft(t, db, 0)
}

func TestOptionsThatDoNotFitAreRefusedBeforeAnythingIsSaid(t *testing.T) {
	for _, o := range []Options{{Sabotage: "everything"}, {Keep: true}} {
		text, err := tell(t, t.Context(), o, &watched{})
		if _, ok := errors.AsType[*UsageError](err); !ok || text != "" {
			t.Errorf("%+v: %v, %q", o, err, text)
		}
	}
}
