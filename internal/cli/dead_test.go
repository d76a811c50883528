package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 400 * time.Millisecond: "0s", 3*time.Minute + 12*time.Second: "3m12s", time.Hour: "1h0m", 2*time.Hour + 5*time.Second: "2h0m",
		47*time.Hour + 59*time.Minute: "47h59m", 76*time.Hour + time.Minute: "3d4h",
	} {
		if got := age(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

func TestMoment(t *testing.T) {
	now := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"":                          {},
		"2h":                        now.Add(-2 * time.Hour),
		"90m30s":                    now.Add(-90*time.Minute - 30*time.Second),
		"3d":                        now.Add(-72 * time.Hour),
		"2026-01-31T08:00:00Z":      time.Date(2026, 1, 31, 8, 0, 0, 0, time.UTC),
		"2026-01-31T08:00:00+02:00": time.Date(2026, 1, 31, 6, 0, 0, 0, time.UTC),
		"2026-01-31":                time.Date(2026, 1, 31, 0, 0, 0, 0, time.Local),
		"2026-01-31 08:05":          time.Date(2026, 1, 31, 8, 5, 0, 0, time.Local),
	} {
		if got, err := moment("since", text, now); err != nil || !got.Equal(want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"yesterday", "0s", "-1h", "d", "-1d", "2026-13-01", "5"} {
		if got, err := moment("since", text, now); err == nil {
			t.Errorf("%q is taken for %v", text, got)
		}
	}
}

// What an error or a payload holds does not reach the terminal as it is, but lines stay lines.
func TestTextOfSeveralLinesIsSafe(t *testing.T) {
	if got := strings.Join(lines("one\r\n\tat \x1b[2Jtwo\n\n"), "|"); got != `one|    at \x1b[2Jtwo` {
		t.Errorf("%q", got)
	}
	if got := firstLine("one\ntwo"); got != "one …" {
		t.Errorf("%q", got)
	}
	for payload, want := range map[string]string{
		`{"a":[1,{"b":"é"}]}`: "{|  \"a\": [|    1,|    {|      \"b\": \"é\"|    }|  ]|}",
		"":                    "(empty)",
		"\x00\xff":            "00000000  00 ff                                             |..|",
	} {
		if got := strings.Join(payloadPage(&sqlstreams.Message{Payload: []byte(payload)}), "|"); got != want {
			t.Errorf("%q is shown as %q", payload, got)
		}
	}
	if page := payloadPage(&sqlstreams.Message{Payload: bytes.Repeat([]byte{1}, 10_000)}); len(page) != maxHex/16+1 || page[len(page)-1] != "… 9.8 KiB in all; -o json has them" {
		t.Errorf("%d lines, the last is %q", len(page), page[len(page)-1])
	}
}

// What is suggested can be typed as it stands, and means the first line.
func TestTheSuggestedFilterMeansTheFirstLine(t *testing.T) {
	for _, c := range []struct {
		errors []string
		filter *sqlstreams.DeliveryFilter
		want   string
	}{
		{[]string{"busy"}, nil, " --all"},
		{[]string{"it's busy"}, &sqlstreams.DeliveryFilter{Key: "k"}, ` --error 'it'\''s busy'`},
		{[]string{"busy", "x"}, nil, " --error busy"},
		{[]string{"", "x"}, nil, " --id 7"},
		{[]string{"a\nb", "x"}, nil, " --id 7"},
	} {
		var groups []sqlstreams.DeadGroup
		for _, text := range c.errors {
			groups = append(groups, sqlstreams.DeadGroup{Error: text, Example: 7})
		}
		if got := oneKind(groups, c.filter); got != c.want {
			t.Errorf("%q: %q, want %q", c.errors, got, c.want)
		}
	}
}

// bury puts dead letters into the first group, with ids from 1, as if handlers had failed.
func bury(t *testing.T, db *pgtest.Database, n int) {
	t.Helper()
	cli(t, db, "stream", "create", "orders")
	cli(t, db, "consume", "orders", "--group", "mailer", "--until", "caught-up")
	db.Exec(t, `insert into sqlstreams.dead_letter (group_id, message_id, reason, error, attempts, produced_at, appended_at, schema_version, payload)
		select g.id, i, 'exhausted', 'mailbox ' || i || ' busy', 10, now(), now(), 1, json_build_object('n', i) from sqlstreams.consumer_group g, generate_series(1, $1) i`, n)
}

// More dead letters than are read at once: each is written once.
func TestExportHasEachDeadLetterOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	const n = 2*letterPage + 1
	bury(t, db, n)
	seen := map[int64]bool{}
	decoder := json.NewDecoder(strings.NewReader(cli(t, db, "dead", "export", "orders", "mailer")))
	for decoder.More() {
		var d deadView
		if err := decoder.Decode(&d); err != nil {
			t.Fatal(err)
		}
		seen[d.ID] = true
	}
	if len(seen) != n {
		t.Errorf("%d dead letters are written, want %d", len(seen), n)
	}
	for limit, want := range map[string]int{"1001": 1001, "9999": n} {
		var listed []letterView
		if err := json.Unmarshal([]byte(cli(t, db, "dead", "list", "orders", "mailer", "--each", "--limit", limit, "-o", "json")), &listed); err != nil || len(listed) != want {
			t.Errorf("--limit %s lists %d, want %d (%v)", limit, len(listed), want, err)
		}
	}
}

// A group fails for the first time, much at once: the server's statistics know nothing of its dead letters yet. A page costs a page all the same.
func TestAPageOfDeadLettersReadsAPage(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]int{"there are no statistics": 0, "there are some of another group": 500} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.NewDatabase(t)
			bury(t, db, known)
			if known > 0 {
				db.Exec(t, "update sqlstreams.dead_letter set group_id = 77")
				db.Exec(t, "analyze sqlstreams.dead_letter")
			}
			bury(t, db, 10_000)
			read := func() int64 {
				return db.QueryInt(t, "select coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) from pg_stat_user_tables where schemaname = 'sqlstreams' and relname = 'dead_letter'")
			}
			before := read()
			cli(t, db, "dead", "list", "orders", "mailer", "--each", "--limit", "999")
			pgtest.Eventually(t, 10*time.Second, "the server has counted", func() bool { return read() > before })
			if n := read() - before; n > 4*1000 {
				t.Errorf("%d rows are read for a page of 1,000", n)
			}
		})
	}
}

// A dead letter's message is gone from the stream, and the group's position lies before it, as after a restore: it runs from the letter's copy.
func TestRedriveOfWhatIsGoneFromTheStream(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	bury(t, db, 3)
	db.Exec(t, "update sqlstreams.stream set first_id = 3")
	cli(t, db, "dead", "redrive", "orders", "mailer", "--all")
	// The third will be claimed from the stream.
	if n := db.QueryInt(t, "select sum(message_id) from sqlstreams.delivery"); n != 1+2 {
		t.Errorf("the sum of the redriven ids is %d", n)
	}
	if n := db.QueryInt(t, "select count(*) from sqlstreams.dead_letter"); n != 0 {
		t.Errorf("%d dead letters are left", n)
	}
}

// Somebody presses Ctrl-C while dead letters are redriven at a rate: it is said how many are on their way, and the same command goes on.
func TestInterruptedRedriveSaysHowFarItCame(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	bury(t, db, 500)
	left := func() int64 { return db.QueryInt(t, "select count(*) from sqlstreams.dead_letter") }
	p := start(t, db, "dead", "redrive", "orders", "mailer", "--contains", "busy", "--rate", "20")
	pgtest.Eventually(t, 20*time.Second, "some are redriven", func() bool { return left() < 500 })
	said := p.interrupt(t, ExitFailed)
	if want := "hint: " + plural(500-left(), "dead letter was", "dead letters were") + " redriven; the same command goes on with the rest"; !strings.Contains(said, want) {
		t.Errorf("%q is not said:\n%s", want, said)
	}
	cli(t, db, "dead", "redrive", "orders", "mailer", "--contains", "busy")
	if left() != 0 {
		t.Errorf("%d are left", left())
	}
}

// On a terminal the way is shown, and nothing of it stays in the result.
func TestRedriveShowsItsProgressOnATerminal(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	bury(t, db, 20)
	var out, stderr bytes.Buffer
	env := Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &stderr, Getenv: func(name string) string { return map[string]string{"DATABASE_URL": db.DSN}[name] }, Terminal: func(any) bool { return true }}
	if code := run(t.Context(), []string{"dead", "redrive", "orders", "mailer", "--all", "--rate", "50"}, env); code != ExitDone {
		t.Fatalf("exit code %d\n%s", code, stderr.String())
	}
	if !strings.Contains(stderr.String(), "\r[") || !strings.Contains(stderr.String(), " messages, ") {
		t.Errorf("standard error is %q", stderr.String())
	}
	if out.String() != "20 dead letters of group \"mailer\" of stream \"orders\" redriven\n" {
		t.Errorf("standard output is %q", out.String())
	}
}

func TestWatchLooksUntilInterrupted(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	bury(t, db, 1)
	p := start(t, db, "group", "show", "orders", "mailer", "--watch", "-o", "json")
	looks := bufio.NewScanner(p.out)
	var dead []int64
	for len(dead) < 2 && looks.Scan() {
		var s groupStatusView
		if err := json.Unmarshal(looks.Bytes(), &s); err != nil {
			t.Fatalf("%q: %v", looks.Text(), err)
		}
		if dead = append(dead, s.Dead); len(dead) == 1 {
			cli(t, db, "dead", "discard", "orders", "mailer", "--all", "--yes")
		}
	}
	p.interrupt(t, ExitDone)
	if len(dead) != 2 || dead[0] != 1 || dead[1] != 0 {
		t.Errorf("dead letters were %v", dead)
	}
	// A terminal is cleared, and written in one piece.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var screen []string
	env := Env{Stdout: writer(func(text string) { screen = append(screen, text); cancel() }), Stderr: io.Discard, Getenv: func(name string) string { return map[string]string{"DATABASE_URL": db.DSN}[name] },
		Terminal: func(any) bool { return true }}
	if code := run(ctx, []string{"group", "show", "orders", "mailer", "--watch"}, env); code != ExitDone || len(screen) != 1 || !strings.HasPrefix(screen[0], clearScreen) {
		t.Errorf("exit code %d, written: %q", code, screen)
	}
}

// writer is called with each piece that is written.
type writer func(text string)

func (w writer) Write(p []byte) (int, error) {
	w(string(p))
	return len(p), nil
}
