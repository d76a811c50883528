package ledger

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// scene is a run in which all went well: two producers, three messages each way, one group "a" and one ordered group "b", two consumers of each, one of which was
// killed and replaced.
type scene struct {
	book  *Book
	snap  *Snapshot
	chaos bool
}

const streamName = "orders"

// at is a moment of the scene, in milliseconds.
func at(ms int) time.Time { return time.UnixMilli(1_700_000_000_000 + int64(ms)) }

// lease is how long the scene's leases are.
const lease = 2600

func newScene() *scene {
	s := &scene{book: &Book{}, chaos: true}
	run := &Ledger{Process: Process{Name: "run", Role: "run"}, Closed: true}
	s.book.Ledgers = append(s.book.Ledgers, run)
	for i, name := range []string{"p1", "p2", "a1", "a2", "b1", "b2"} {
		s.book.Ledgers = append(s.book.Ledgers, &Ledger{Process: Process{Name: name, PID: 100 + i}, Opened: at(0), Closed: true})
		run.Spawned = append(run.Spawned, Spawn{At: at(0), Name: name, PID: 100 + i, Exited: true})
	}
	p1, p2 := s.ledger("p1"), s.ledger("p2")
	s.produce(p1, "single", 10, 20, Confirmed, []int64{1}, "m1")
	s.produce(p1, "batch", 30, 40, Confirmed, []int64{2, 3, 4}, "m2", "m3", "m4")
	s.produce(p1, "tx", 50, 60, RolledBack, nil, "rolled")
	s.produce(p1, "tx", 70, 80, Confirmed, nil, "m5", "m6")
	s.produce(p2, "single", 90, 95, Refused, nil, "refused")
	s.produce(p2, "single", 100, 0, Unknown, nil, "m7")
	s.produce(p2, "batch", 110, 120, Unknown, nil, "never1", "never2")

	rows := StreamRows{Name: streamName, FirstID: 1}
	for i := range 7 {
		rows.Messages = append(rows.Messages, MessageRow{ID: int64(i + 1), Message: message(fmt.Sprintf("m%d", i+1))})
	}
	rows.Groups = []GroupRows{
		{Name: "a", Claimed: 7, Dead: []DeadRow{{ID: 6, Reason: "terminal", Attempts: 1, DiedAt: at(700)}}, Attempts: []AttemptRow{{ID: 5, Attempt: 1}, {ID: 6, Attempt: 1}}},
		{Name: "b", Claimed: 7, KeyOrder: Ordered},
	}
	s.snap = &Snapshot{Streams: []StreamRows{rows}}

	// a1 handles 1 to 3, and is killed before that is recorded; a2 runs them again when the lease has ended, and the rest. 5 fails once; 6 is a dead letter.
	for id := range 3 {
		s.run("a1", "a", id+1, 200+10*id, 205+10*id, 190+lease, 1, OK)
	}
	s.ledger("a1").Closed = false
	s.fault(Fault{At: at(300), Kind: Kill, Target: "a1"})
	for id := range 4 {
		s.run("a2", "a", id+1, 3000+10*id, 3005+10*id, 2900+lease, 1, OK)
	}
	s.run("a2", "a", 5, 3100, 3110, 2900+lease, 1, Failed)
	s.run("a2", "a", 6, 3110, 3120, 2900+lease, 1, Terminal)
	s.run("a2", "a", 7, 3120, 3130, 2900+lease, 1, OK)
	s.run("a2", "a", 5, 3400, 3410, 3350+lease, 2, OK)
	for id := range 7 {
		s.run("b1", "b", id+1, 200+10*id, 205+10*id, 190+lease, 1, OK)
	}
	return s
}

// message gives the first two messages one key, and each other its own.
func message(business string) Message {
	if business == "m1" || business == "m2" {
		return Message{Business: business, Key: "k"}
	}
	return Message{Business: business, Key: "k" + business}
}

func (s *scene) ledger(name string) *Ledger {
	i := slices.IndexFunc(s.book.Ledgers, func(l *Ledger) bool { return l.Process.Name == name })
	return s.book.Ledgers[i]
}

func (s *scene) stream() *StreamRows { return &s.snap.Streams[0] }

func (s *scene) group(name string) *GroupRows {
	i := slices.IndexFunc(s.stream().Groups, func(g GroupRows) bool { return g.Name == name })
	return &s.stream().Groups[i]
}

func (s *scene) produce(l *Ledger, way string, began, ended int, outcome Outcome, ids []int64, business ...string) {
	c := Call{Stream: streamName, Way: way, Began: at(began), Outcome: outcome, IDs: ids, BeganAt: 2*len(l.Calls) + 1, EndedAt: 2*len(l.Calls) + 2}
	if ended != 0 {
		c.Ended = at(ended)
	}
	for _, b := range business {
		c.Messages = append(c.Messages, message(b))
	}
	l.Calls = append(l.Calls, c)
}

func (s *scene) run(process, group string, id, began, ended, until, attempt int, result Result) {
	r := Run{Stream: streamName, Group: group, ID: int64(id), Message: message(fmt.Sprintf("m%d", id)), Attempt: attempt, Began: at(began), Lease: at(until), Result: result}
	if ended != 0 {
		r.Ended = at(ended)
	}
	l := s.ledger(process)
	l.Runs = append(l.Runs, r)
}

// runs returns the runs of a message in a process's ledger.
func (s *scene) runs(process string, id int64) (found []*Run) {
	l := s.ledger(process)
	for i := range l.Runs {
		if l.Runs[i].ID == id {
			found = append(found, &l.Runs[i])
		}
	}
	return found
}

// forget removes the runs of a message from a process's ledger.
func (s *scene) forget(process string, id int64) {
	l := s.ledger(process)
	l.Runs = slices.DeleteFunc(l.Runs, func(r Run) bool { return r.ID == id })
}

func (s *scene) fault(f Fault) { s.ledger("run").Faults = append(s.ledger("run").Faults, f) }

// remove deletes a message's row.
func (s *scene) remove(id int64) {
	s.stream().Messages = slices.DeleteFunc(s.stream().Messages, func(m MessageRow) bool { return m.ID == id })
}

// swap exchanges the ids of two messages, wherever they stand.
func (s *scene) swap(a, b int64) {
	rows := s.stream().Messages
	rows[a-1].Message, rows[b-1].Message = rows[b-1].Message, rows[a-1].Message
	for _, l := range s.book.Ledgers {
		for i := range l.Runs {
			r := &l.Runs[i]
			if r.ID == a || r.ID == b {
				r.Message = rows[r.ID-1].Message
			}
		}
	}
}

func (s *scene) check() *Report {
	return Check(s.book, s.snap, Settings{Timeout: time.Second, Lease: lease * time.Millisecond, Chaos: s.chaos})
}

func TestSceneInWhichAllWentWellPasses(t *testing.T) {
	r := newScene().check()
	if r.Verdict != Pass || len(r.Findings) > 0 || len(r.Reasons) > 0 {
		t.Fatalf("it does not pass:\n%s", r)
	}
	if r.Intended != 11 || r.Confirmed != 6 || r.Refused != 1 || r.RolledBack != 1 || r.Unknown != 3 || r.UnknownStored != 1 || r.Stored != 7 || r.Calls != 7 {
		t.Errorf("what was produced is counted wrong:\n%s", r)
	}
	a, b := r.Groups[0], r.Groups[1]
	if a.Handled != 6 || a.Runs != 11 || a.RunAgain != 3 || a.Explained[ByKill] != 3 || a.Dead != 1 || a.Failures != 1 || b.Handled != 7 || b.RunAgain != 0 {
		t.Errorf("what was handled is counted wrong:\n%s", r)
	}
	if r.Faults[Kill] != 1 || r.Processes != 7 {
		t.Errorf("the run is counted wrong:\n%s", r)
	}
}
