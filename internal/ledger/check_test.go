package ledger

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// Each check can fail: break one thing in a scene that passes, and exactly that is found.
func TestEachBrokenPromiseIsFound(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(*scene)
		want  map[Kind]int
	}{
		{"a stored message that no handler of a group ran", func(s *scene) { s.forget("b1", 4) }, map[Kind]int{KindLost: 1}},
		{"a message whose only run failed, and which waits nowhere", func(s *scene) { s.forget("a2", 4); s.run("a2", "a", 4, 3030, 3035, 2900+lease, 1, Failed) }, map[Kind]int{KindLost: 1}},
		{"a message whose only run was cut off, and which waits nowhere", func(s *scene) { s.forget("b1", 7); s.run("b1", "b", 7, 260, 0, 190+lease, 1, "") }, map[Kind]int{KindLost: 1}},
		{"a message that was handled in one group and in the other not", func(s *scene) { s.forget("b1", 3) }, map[Kind]int{KindLost: 1}},
		{"a confirmed message whose row is gone before anybody handled it", func(s *scene) { s.remove(4); s.forget("a2", 4); s.forget("b1", 4) }, map[Kind]int{KindLost: 1, KindGap: 1}},
		{"a confirmed message that never got a row", func(s *scene) { s.produce(s.ledger("p2"), "single", 130, 140, Confirmed, nil, "lost") }, map[Kind]int{KindLost: 1}},
		{"a row that is gone after everybody handled it", func(s *scene) { s.remove(4) }, map[Kind]int{KindGap: 1}},
		{"the newest row gone after everybody handled it", func(s *scene) { s.remove(7) }, map[Kind]int{KindGap: 1}},
		{"a gap", func(s *scene) {
			s.stream().Messages = append(s.stream().Messages, MessageRow{ID: 9, Message: message("m9")})
			s.produce(s.ledger("p2"), "single", 130, 140, Confirmed, []int64{9}, "m9")
			s.group("a").Claimed, s.group("b").Claimed = 9, 9
			s.run("a2", "a", 9, 3500, 3510, 2900+lease, 1, OK)
			s.run("b1", "b", 9, 400, 410, 190+lease, 1, OK)
		}, map[Kind]int{KindGap: 1}},
		{"a stored message that nobody produced", func(s *scene) {
			s.stream().Messages[6].Business = "nobody"
			for _, r := range append(s.runs("a2", 7), s.runs("b1", 7)...) {
				r.Message.Business = "nobody"
			}
		}, map[Kind]int{KindInvented: 3}},
		{"a handled message that nobody produced", func(s *scene) { s.runs("b1", 7)[0].Message.Business = "nobody" }, map[Kind]int{KindInvented: 1, KindLost: 1}},
		{"a message handled under an id that does not exist", func(s *scene) { s.runs("b1", 7)[0].ID = 70 }, map[Kind]int{KindInvented: 1, KindLost: 1}},
		{"a message handled under another's id", func(s *scene) { s.runs("b1", 7)[0].ID = 6 }, map[Kind]int{KindInvented: 1, KindLost: 1}},
		{"a refused message that is stored", func(s *scene) { s.ledger("p2").Calls[1].Outcome = Refused }, map[Kind]int{KindInvented: 1}},
		{"a message of a rolled back transaction that is stored", func(s *scene) { s.ledger("p2").Calls[1].Outcome = RolledBack }, map[Kind]int{KindInvented: 1}},
		{"a stored key that is another", func(s *scene) { s.stream().Messages[6].Key = "k2" }, map[Kind]int{KindAltered: 1}},
		{"a stored order that is another", func(s *scene) { s.stream().Messages[6].Order = Exclusive }, map[Kind]int{KindAltered: 1}},
		{"a handled key that is another", func(s *scene) { s.runs("b1", 7)[0].Message.Key = "k2" }, map[Kind]int{KindAltered: 1}},
		{"contents that are others", func(s *scene) { s.runs("b1", 7)[0].Result = Altered; s.run("b1", "b", 7, 500, 510, 480+lease, 2, OK) }, map[Kind]int{KindAltered: 1}},
		{"a message stored under two ids", func(s *scene) {
			s.stream().Messages = append(s.stream().Messages, MessageRow{ID: 8, Message: message("m7")})
			s.group("a").Claimed, s.group("b").Claimed = 8, 8
		}, map[Kind]int{KindStoredTwice: 1}},
		{"a message stored in the log and in the inbox", func(s *scene) { s.stream().Inbox = []MessageRow{{Message: message("m7")}} }, map[Kind]int{KindStoredTwice: 1}},
		{"a part of a batch of unknown outcome", func(s *scene) {
			s.ledger("p2").Calls[1].Messages = append(s.ledger("p2").Calls[1].Messages, message("other"))
		}, map[Kind]int{KindSplit: 1}},
		{"a message confirmed under a wrong id", func(s *scene) { s.ledger("p1").Calls[0].IDs[0] = 2 }, map[Kind]int{KindWrongID: 1}},
		{"a batch in another order", func(s *scene) {
			s.swap(2, 3)
			s.ledger("p1").Calls[1].IDs = nil
		}, map[Kind]int{KindOrder: 1}},
		{"a later call of the same process under a lower id", func(s *scene) {
			s.swap(1, 5)
			s.ledger("p1").Calls[0].IDs = nil
		}, map[Kind]int{KindOrder: 2}}, // m2 to m4, and m5 with m6
		{"a later call of another process under a lower id", func(s *scene) { s.swap(6, 7) }, map[Kind]int{KindOrder: 1}},
		{"an ordered key whose second message ran before its first had ended", func(s *scene) { s.runs("b1", 2)[0].Began = at(204) }, map[Kind]int{KindKeyOrder: 1, KindKeyTogether: 1}},
		{"an ordered key whose second message ran while its first waited for its retry", func(s *scene) {
			s.runs("b1", 1)[0].Result = Failed
			s.run("b1", "b", 1, 900, 910, 890+lease, 2, OK)
		}, map[Kind]int{KindKeyOrder: 1}},
		{"a run while another's lease is valid", func(s *scene) { s.run("b2", "b", 7, 700, 0, 690+lease, 1, "") }, map[Kind]int{KindOverlap: 1}},
		{"a success while another's lease is valid", func(s *scene) { s.run("b2", "b", 7, 700, 710, 690+lease, 1, OK) }, map[Kind]int{KindOverlap: 1, KindDuplicate: 1}},
		{"a takeover before a killed process's lease had ended", func(s *scene) { s.runs("a2", 1)[0].Began = at(190 + lease - 1) }, map[Kind]int{KindOverlap: 1}},
		{"a lease that was taken away", func(s *scene) {
			l := s.ledger("b1")
			l.Events = append(l.Events, Event{At: at(900), Kind: ToldLeaseLost, Stream: streamName, Group: "b", Low: 0, High: 7})
		}, map[Kind]int{KindStale: 1}},
		{"a delivery's lease that was taken away", func(s *scene) {
			l := s.ledger("a2")
			l.Events = append(l.Events, Event{At: at(3500), Kind: ToldLeaseLost, Stream: streamName, Group: "a", Message: 5})
		}, map[Kind]int{KindStale: 1}},
		{"a failure that was recorded twice", func(s *scene) { g := s.group("a"); g.Attempts = append(g.Attempts, AttemptRow{ID: 5, Attempt: 1}) }, map[Kind]int{KindStale: 1}},
		{"a dead letter that never failed", func(s *scene) {
			s.forget("b1", 7)
			s.group("b").Dead = []DeadRow{{ID: 7, Reason: "exhausted", Attempts: 10}}
		}, map[Kind]int{KindNoCause: 1}},
		{"a message handled again for no reason", func(s *scene) { s.run("b2", "b", 7, 4000, 4010, 3900+lease, 1, OK) }, map[Kind]int{KindDuplicate: 1}},
		{"a message handled again for a reason that came too late", func(s *scene) {
			s.run("b2", "b", 7, 6000, 6010, 5900+lease, 1, OK)
			s.fault(Fault{At: at(5000), Kind: Kill, Target: "b1"})
		}, map[Kind]int{KindDuplicate: 1}},
		{"a message handled again for what happened to somebody else", func(s *scene) {
			s.run("b2", "b", 7, 4000, 4010, 3900+lease, 1, OK)
			s.fault(Fault{At: at(300), Kind: TerminateConn, Target: "b2"})
		}, map[Kind]int{KindDuplicate: 1}},
		{"a process that ended by itself", func(s *scene) { s.ledger("b2").Closed = false }, map[Kind]int{KindDied: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene()
			c.spoil(s)
			r := s.check()
			if r.Verdict != Fail || !maps.Equal(r.Counts, c.want) {
				t.Errorf("found %v, want %v:\n%s", r.Counts, c.want, r)
			}
		})
	}
}

func TestWhatCannotBeDecidedIsUnknown(t *testing.T) {
	for _, c := range []struct {
		name   string
		spoil  func(*scene)
		reason string
	}{
		{"no ledgers", func(s *scene) { s.book = &Book{} }, "there are no ledgers"},
		{"no snapshot", func(s *scene) { s.snap = nil }, "no snapshot"},
		{"a consumer's ledger missing", func(s *scene) {
			s.book.Ledgers = slices.DeleteFunc(s.book.Ledgers, func(l *Ledger) bool { return l.Process.Name == "b1" })
		}, "process b1 is missing"},
		{"a producer's ledger missing", func(s *scene) {
			s.book.Ledgers = slices.DeleteFunc(s.book.Ledgers, func(l *Ledger) bool { return l.Process.Name == "p2" })
		}, "process p2 is missing"},
		{"the run's ledger missing", func(s *scene) { s.book.Ledgers = s.book.Ledgers[1:]; s.ledger("a1").Closed = true }, "ledger of the run itself"},
		{"a ledger damaged", func(s *scene) { s.ledger("b1").Damage = "line 3" }, "is damaged: line 3"},
		{"a torn record of a process that was not killed", func(s *scene) { s.ledger("b1").Torn = 1 }, "torn record"},
		{"a process that still runs", func(s *scene) { s.ledger("run").Spawned[0].Exited = false }, "nobody saw process p1 end"},
		{"a business id used twice", func(s *scene) { s.produce(s.ledger("p2"), "single", 130, 140, Confirmed, nil, "m1") }, "was used twice by its producers"},
		{"a stream without rows", func(s *scene) { s.ledger("p2").Calls[2].Stream = "other" }, "stream other is not in the snapshot"},
		{"a group without rows", func(s *scene) { s.run("b1", "c", 1, 300, 310, 190+lease, 1, OK) }, "group c of stream orders is not in the snapshot"},
		{"a stream without groups", func(s *scene) {
			s.stream().Groups = nil
			for _, l := range s.book.Ledgers {
				l.Runs = nil
			}
		}, "has no group"},
		{"no fault", func(s *scene) { s.ledger("run").Faults = nil; s.ledger("a1").Closed = true; s.ledger("a1").Runs = nil }, "no fault happened"},
		{"nothing ran again", func(s *scene) { s.ledger("a1").Runs = nil }, "not one message ran again"},
		{"nothing confirmed", func(s *scene) {
			for i := range s.ledger("p1").Calls {
				s.ledger("p1").Calls[i].Outcome = Unknown
			}
		}, "nothing was produced"},
		{"a backlog", func(s *scene) { s.forget("b1", 7); s.group("b").Claimed = 6 }, "it stands at 6 of 7"},
		{"a pending delivery", func(s *scene) { s.forget("b1", 7); s.group("b").Deliveries = []int64{7} }, "1 deliveries"},
		{"a pending delivery of what was handled", func(s *scene) { s.group("b").Deliveries = []int64{7} }, "1 deliveries"},
		{"an open range", func(s *scene) { s.forget("b1", 7); s.group("b").Claims = []Span{{6, 7}} }, "1 open ranges"},
		{"a message in the inbox", func(s *scene) {
			s.produce(s.ledger("p2"), "tx", 130, 140, Confirmed, nil, "m8")
			s.stream().Inbox = []MessageRow{{Message: message("m8")}}
		}, "in the inbox still"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene()
			c.spoil(s)
			r := s.check()
			if r.Verdict != NotDecided || !strings.Contains(strings.Join(r.Reasons, "\n"), c.reason) {
				t.Errorf("want unknown because of %q:\n%s", c.reason, r)
			}
		})
	}
}

func TestWhatIsBrokenFailsThoughTheRunWasNotComplete(t *testing.T) {
	s := newScene()
	s.ledger("run").Faults = nil
	s.ledger("a1").Closed = true
	s.forget("b1", 4)
	if r := s.check(); r.Verdict != Fail || len(r.Reasons) == 0 {
		t.Errorf("want fail, with reasons:\n%s", r)
	}
}

func TestWithoutChaosNeitherFaultsNorRepetitionsAreAsked(t *testing.T) {
	s := newScene()
	s.chaos = false
	s.ledger("run").Faults = nil
	s.ledger("a1").Closed = true
	s.ledger("a1").Runs = nil
	if r := s.check(); r.Verdict != Pass {
		t.Errorf("want pass:\n%s", r)
	}
}

func TestEachRepetitionHasItsExplanation(t *testing.T) {
	// b1's success on message 7 stands at 260 with a lease until 2790; b2 runs it again at 4000.
	for _, c := range []struct {
		why   Cause
		cause func(*scene)
	}{
		{ByKill, func(s *scene) { s.fault(Fault{At: at(2000), Kind: Kill, Target: "b1"}) }},
		{ByFreeze, func(s *scene) {
			s.fault(Fault{At: at(100), Kind: Stop, Target: "b1"})
			s.fault(Fault{At: at(3500), Kind: Cont, Target: "b1"})
		}},
		{ByFreeze, func(s *scene) { s.fault(Fault{At: at(1000), Kind: Stop, Target: "b1"}) }},
		{ByFreeze, func(s *scene) {
			// It was frozen between the product's decision to start the handler and the handler's first word.
			r := s.runs("b1", 7)[0]
			r.Began, r.Ended = at(5000), at(5010)
			s.fault(Fault{At: at(250), Kind: Stop, Target: "b1"})
			s.fault(Fault{At: at(4990), Kind: Cont, Target: "b1"})
		}},
		{ByServer, func(s *scene) { s.fault(Fault{At: at(3000), Kind: ServerImmediate}) }},
		{ByServer, func(s *scene) {
			s.fault(Fault{At: at(100), Kind: KillBackend})
			s.fault(Fault{At: at(1000), Kind: ServerStart})
		}},
		{ByConnection, func(s *scene) { s.fault(Fault{At: at(1000), Kind: TerminateConn, Target: "b1"}) }},
		{ByExpiry, func(s *scene) {
			// It was told before the handler came to its first word.
			s.ledger("b1").Events = []Event{{At: at(250), Kind: ToldStale, Stream: streamName, Group: "b", Low: 0, High: 7}}
		}},
		{ByExpiry, func(s *scene) {
			s.ledger("b1").Events = []Event{{At: at(300), Kind: ToldStale, Stream: streamName, Group: "b", Low: 0, High: 7}}
		}},
		{ByExpiry, func(s *scene) {
			s.ledger("b1").Events = []Event{{At: at(4020), Kind: ToldLeaseLost, Stream: streamName, Group: "b", Low: 5, High: 8}}
		}},
		{ByOvertime, func(s *scene) {
			s.ledger("b1").Events = []Event{{At: at(1300), Kind: ToldAbandoned, Stream: streamName, Group: "b", Message: 7}}
		}},
		{ByOvertime, func(s *scene) { s.runs("b1", 7)[0].Ended = at(1260) }},
	} {
		s := newScene()
		s.run("b2", "b", 7, 4000, 4010, 3900+lease, 1, OK)
		c.cause(s)
		r := s.check()
		if r.Verdict != Pass || r.Groups[1].RunAgain != 1 || r.Groups[1].Explained[c.why] != 1 {
			t.Errorf("want the explanation %q:\n%s", c.why, r)
		}
	}
}

func TestWhatEndsALeaseEarlyIsNoOverlap(t *testing.T) {
	for name, change := range map[string]func(*scene){
		"a failure that is retried": func(s *scene) { s.runs("b1", 7)[0].Result = Failed; s.run("b2", "b", 7, 700, 710, 690+lease, 2, OK) },
		"a delay":                   func(s *scene) { s.runs("b1", 7)[0].Result = Delayed; s.run("b2", "b", 7, 700, 710, 690+lease, 1, OK) },
		"an abandoned handler that still runs": func(s *scene) {
			s.runs("b1", 7)[0].Result, s.runs("b1", 7)[0].Ended = Abandoned, at(2000)
			s.run("b2", "b", 7, 1700, 1710, 1690+lease, 2, OK)
		},
		"a process that leaves": func(s *scene) {
			s.runs("b1", 7)[0].Result, s.runs("b1", 7)[0].Ended = "", time.Time{}
			s.ledger("b1").Leaving = at(600)
			s.run("b2", "b", 7, 700, 710, 690+lease, 1, OK)
		},
		"a crash of the server between the claim and the run": func(s *scene) {
			r := s.runs("b1", 7)[0]
			r.Began, r.Ended, r.Lease = at(1200), at(1210), at(lease+100)
			s.fault(Fault{At: at(120), Kind: KillBackend})
			s.fault(Fault{At: at(300), Kind: ServerStart})
			s.run("b2", "b", 7, 1300, 1310, 1250+lease, 1, OK)
		},
		"a crash of the server": func(s *scene) {
			s.fault(Fault{At: at(400), Kind: KillBackend})
			s.fault(Fault{At: at(600), Kind: ServerStart})
			s.run("b2", "b", 7, 700, 710, 690+lease, 1, OK)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			change(s)
			if r := s.check(); r.Verdict != Pass {
				t.Errorf("want pass:\n%s", r)
			}
		})
	}
}

func TestALostLeaseThatMayBeLostIsNoFinding(t *testing.T) {
	told := func(s *scene, ms int) {
		l := s.ledger("b1")
		l.Events = append(l.Events, Event{At: at(ms), Kind: ToldLeaseLost, Stream: streamName, Group: "b", Low: 0, High: 7})
	}
	for name, change := range map[string]func(*scene){
		"after its end":          func(s *scene) { told(s, 190+lease) },
		"its connection was cut": func(s *scene) { told(s, 900); s.fault(Fault{At: at(800), Kind: TerminateConn, Target: "b1"}) },
		"the server crashed":     func(s *scene) { told(s, 900); s.fault(Fault{At: at(800), Kind: ServerImmediate}) },
		"the server crashed between the claim and the run": func(s *scene) {
			l := s.ledger("b2")
			s.run("b2", "b", 7, 4900, 4910, 3000+lease, 1, OK)
			l.Events = append(l.Events, Event{At: at(5000), Kind: ToldLeaseLost, Stream: streamName, Group: "b", Low: 6, High: 7})
			s.fault(Fault{At: at(3010), Kind: ServerImmediate})
			s.fault(Fault{At: at(3500), Kind: ServerStart})
		},
		"which of two leases it was is open": func(s *scene) { s.run("b1", "b", 3, 3000, 0, 2900+lease, 1, ""); told(s, 3100) },
		"nothing of it ran, so it is not known": func(s *scene) {
			l := s.ledger("b2")
			l.Events = append(l.Events, Event{At: at(900), Kind: ToldLeaseLost, Stream: streamName, Group: "b", Low: 0, High: 7})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene()
			change(s)
			if r := s.check(); r.Verdict != Pass {
				t.Errorf("want pass:\n%s", r)
			}
		})
	}
}

func TestAClockThatWasSetBackLeavesOnlyTheOrderWithinAProcess(t *testing.T) {
	s := newScene()
	s.swap(6, 7) // found between the processes, as long as the clock is sound
	s.ledger("p1").Calls[3].Ended = at(65)
	if r := s.check(); r.Verdict != Pass {
		t.Errorf("want pass:\n%s", r)
	}
}

func TestReportNamesEverything(t *testing.T) {
	s := newScene()
	s.forget("b1", 4)
	text := s.check().String()
	for _, want := range []string{
		"processes        7, 0 records torn", "kill 1", "11 messages in 7 calls: 6 confirmed, 1 refused, 1 rolled back, 3 unknown (1 of them stored); 7 stored",
		"group a          handled 6 in 11 runs: 1 failed, 0 delayed, 0 abandoned, 0 cut off; 1 dead; 3 run again (its process was killed 3)",
		"lost: stream orders group b message m4 id 4 (stored, 0 runs and no success)", "fail",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
	for _, kind := range kinds() {
		if !strings.Contains(text, string(kind)) {
			t.Errorf("the report does not name %q", kind)
		}
	}
}

// A success that its transaction could not commit is none: the message may run again at once, under the lease that stands. Without that word it may not.
func TestAnUndoneSuccessIsNone(t *testing.T) {
	for name, c := range map[string]struct {
		told *Event
		want Verdict
	}{
		"told":                   {&Event{At: at(320), Kind: ToldAgain, Stream: streamName, Group: "b", Message: 7}, Pass},
		"not told":               {nil, Fail},
		"told of another":        {&Event{At: at(320), Kind: ToldAgain, Stream: streamName, Group: "b", Message: 6}, Fail},
		"told before it ended":   {&Event{At: at(1), Kind: ToldAgain, Stream: streamName, Group: "b", Message: 7}, Fail},
		"told of something else": {&Event{At: at(320), Kind: ToldStale, Stream: streamName, Group: "b", Message: 6}, Fail},
	} {
		s := newScene()
		first := s.runs("b1", 7)[0]
		first.Ended = at(310)
		s.run("b1", "b", 7, 400, 410, 300+lease, 1, OK)
		if c.told != nil {
			s.ledger("b1").Events = append(s.ledger("b1").Events, *c.told)
		}
		if r := s.check(); r.Verdict != c.want {
			t.Errorf("%s: want %s:\n%s", name, c.want, r)
		}
	}
}
