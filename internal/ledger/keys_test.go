package ledger

import (
	"maps"
	"testing"
)

// keyScene is the scene without the runs of messages 1 and 2, which have one key, in group "b", and without group "a".
func keyScene(order string, requests ...string) *scene {
	s := newScene()
	s.forget("b1", 1)
	s.forget("b1", 2)
	s.group("b").KeyOrder = order
	for i, request := range requests {
		m := &s.stream().Messages[i]
		m.Order = request
		for _, l := range s.book.Ledgers {
			for c := range l.Calls {
				for j := range l.Calls[c].Messages {
					if known := &l.Calls[c].Messages[j]; known.Business == m.Business {
						known.Order = request
					}
				}
			}
		}
	}
	return s
}

// killed is the death of b1, and what may run before.
func (s *scene) killed(ms int) {
	s.ledger("b1").Closed = false
	s.fault(Fault{At: at(ms), Kind: Kill, Target: "b1"})
}

// In each, messages 1 and 2 have one key, and b2 takes over what b1 had.
func TestAKeysOrderIsJudged(t *testing.T) {
	const first, second = 190 + lease, 2900 + lease // leases
	for _, c := range []struct {
		name  string
		scene *scene
		runs  func(*scene)
		want  map[Kind]int
	}{
		{"one after the other, by two instances", keyScene(Ordered), func(s *scene) {
			s.run("b1", "b", 1, 200, 205, first, 1, OK)
			s.run("b2", "b", 2, 206, 210, first, 1, OK)
		}, nil},
		{"at once", keyScene(Ordered), func(s *scene) {
			s.run("b1", "b", 1, 200, 210, first, 1, OK)
			s.run("b2", "b", 2, 205, 220, first, 1, OK)
		}, map[Kind]int{KindKeyOrder: 1, KindKeyTogether: 1}},
		{"the other way round", keyScene(Ordered), func(s *scene) {
			s.run("b2", "b", 2, 200, 205, first, 1, OK)
			s.run("b1", "b", 1, 206, 210, first, 1, OK)
		}, map[Kind]int{KindKeyOrder: 1}},
		{"while the first waits for its retry", keyScene(Ordered), func(s *scene) {
			s.run("b1", "b", 1, 200, 205, first, 1, Failed)
			s.run("b1", "b", 2, 206, 210, first, 1, OK)
			s.run("b1", "b", 1, 300, 305, first, 2, OK)
		}, map[Kind]int{KindKeyOrder: 1}},
		{"while the first waits after a delay", keyScene(Ordered), func(s *scene) {
			s.run("b1", "b", 1, 200, 205, first, 1, Delayed)
			s.run("b2", "b", 2, 206, 210, first, 1, OK)
			s.run("b1", "b", 1, 300, 305, first, 1, OK)
		}, map[Kind]int{KindKeyOrder: 1}},
		{"both again after a crash", keyScene(Ordered), func(s *scene) {
			s.run("b1", "b", 1, 200, 205, first, 1, OK)
			s.run("b1", "b", 2, 206, 210, first, 1, OK)
			s.killed(300)
			s.run("b2", "b", 1, 3000, 3005, second, 1, OK)
			s.run("b2", "b", 2, 3006, 3010, second, 1, OK)
		}, nil},
		{"both again after a crash in the second", keyScene(Ordered), func(s *scene) {
			s.run("b1", "b", 1, 200, 205, first, 1, OK)
			s.run("b1", "b", 2, 206, 0, first, 1, "")
			s.killed(210)
			s.run("b2", "b", 1, 3000, 3005, second, 1, OK)
			s.run("b2", "b", 2, 3006, 3010, second, 1, OK)
		}, nil},
		{"both again after a crash, the second first", keyScene(Ordered), func(s *scene) {
			s.run("b1", "b", 1, 200, 205, first, 1, OK)
			s.killed(300)
			s.run("b2", "b", 2, 3000, 3005, second, 1, OK)
			s.run("b2", "b", 1, 3006, 3010, second, 1, OK)
		}, map[Kind]int{KindKeyOrder: 1}},
		{"only the first again after a crash, so the second was recorded before it", keyScene(Ordered), func(s *scene) {
			s.run("b1", "b", 1, 200, 205, first, 1, OK)
			s.run("b1", "b", 2, 206, 210, first, 1, OK)
			s.killed(300)
			s.run("b2", "b", 1, 3000, 3005, second, 1, OK)
		}, map[Kind]int{KindKeyOrder: 1}},
		{"under another lease, before the first was recorded", keyScene(Ordered), func(s *scene) {
			s.run("b1", "b", 1, 200, 205, first, 1, OK)
			s.run("b1", "b", 2, 206, 210, first+5, 1, OK)
			s.killed(300)
			s.run("b2", "b", 1, 3000, 3005, second, 1, OK)
			s.run("b2", "b", 2, 3006, 3010, second, 1, OK)
		}, map[Kind]int{KindKeyOrder: 1}},
		{"in another instance, before the first was recorded", keyScene(Ordered), func(s *scene) {
			s.run("b1", "b", 1, 200, 205, first, 1, OK)
			s.killed(300)
			s.run("b2", "b", 2, 400, 405, first, 1, Failed)
			s.run("b2", "b", 1, 3000, 3005, second, 1, OK)
			s.run("b2", "b", 2, 3006, 3010, second, 2, OK)
		}, map[Kind]int{KindKeyOrder: 1}},
		{"behind a death", keyScene(Ordered), func(s *scene) {
			s.run("b1", "b", 1, 200, 205, first, 1, Terminal)
			s.group("b").Dead = []DeadRow{{ID: 1, Reason: "terminal", Attempts: 1, DiedAt: at(210)}}
			s.run("b2", "b", 2, 211, 215, first, 1, OK)
		}, nil},
		{"behind a death that is not recorded yet, under the same lease", keyScene(Ordered), func(s *scene) {
			s.run("b1", "b", 1, 200, 205, first, 1, Terminal)
			s.group("b").Dead = []DeadRow{{ID: 1, Reason: "terminal", Attempts: 1, DiedAt: at(220)}}
			s.run("b1", "b", 2, 206, 210, first, 1, OK)
		}, nil},
		{"both again after a crash, behind a death", keyScene(Ordered), func(s *scene) {
			s.run("b1", "b", 1, 200, 205, first, 1, Terminal)
			s.run("b1", "b", 2, 206, 210, first, 1, OK)
			s.killed(300)
			s.run("b2", "b", 1, 3000, 3005, second, 1, Terminal)
			s.run("b2", "b", 2, 3006, 3010, second, 1, OK)
			s.group("b").Dead = []DeadRow{{ID: 1, Reason: "terminal", Attempts: 1, DiedAt: at(3020)}}
		}, nil},
		{"both again after a crash, behind a failure that was not its last", keyScene(Ordered), func(s *scene) {
			s.run("b1", "b", 1, 200, 205, first, 1, Failed)
			s.run("b1", "b", 2, 206, 210, first, 1, OK)
			s.killed(300)
			s.run("b2", "b", 1, 3000, 3005, second, 1, Failed)
			s.run("b2", "b", 1, 3106, 3110, second, 2, OK)
			s.run("b2", "b", 2, 3206, 3210, second, 1, OK)
		}, map[Kind]int{KindKeyOrder: 1}},
		{"before a death, in another instance", keyScene(Ordered), func(s *scene) {
			s.run("b1", "b", 1, 200, 205, first, 1, Terminal)
			s.group("b").Dead = []DeadRow{{ID: 1, Reason: "terminal", Attempts: 1, DiedAt: at(220)}}
			s.run("b2", "b", 2, 206, 210, first, 1, OK)
		}, map[Kind]int{KindKeyOrder: 1}},
		{"before the attempt that was the last", keyScene(Ordered), func(s *scene) {
			s.run("b1", "b", 1, 200, 205, first, 1, Failed)
			s.run("b1", "b", 2, 206, 210, first, 1, OK)
			s.run("b1", "b", 1, 300, 305, first, 2, Failed)
			s.group("b").Dead = []DeadRow{{ID: 1, Reason: "exhausted", Attempts: 2, DiedAt: at(310)}}
		}, map[Kind]int{KindKeyOrder: 1}},
		{"a handler that outlives its lease, frozen", keyScene(Ordered), func(s *scene) {
			s.run("b1", "b", 1, 200, 3300, first, 1, OK)
			s.fault(Fault{At: at(202), Kind: Stop, Target: "b1"})
			s.fault(Fault{At: at(3200), Kind: Cont, Target: "b1"})
			s.run("b2", "b", 1, 3000, 3005, second, 1, OK)
			s.run("b2", "b", 2, 3100, 3400, second, 1, OK)
		}, nil},
		{"a handler whose first word comes after its lease", keyScene(Ordered), func(s *scene) {
			s.fault(Fault{At: at(195), Kind: Stop, Target: "b1"})
			s.fault(Fault{At: at(3049), Kind: Cont, Target: "b1"})
			s.run("b2", "b", 1, 3000, 3060, second, 1, OK)
			s.run("b1", "b", 2, 3050, 3055, first, 1, OK)
			s.run("b2", "b", 2, 3061, 3070, second, 1, OK)
		}, nil},
		{"a handler that was abandoned", keyScene(Ordered), func(s *scene) {
			s.run("b1", "b", 1, 200, 2000, first, 1, Abandoned)
			s.run("b1", "b", 1, 1400, 1410, first+1000, 2, OK)
			s.run("b2", "b", 2, 1500, 1510, first+1000, 1, OK)
		}, nil},
		{"a lease that others wait for, though its process is dead", keyScene(Exclusive), func(s *scene) {
			s.run("b1", "b", 1, 200, 0, first, 1, "")
			s.killed(300)
			s.run("b2", "b", 2, 3006, 3010, second, 1, OK)
			s.run("b2", "b", 1, 3106, 3110, second, 1, OK)
		}, nil},
		{"exclusive, the other way round", keyScene(Exclusive), func(s *scene) {
			s.run("b2", "b", 2, 200, 205, first, 1, OK)
			s.run("b1", "b", 1, 206, 210, first, 1, OK)
		}, nil},
		{"exclusive, at once", keyScene(Exclusive), func(s *scene) {
			s.run("b2", "b", 2, 200, 207, first, 1, OK)
			s.run("b1", "b", 1, 206, 210, first, 1, OK)
		}, map[Kind]int{KindKeyTogether: 1}},
		{"by request: ordered and exclusive, at once", keyScene("", Ordered, Exclusive), func(s *scene) {
			s.run("b1", "b", 1, 200, 207, first, 1, OK)
			s.run("b2", "b", 2, 206, 210, first, 1, OK)
		}, map[Kind]int{KindKeyTogether: 1}},
		{"by request: ordered and exclusive, the other way round", keyScene("", Ordered, Exclusive), func(s *scene) {
			s.run("b2", "b", 2, 200, 205, first, 1, OK)
			s.run("b1", "b", 1, 206, 210, first, 1, OK)
		}, nil},
		{"by request: ordered and parallel, at once", keyScene("", Ordered, "parallel"), func(s *scene) {
			s.run("b1", "b", 1, 200, 207, first, 1, OK)
			s.run("b2", "b", 2, 206, 210, first, 1, OK)
		}, nil},
		{"by request: ordered twice, the other way round", keyScene("", Ordered, Ordered), func(s *scene) {
			s.run("b2", "b", 2, 200, 205, first, 1, OK)
			s.run("b1", "b", 1, 206, 210, first, 1, OK)
		}, map[Kind]int{KindKeyOrder: 1}},
		{"nobody's order, at once", keyScene(""), func(s *scene) {
			s.run("b1", "b", 1, 200, 207, first, 1, OK)
			s.run("b2", "b", 2, 206, 210, first, 1, OK)
		}, nil},
		{"the group says parallel, whatever the messages request", keyScene("parallel", Ordered, Ordered), func(s *scene) {
			s.run("b1", "b", 1, 200, 207, first, 1, OK)
			s.run("b2", "b", 2, 206, 210, first, 1, OK)
		}, nil},
		{"the group says ordered, whatever the messages request", keyScene(Ordered, "parallel", "parallel"), func(s *scene) {
			s.run("b2", "b", 2, 200, 205, first, 1, OK)
			s.run("b1", "b", 1, 206, 210, first, 1, OK)
		}, map[Kind]int{KindKeyOrder: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.runs(c.scene)
			r := c.scene.check()
			want := Pass
			if c.want != nil {
				want = Fail
			}
			if r.Verdict != want || !maps.Equal(r.Counts, c.want) {
				t.Errorf("found %v, want %v:\n%s", r.Counts, c.want, r)
			}
		})
	}
}

// What is not drained is not judged as if it were: a success of a message that waits still was not recorded.
func TestASuccessThatIsNotRecordedFreesNoSuccessor(t *testing.T) {
	s := keyScene(Ordered)
	s.run("b1", "b", 1, 200, 205, 190+lease, 1, OK)
	s.run("b1", "b", 2, 206, 210, 190+lease, 1, OK)
	s.killed(300)
	s.group("b").Claims = []Span{{0, 2}}
	if r := s.check(); r.Verdict != NotDecided {
		t.Errorf("want unknown:\n%s", r)
	}
	// A mark says that a message of an open range is done.
	s.group("b").Done = []int64{1, 2}
	if r := s.check(); r.Verdict != NotDecided || len(r.Counts) > 0 {
		t.Errorf("want unknown, and nothing found:\n%s", r)
	}
	s.group("b").Done = nil
	s.run("b2", "b", 2, 400, 405, 290+lease, 1, OK)
	if r := s.check(); r.Verdict != Fail || r.Counts[KindKeyOrder] != 1 {
		t.Errorf("want fail:\n%s", r)
	}
}

func TestRunsThatOutliveTheirLeaseAreCounted(t *testing.T) {
	s := keyScene(Ordered)
	s.run("b1", "b", 1, 200, 2000, 190+lease, 1, Abandoned)
	s.run("b1", "b", 1, 1400, 1410, 1190+lease, 2, OK)
	s.run("b2", "b", 2, 1500, 1510, 1190+lease, 1, OK)
	r := s.check()
	if g := r.Groups[1]; r.Verdict != Pass || g.Keys != 6 || g.Keyed != 8 || g.Outlived != 1 {
		t.Errorf("want 1 of 8 runs of 6 keys:\n%s", r)
	}
}
