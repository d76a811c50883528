package chaos

import (
	"context"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/ledger"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// Scripts are runs in which each step waits for the one before, so that a race happens every time.

func script(t *testing.T, settings map[string]string) *run {
	t.Helper()
	r, err := open(t.Context(), Config{Quick: true, settings: settings})
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			for _, p := range r.processes {
				t.Logf("%s says:\n%s", p.cfg.Name, r.logOf(p))
			}
		}
		must(t, r.close(true))
	})
	r.began = time.Now()
	return r
}

// produceBatch has one process produce n messages at once, and end.
func (r *run) produceBatch(t *testing.T, n int) {
	t.Helper()
	p, err := r.spawn(workerConfig{Name: "p", Role: roleProducer, Mix: mixOne, Quota: n, Rate: 1e9, Size: 100}, 0)
	must(t, err)
	r.eventually(t, "the messages are produced", func() bool {
		l := r.ledgerOf(t, "p")
		return l != nil && len(l.Calls) == 1 && l.Calls[0].Outcome == ledger.Confirmed
	})
	must(t, p.leave())
	<-p.done
}

func (r *run) consumer(t *testing.T, name string, handlers int, busy time.Duration) *process {
	t.Helper()
	p, err := r.spawn(workerConfig{Name: name, Role: roleConsumer, Groups: []membership{{Group: "g"}}, Handlers: handlers, Mood: moodBusy, Busy: busy}, 0)
	must(t, err)
	return p
}

func (r *run) eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	pgtest.Eventually(t, 30*time.Second, what, cond)
}

// ledgerOf reads what a process has written down so far; nil: it has not begun.
func (r *run) ledgerOf(t *testing.T, name string) *ledger.Ledger {
	t.Helper()
	book, err := ledger.ReadDir(r.books)
	must(t, err)
	for _, l := range book.Ledgers {
		if l.Process.Name == name && l.Damage == "" {
			return l
		}
	}
	return nil
}

func (r *run) started(t *testing.T, name string, n int) {
	t.Helper()
	r.eventually(t, name+" has started its messages", func() bool {
		l := r.ledgerOf(t, name)
		return l != nil && len(l.Runs) >= n
	})
}

// refused waits until a process was told that its lease is lost.
func (r *run) refused(t *testing.T, name string) {
	t.Helper()
	r.eventually(t, name+" is told that its lease is lost", func() bool {
		for _, e := range r.ledgerOf(t, name).Events {
			if e.Kind == ledger.ToldLeaseLost {
				return true
			}
		}
		return false
	})
}

// open claims of the group.
func (r *run) claims(t *testing.T) (n int) {
	t.Helper()
	must(t, r.pool.QueryRow(t.Context(), `select count(*) from sqlstreams.claim`).Scan(&n))
	return n
}

// frozen or resumed A: the end of a script, at which A's record was refused, or took the range of its new holder away.
func (r *run) recordedByA(t *testing.T, broken bool) {
	t.Helper()
	if broken {
		r.eventually(t, "the range is gone", func() bool { return r.claims(t) == 0 })
	} else {
		r.refused(t, "a")
	}
}

func (r *run) verdict(t *testing.T, want ledger.Verdict) *ledger.Report {
	t.Helper()
	report := r.ended(t)
	if report.Verdict != want {
		t.Errorf("the verdict is %s, want %s", report.Verdict, want)
	}
	return report
}

// ended lets the run end and returns what the checker says.
func (r *run) ended(t *testing.T) *ledger.Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	result, err := r.finish(ctx)
	must(t, err)
	t.Logf("%s", result)
	return result.Report
}

// A is frozen past its lease with every handler of its range running; B takes the range over; A goes on and records.
func TestAFrozenInstancesLateRecordIsRefused(t *testing.T) {
	t.Parallel()
	frozenInstance(t, false)
}

func TestALateRecordThatIsAcceptedIsFound(t *testing.T) {
	t.Parallel()
	r := frozenInstance(t, true)
	if r.Counts[ledger.KindStale] == 0 {
		t.Error("nobody found that B's lease was taken away")
	}
}

func frozenInstance(t *testing.T, broken bool) *ledger.Report {
	r := script(t, nil)
	if broken {
		must(t, breakToken(t.Context(), r.pool))
	}
	r.produceBatch(t, 4)
	a := r.consumer(t, "a", 4, 600*time.Millisecond)
	r.started(t, "a", 4)
	must(t, r.stop(a))
	b := r.consumer(t, "b", 4, 600*time.Millisecond)
	r.started(t, "b", 4)
	// B stands still for a moment, so that A comes first; its lease goes on.
	must(t, r.stop(b))
	must(t, r.cont(a))
	r.recordedByA(t, broken)
	must(t, r.cont(b))
	if broken {
		r.refused(t, "b")
		return r.verdict(t, ledger.Fail)
	}
	return r.verdict(t, ledger.Pass)
}

// A claims two messages, and a crash of the server undoes that. B claims ten from the same place and is killed in the middle. A goes on and records its two.
func TestARangeThatACrashUndidIsNotRecorded(t *testing.T) {
	t.Parallel()
	undoneRange(t, false)
}

func TestMessagesThatAnUndoneRangeTakesAwayAreFoundLost(t *testing.T) {
	t.Parallel()
	if r := undoneRange(t, true); r.Counts[ledger.KindLost] != 8 {
		t.Errorf("%d lost, want 8", r.Counts[ledger.KindLost])
	}
}

func undoneRange(t *testing.T, broken bool) *ledger.Report {
	for range 5 {
		// What commits without waiting is not written for as long as the script needs.
		r := script(t, map[string]string{"wal_writer_delay": "10s"})
		if broken {
			must(t, breakToken(t.Context(), r.pool))
		}
		if !r.undoRange(t) {
			continue
		}
		r.recordedByA(t, broken)
		for _, p := range r.processes {
			if p.cfg.Name == "b" {
				must(t, r.kill(p))
			}
		}
		r.consumer(t, "c", 10, 0)
		if !broken {
			return r.verdict(t, ledger.Pass)
		}
		// A may learn of the crash from one of its connections after all, and then gives its range up by itself: nothing was recorded late, and the script begins again.
		if report := r.ended(t); report.Verdict != ledger.Pass {
			return report
		}
	}
	t.Fatal("no crash undid a claim")
	return nil
}

// undoRange plays the script until A goes on; false: the server happened to write A's claim before it crashed.
func (r *run) undoRange(t *testing.T) bool {
	_, err := r.pool.Exec(t.Context(), "alter database "+databaseName+" set synchronous_commit = off")
	must(t, err)
	// So that the group exists before what is to be undone.
	first := r.consumer(t, "first", 1, 0)
	<-first.ready
	must(t, first.leave())
	<-first.done
	r.produceBatch(t, 10)
	// Full pages of the log are written early: a new one begins here.
	_, err = r.pool.Exec(t.Context(), "checkpoint")
	must(t, err)
	_, err = r.pool.Exec(t.Context(), "select pg_switch_wal()")
	must(t, err)

	a := r.consumer(t, "a", 2, 600*time.Millisecond)
	r.started(t, "a", 2)
	must(t, r.stop(a))
	frozen := time.Now()
	var pid int
	must(t, r.pool.QueryRow(t.Context(), `select min(pid) from pg_stat_activity where application_name = 'a'`).Scan(&pid))
	must(t, r.crash(t.Context(), pid))
	if r.claims(t) > 0 {
		return false
	}
	// A connection that was idle for over a second is looked at before it is used: A will not learn from a broken one that something happened.
	r.eventually(t, "A's connections were idle for long enough", func() bool { return time.Since(frozen) > 1500*time.Millisecond })
	b := r.consumer(t, "b", 10, 900*time.Millisecond)
	r.started(t, "b", 10)
	must(t, r.stop(b))
	must(t, r.cont(a))
	return true
}

// One row is deleted before any group has seen it.
func TestADeletedMessageIsFoundLost(t *testing.T) {
	t.Parallel()
	r := script(t, nil)
	r.produceBatch(t, 20)
	_, err := r.pool.Exec(t.Context(), `delete from sqlstreams.log_1 where id = 10`)
	must(t, err)
	a := r.consumer(t, "a", 4, 0)
	<-a.ready
	report := r.verdict(t, ledger.Fail)
	if report.Counts[ledger.KindLost] != 1 || report.Groups[0].Handled != 19 {
		t.Errorf("%d lost, want 1", report.Counts[ledger.KindLost])
	}
}
