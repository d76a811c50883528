package cli

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

const scriptTimeout = time.Minute

// Somebody presses Ctrl-C while input still comes: what was sent is stored, and it is said where to go on; going on there stores the rest once.
func TestInterruptedProduceSaysWhereItGoesOn(t *testing.T) {
	db := pgtest.NewDatabase(t)
	cli(t, db, "stream", "create", "orders")
	p := start(t, db, "produce", "orders")
	for i := 1; i <= 3; i++ {
		if _, err := fmt.Fprintf(p.in, "{\"n\": %d}\n", i); err != nil {
			t.Fatal(err)
		}
	}
	// Lines that come slowly are sent at once.
	pgtest.Eventually(t, 20*time.Second, "three messages are stored", func() bool { return db.QueryInt(t, "select count(*) from sqlstreams.log_1") == 3 })
	said := p.interrupt(t, ExitFailed)
	for _, want := range []string{"interrupted: 3 messages are surely stored, line 4 comes next", "hint: go on with --skip 3", "ids 1..3"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not said:\n%s", want, said)
		}
	}
}

func TestInterruptedConsumeFinishesInGoodOrder(t *testing.T) {
	db := pgtest.NewDatabase(t)
	cli(t, db, "stream", "create", "orders")
	cli(t, db, "produce", "orders", `"one"`, `"two"`)
	p := start(t, db, "consume", "orders", "--group", "audit")
	lines := bufio.NewScanner(p.out)
	for _, want := range []string{`"one"`, `"two"`} {
		if !lines.Scan() || !strings.Contains(lines.Text(), want) {
			t.Fatalf("%q is printed, want %s", lines.Text(), want)
		}
	}
	if said := p.interrupt(t, ExitDone); !strings.Contains(said, "consumer stopped after") || !strings.Contains(said, "succeeded 2, failed 0") {
		t.Errorf("said:\n%s", said)
	}
	if out := cli(t, db, "stream", "show", "orders"); !strings.Contains(out, "audit        0") {
		t.Errorf("the group is not done:\n%s", out)
	}
}

func TestTailPrintsWhatArrivesUntilInterrupted(t *testing.T) {
	db := pgtest.NewDatabase(t)
	cli(t, db, "stream", "create", "orders")
	cli(t, db, "produce", "orders", `"before"`)
	p := start(t, db, "stream", "tail", "orders", "-o", "json")
	lines := bufio.NewScanner(p.out)
	if !lines.Scan() || !strings.Contains(lines.Text(), `"payload":"before"`) {
		t.Fatalf("%q is printed", lines.Text())
	}
	cli(t, db, "produce", "orders", `"after"`)
	if !lines.Scan() || !strings.Contains(lines.Text(), `"payload":"after"`) {
		t.Fatalf("%q is printed", lines.Text())
	}
	p.interrupt(t, ExitDone)
	if rest, err := io.ReadAll(p.out); err == nil && len(rest) > 0 {
		t.Errorf("more was printed: %s", rest)
	}
}

func TestThePGVariablesSayWhereTheDatabaseIs(t *testing.T) {
	db := pgtest.NewDatabase(t)
	cli(t, db, "stream", "create", "orders")
	host, port, err := net.SplitHostPort(db.Server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	p := startWith(t, []string{"DATABASE_URL=", "PGHOST=" + host, "PGPORT=" + port, "PGUSER=" + pgtest.Owner, "PGDATABASE=" + db.Name, "PGSSLMODE=disable"}, "stream", "list")
	out, err := io.ReadAll(p.out)
	if wait := p.Wait(); err != nil || wait != nil || !strings.Contains(string(out), "orders") {
		t.Errorf("%v, %v\n%s%s", err, wait, out, p.stderr.String())
	}
}

// The server ends the connections of a tail: it goes on where it was.
func TestTailOutlivesItsConnections(t *testing.T) {
	db := pgtest.NewDatabase(t)
	cli(t, db, "stream", "create", "orders")
	cli(t, db, "produce", "orders", `1`)
	p := start(t, db, "stream", "tail", "orders", "-o", "json")
	lines := bufio.NewScanner(p.out)
	for n := 1; n <= 3; n++ {
		if !lines.Scan() || !strings.HasPrefix(lines.Text(), fmt.Sprintf(`{"id":%d,`, n)) {
			t.Fatalf("%q is printed, want message %d", lines.Text(), n)
		}
		db.SuperuserExec(t, "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'sqlstreams-cli' and datname = current_database()")
		cli(t, db, "produce", "orders", `1`)
	}
	p.interrupt(t, ExitDone)
}
