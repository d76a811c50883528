package demo

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sqlstreams/sqlstreams"
)

func TestLinesAreStampedAndColouredOnlyOnATerminal(t *testing.T) {
	l := say(alarm, "kill -9", "pid %d", 7)
	if got, want := l.render(3210*time.Millisecond, false), "  3.2 s  kill -9    pid 7"; got != want {
		t.Errorf("plain %q, want %q", got, want)
	}
	if got, want := l.render(3210*time.Millisecond, true), "\x1b[2m  3.2 s\x1b[0m  \x1b[31mkill -9    \x1b[0mpid 7"; got != want {
		t.Errorf("coloured %q, want %q", got, want)
	}
	if got, want := more("and more").render(12*time.Second, false), " 12.0 s             and more"; got != want {
		t.Errorf("continued %q, want %q", got, want)
	}
	for _, colour := range []bool{false, true} {
		var out strings.Builder
		s := newStory(&out, colour)
		s.tell(l)
		s.end(good, "lost 0")
		if strings.Contains(out.String(), "\x1b") != colour || strings.Contains(out.String(), "\r") {
			t.Errorf("colour %v: %q", colour, out.String())
		}
	}
}

func texts(lines []line) (all []string) {
	for _, l := range lines {
		all = append(all, l.label+"|"+l.text)
	}
	return all
}

func TestWhatTheChaptersSay(t *testing.T) {
	at := time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)
	dead := &death{pid: 11, slow: 84, expected: 8, done: 3, held: []sqlstreams.OpenClaim{{Low: 80, High: 88, ExpiresIn: 4900 * time.Millisecond}}}
	for name, c := range map[string]struct {
		got  []line
		want []string
	}{
		"kill": {dead.lines(), []string{
			"kill -9|pid 11, an instance of charge-cards, while it waits for the slow bank (message 84)",
			"|it held messages 81-88, and its lease on them has 4.9 s left",
			"|of these 8 it had charged 3, and recorded none"}},
		"takeover": {(&heir{pid: 12, after: 5100 * time.Millisecond, meanwhile: 1}).begins(dead, 5*time.Second), []string{
			"takeover|5.1 s after the kill pid 12 begins with what pid 11 held",
			"|(the lease was 5s; an instance looks for ended ones once a second)",
			"|meanwhile 1 other payment had been charged by the instances that live"}},
		"run again": {(&heir{again: []int64{81, 82, 85}, total: 8}).ends(), []string{
			"run again|all 8 are charged and recorded; 3 messages ran again (81-82, 85), having been charged and not recorded:",
			"|their key in the table keeps the second charge from being another row"}},
		"hang": {hangEnds([]attempt{{message: 254, number: 1, pid: 12, began: at}, {message: 254, number: 2, pid: 13, began: at.Add(2 * time.Second), ended: at.Add(2800 * time.Millisecond)}}),
			[]string{"elsewhere|attempt 2 of message 254, in pid 13, succeeds 2.8 s after the first began; the goroutine in pid 12 still hangs"}},
		"retries": {retryLines([]attempt{{message: 9, number: 1, pid: 12, ended: at, failure: "503"}, {message: 9, number: 2, pid: 13, began: at.Add(512 * time.Millisecond)}}, 500*time.Millisecond),
			[]string{
				"retries|message 9 fails at first; the wait begins with 500ms and doubles, 10 % more or less:",
				"|attempt 1, in pid 12: 503",
				"|attempt 2, 510ms later, in pid 13: charged"}},
		"dead": {deadLines([]sqlstreams.DeadGroup{{Error: "card # refused", Reason: "terminal", Count: 3, FirstID: 5, LastID: 7}}), []string{
			"dead|3 dead letters of charge-cards, by error:",
			"|  3  terminal  card # refused (messages 5-7)"}},
		"log": {[]line{
			logged("pid 12", []byte(`{"time":"2025-01-02T03:04:05Z","level":"WARN","msg":"handler abandoned","code":"SQL0050","message":254}`)),
			logged("pid 12", []byte(`{"level":"WARN","msg":"retrying","code":"SQL0110","error":"no connection"}`)),
			logged("pid 12", []byte(`panic: x`)),
		}, []string{"log|pid 12 logs SQL0050 handler abandoned (message 254)", "log|pid 12 logs SQL0110 retrying: no connection", "output|pid 12: panic: x"}},
	} {
		if diff := cmp.Diff(c.want, texts(c.got)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestRanges(t *testing.T) {
	for _, c := range []struct {
		ids  []int64
		want string
	}{{nil, "none"}, {[]int64{4}, "4"}, {[]int64{4, 5}, "4-5"}, {[]int64{1, 3, 4, 5, 9}, "1, 3-5, 9"}} {
		if got := ranges(c.ids); got != c.want {
			t.Errorf("%v: %q, want %q", c.ids, got, c.want)
		}
	}
}

func TestThePaymentDecidesWhatHappensToIt(t *testing.T) {
	for _, c := range []struct {
		bank    string
		attempt int
		known   bool
		want    string
	}{
		{ordinaryBank(0), 1, false, ""}, {slowBank, 1, false, ""}, {stuckBank, 2, false, ""},
		{busyBank, 1, false, "busy-bank answers 503 Service Unavailable"}, {busyBank, busyFor, false, "busy-bank answers 503 Service Unavailable"}, {busyBank, busyFor + 1, false, ""},
		{newBank, 1, false, "card ending in 1037 refused: no contract with new-bank"}, {newBank, 5, true, ""},
	} {
		p := invoice(1, c.bank)
		got := ""
		if err := handlingError(&p, c.attempt, c.known); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s, attempt %d: %q, want %q", c.bank, c.attempt, got, c.want)
		}
	}
}

func TestAGroupIsNotFinishedWhileAnythingIsOpen(t *testing.T) {
	done := sqlstreams.GroupStatus{Head: 10, Claimed: 10, Committed: 10}
	if !finished(&done) {
		t.Error("nothing is open")
	}
	for name, change := range map[string]func(*sqlstreams.GroupStatus){
		"inbox":     func(s *sqlstreams.GroupStatus) { s.Inbox = 1 },
		"backlog":   func(s *sqlstreams.GroupStatus) { s.Backlog = 1 },
		"committed": func(s *sqlstreams.GroupStatus) { s.Committed = 9 },
		"claim":     func(s *sqlstreams.GroupStatus) { s.OpenClaims = 1 },
		"pending":   func(s *sqlstreams.GroupStatus) { s.Pending = 1 },
		"running":   func(s *sqlstreams.GroupStatus) { s.Running = 1 },
		"waiting":   func(s *sqlstreams.GroupStatus) { s.Waiting = 1 },
	} {
		open := done
		change(&open)
		if finished(&open) {
			t.Errorf("%s: it counts as finished", name)
		}
	}
}

func TestTheLeaseIsItsFormula(t *testing.T) {
	for _, brief := range []bool{false, true} {
		p := newPace(brief)
		if p.Slow >= p.Timeout {
			t.Errorf("brief %v: the slow bank takes %s, and a handler has %s", brief, p.Slow, p.Timeout)
		}
	}
	p := newPace(false)
	if got, want := p.formula(), "5s = QueueMargin 2s + Timeout 2s + TimeoutGrace 250ms + RecordMargin 750ms"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
