package wake

import (
	"errors"
	"testing"
	"time"
)

const ms = time.Millisecond

// near says whether moments are those expected, each late by at most the slack.
func near(got []time.Duration, slack time.Duration, want ...time.Duration) bool {
	if len(got) != len(want) {
		return false
	}
	for i := range got {
		if got[i] < want[i] || got[i] > want[i]+slack {
			return false
		}
	}
	return true
}

// drainBubble is a bubble with one idle group of stream 1, subscribed and long settled.
func drainBubble(t *testing.T, f func(*testing.T, *Hub, *fakeSource, *Subscription)) {
	t.Helper()
	bubble(t, Config{PollInterval: time.Hour}, func(t *testing.T, h *Hub, s *fakeSource, _ *logBuffer) {
		s.set(Probed{Group: 1, Stream: 1, NextDue: -1})
		sub := h.Subscribe(1, 1)
		after(10 * time.Second)
		f(t, h, s, sub)
	})
}

// fullPlan is when is looked for rows that never come.
func fullPlan() []time.Duration {
	return []time.Duration{0, 5 * ms, 15 * ms, 35 * ms, 75 * ms, 155 * ms, 315 * ms, 565 * ms, 815 * ms, 1000 * ms}
}

func TestLooksAgainForASecond(t *testing.T) {
	drainBubble(t, func(t *testing.T, _ *Hub, f *fakeSource, sub *Subscription) {
		from := time.Now()
		f.broadcast("i1")
		after(time.Minute)
		if got := f.times(&f.drains, from); !near(got, 0, fullPlan()...) {
			t.Errorf("looked after %v", got)
		}
		if woken(sub) {
			t.Error("woken though nothing came")
		}
	})
}

func TestLooksUntilSomethingCame(t *testing.T) {
	drainBubble(t, func(t *testing.T, _ *Hub, f *fakeSource, sub *Subscription) {
		from := time.Now()
		f.with(func() {
			f.drain = func(int) (DrainReply, error) {
				if time.Since(from) >= 30*ms && len(f.drains) == 4 {
					return DrainReply{Moved: 1, Head: 1}, nil
				}
				return DrainReply{}, nil
			}
		})
		f.broadcast("i1")
		if d := wakeAfter(sub, time.Minute); d != 35*ms {
			t.Errorf("woken after %v", d)
		}
		after(time.Minute)
		if got := f.times(&f.drains, from); !near(got, 0, 0, 5*ms, 15*ms, 35*ms) {
			t.Errorf("looked after %v", got)
		}
	})
}

func TestAFurtherAnnouncementBeginsThePlanAgain(t *testing.T) {
	drainBubble(t, func(t *testing.T, _ *Hub, f *fakeSource, _ *Subscription) {
		from := time.Now()
		f.broadcast("i1")
		after(400 * ms)
		again := time.Now()
		f.broadcast("i1")
		after(time.Minute)
		got := f.times(&f.drains, from)
		if !near(got[:7], 0, fullPlan()[:7]...) {
			t.Errorf("at first looked after %v", got)
		}
		if got := f.times(&f.drains, again); !near(got, 0, fullPlan()...) {
			t.Errorf("then looked after %v", got)
		}
	})
}

func TestAnnouncementsInABurstShareOnePlan(t *testing.T) {
	drainBubble(t, func(t *testing.T, _ *Hub, f *fakeSource, _ *Subscription) {
		f.setLatency(ms)
		from := time.Now()
		for range 500 {
			f.broadcast("i1")
			f.broadcast("i1")
			after(ms / 5)
		}
		after(time.Minute)
		// A drain of 1 ms and a gap of 2 ms for 100 ms, and a whole plan.
		if n := f.count(&f.drains, from); n > 34+len(fullPlan())+1 {
			t.Errorf("%d drains", n)
		}
		if f.get(&f.maxDrain) != 1 {
			t.Errorf("%d drains of one stream at once", f.get(&f.maxDrain))
		}
	})
}

// A and B announce, A commits, its rows are moved, B commits 100 ms later.
func TestRowsOfOneTransactionDoNotHideThoseOfAnother(t *testing.T) {
	drainBubble(t, func(t *testing.T, _ *Hub, f *fakeSource, sub *Subscription) {
		from := time.Now()
		var moved int
		f.with(func() {
			f.drain = func(int) (DrainReply, error) {
				since := time.Since(from)
				if since >= 3*ms && moved == 0 || since >= 103*ms && moved == 1 {
					moved++
					return DrainReply{Moved: 1, Head: int64(moved)}, nil
				}
				return DrainReply{Head: int64(moved)}, nil
			}
		})
		f.broadcast("i1")
		f.broadcast("i1")
		if d := wakeAfter(sub, time.Second); d > 10*ms {
			t.Errorf("A's rows came after %v", d)
		}
		if d := wakeAfter(sub, time.Second); d < 0 || time.Since(from) > 200*ms {
			t.Errorf("B's rows came %v after A's", d)
		}
		after(time.Minute)
		if n := f.count(&f.drains, from); n > 10 {
			t.Errorf("%d drains", n)
		}
	})
}

func TestDrainsWhileThereIsMore(t *testing.T) {
	drainBubble(t, func(t *testing.T, _ *Hub, f *fakeSource, sub *Subscription) {
		f.setLatency(ms)
		left := 40
		f.with(func() {
			f.drain = func(int) (DrainReply, error) {
				left--
				return DrainReply{Moved: 1000, More: left > 0, Head: int64(1000 * (40 - left))}, nil
			}
		})
		from := time.Now()
		f.broadcast("i1")
		if d := wakeAfter(sub, time.Second); d != ms {
			t.Errorf("woken after %v, want after the first drain", d)
		}
		after(time.Minute)
		got := f.times(&f.drains, from)
		if len(got) != 40 || got[39] > 50*ms {
			t.Errorf("drained at %v", got)
		}
	})
}

func TestMoreWithoutMovingDoesNotSpin(t *testing.T) {
	drainBubble(t, func(t *testing.T, _ *Hub, f *fakeSource, _ *Subscription) {
		f.with(func() { f.drain = func(int) (DrainReply, error) { return DrainReply{More: true}, nil } })
		from := time.Now()
		f.broadcast("i1")
		after(time.Minute)
		if n := f.count(&f.drains, from); n > len(fullPlan())+busyTries {
			t.Errorf("%d drains", n)
		}
	})
}

// The first drain finds no room in the log, makes some, and leaves the rows to the next.
func TestRowsThatCouldNotBeMovedYetAreTriedAgainSoon(t *testing.T) {
	bubble(t, Config{PollInterval: time.Minute}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		f.with(func() {
			f.drain = func(int) (DrainReply, error) {
				if len(f.drains) == 1 {
					return DrainReply{More: true, Head: 7}, nil
				}
				return DrainReply{Moved: 1, Head: 8}, nil
			}
		})
		f.set(Probed{Group: 1, Stream: 1, Claimed: 7, Head: 7, NextDue: -1, Inbox: true})
		sub := h.Subscribe(1, 1)
		if d := wakeAfter(sub, time.Minute); d < 0 || d > 5*ms {
			t.Errorf("woken after %v", d)
		}
	})
}

func TestRowsMovedBesideAnErrorWake(t *testing.T) {
	drainBubble(t, func(t *testing.T, _ *Hub, f *fakeSource, sub *Subscription) {
		f.with(func() {
			f.drain = func(int) (DrainReply, error) {
				return DrainReply{Moved: 1, Head: 1}, errors.New("no further partition")
			}
		})
		f.broadcast("i1")
		settle()
		if !woken(sub) {
			t.Error("not woken")
		}
	})
}

func TestBusyDrainIsTriedAgainSoon(t *testing.T) {
	drainBubble(t, func(t *testing.T, _ *Hub, f *fakeSource, sub *Subscription) {
		f.with(func() {
			f.drain = func(int) (DrainReply, error) {
				if len(f.drains) <= 3 {
					return DrainReply{Busy: true}, nil
				}
				return DrainReply{Moved: 1, Head: 1}, nil
			}
		})
		from := time.Now()
		f.broadcast("i1")
		if d := wakeAfter(sub, time.Second); d < 6*ms || d > 15*ms {
			t.Errorf("woken after %v, want three tries of 2–5 ms", d)
		}
		after(time.Minute)
		if n := f.count(&f.drains, from); n != 4 {
			t.Errorf("%d drains, want 4", n)
		}
	})
}

// Busy is not "came": the plan goes on, and a stuck holder of the lock costs little.
func TestDrainThatStaysBusy(t *testing.T) {
	drainBubble(t, func(t *testing.T, _ *Hub, f *fakeSource, sub *Subscription) {
		f.with(func() { f.drain = func(int) (DrainReply, error) { return DrainReply{Busy: true}, nil } })
		from := time.Now()
		f.broadcast("i1")
		after(900 * ms)
		f.with(func() {
			f.drain = func(int) (DrainReply, error) { return DrainReply{Moved: 1, Head: 1}, nil }
		})
		if woken(sub) {
			t.Error("woken by nothing but Busy")
		}
		if d := wakeAfter(sub, time.Second); d < 0 || d > 250*ms {
			t.Errorf("woken %v after the lock was free", d)
		}
		if n := f.count(&f.drains, from); n > 15 {
			t.Errorf("%d drains", n)
		}
	})
}

func TestBusyDrainOfRowsThatAProbeSawIsNotLeftToTheNextProbe(t *testing.T) {
	bubble(t, Config{PollInterval: time.Minute}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		from := time.Now()
		f.with(func() {
			f.drain = func(int) (DrainReply, error) {
				if time.Since(from) < 100*ms {
					return DrainReply{Busy: true}, nil
				}
				return DrainReply{Moved: 1, Head: 1}, nil
			}
		})
		f.set(Probed{Group: 1, Stream: 1, NextDue: -1, Inbox: true})
		sub := h.Subscribe(1, 1)
		if d := wakeAfter(sub, time.Minute); d < 0 || d > 250*ms {
			t.Errorf("woken after %v", d)
		}
	})
}

// Another process drains the rows, and does not announce it.
func TestRowsMovedByAnotherProcessWakeToo(t *testing.T) {
	for name, replies := range map[string][2]DrainReply{
		"head is higher":                      {{}, {Head: 5}},
		"head is higher, after it was busy":   {{Busy: true}, {Head: 5}},
		"it was busy, and nobody knows heads": {{Busy: true}, {}},
	} {
		t.Run(name, func(t *testing.T) {
			drainBubble(t, func(t *testing.T, _ *Hub, f *fakeSource, sub *Subscription) {
				f.with(func() {
					f.drain = func(int) (DrainReply, error) {
						return replies[min(len(f.drains)-1, 1)], nil
					}
				})
				f.broadcast("i1")
				if d := wakeAfter(sub, time.Second); d < 0 || d > 5*ms {
					t.Errorf("woken after %v", d)
				}
				after(2 * time.Second)
				if woken(sub) {
					t.Error("woken again for the same head")
				}
			})
		})
	}
}

func TestProbeThatSeesInboxDrainsAndWakesAllGroups(t *testing.T) {
	for _, pollOnly := range []bool{false, true} {
		bubble(t, Config{PollOnly: pollOnly}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
			f.set(Probed{Group: 1, Stream: 1, NextDue: -1}, Probed{Group: 2, Stream: 1, NextDue: -1})
			a, b, c := h.Subscribe(1, 1), h.Subscribe(1, 1), h.Subscribe(2, 1)
			after(10 * time.Second)
			f.with(func() {
				f.drain = func(int) (DrainReply, error) {
					f.groups[1] = Probed{Group: 1, Stream: 1, NextDue: -1}
					f.groups[2] = Probed{Group: 2, Stream: 1, NextDue: -1}
					return DrainReply{Moved: 3, Head: 3}, nil
				}
			})
			f.set(Probed{Group: 1, Stream: 1, NextDue: -1, Inbox: true}, Probed{Group: 2, Stream: 1, NextDue: -1, Inbox: true})
			from := time.Now()
			after(time.Second)
			for i, sub := range []*Subscription{a, b, c} {
				if !woken(sub) {
					t.Errorf("subscription %d was not woken", i)
				}
			}
			after(10 * time.Second)
			if n := f.count(&f.drains, from); n != 1 {
				t.Errorf("%d drains, want 1: rows seen by a probe are no reason to look again", n)
			}
		})
	}
}

func TestFailingDrainBacksOff(t *testing.T) {
	bubble(t, Config{PollInterval: ms, PollOnly: true}, func(t *testing.T, h *Hub, f *fakeSource, log *logBuffer) {
		f.set(Probed{Group: 1, Stream: 1, Inbox: true, NextDue: -1})
		f.set(Probed{Group: 2, Stream: 2, Inbox: true, NextDue: -1})
		f.with(func() {
			f.drain = func(stream int) (DrainReply, error) {
				if stream == 1 {
					return DrainReply{}, errors.New("partition cannot be made")
				}
				return DrainReply{Head: 1}, nil
			}
		})
		sub := h.Subscribe(1, 1)
		h.Subscribe(2, 2)
		for range 600 {
			sub.Looked(true)
			after(100 * ms)
		}
		n := 0
		for _, c := range f.calls(&f.drains, time.Time{}) {
			if c.stream == 1 {
				n++
			}
		}
		if n < 8 || n > 31 {
			t.Errorf("%d tries in a minute", n)
		}
		if lines := log.lines("WARN", "sequencing", "stream_id=1"); len(lines) < 1 || len(lines) > 2 {
			t.Errorf("%d lines in a minute", len(lines))
		}
		f.with(func() { f.drain = func(int) (DrainReply, error) { return DrainReply{Head: 1}, nil } })
		after(10 * time.Second)
		if n := len(log.lines("INFO", "sequencing works again", "stream_id=1")); n != 1 {
			t.Errorf("%d lines about the recovery", n)
		}
	})
}

func TestFewDrainsAtOnce(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		f.setLatency(ms)
		for id := 1; id <= 50; id++ {
			f.set(Probed{Group: id, Stream: id, NextDue: -1})
			h.Subscribe(id, id)
		}
		after(time.Second)
		for id := 1; id <= 50; id++ {
			h.Announce(id, Inboxed)
		}
		after(5 * time.Second)
		if f.get(&f.maxDrain) != maxDrains {
			t.Errorf("%d drains at once", f.get(&f.maxDrain))
		}
	})
}

func TestAnnouncementsOfOtherStreamsAreIgnored(t *testing.T) {
	drainBubble(t, func(t *testing.T, _ *Hub, f *fakeSource, sub *Subscription) {
		from := time.Now()
		for _, payload := range []string{"i2", "d2", "g2", "", "x1", "d", "i-1", "i01", "d+1", "hello", "d1x", "i99999999999999999999", ",,,"} {
			f.broadcast(payload)
		}
		after(time.Minute)
		if woken(sub) || f.count(&f.drains, from) > 0 {
			t.Error("acted on it")
		}
	})
}

func TestClosedSubscriptionEndsItsLooking(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		f.set(Probed{Group: 1, Stream: 1, NextDue: -1}, Probed{Group: 2, Stream: 2, NextDue: -1})
		sub := h.Subscribe(1, 1)
		h.Subscribe(2, 2)
		after(time.Second)
		h.Announce(1, Inboxed)
		after(100 * ms)
		sub.Close()
		from := time.Now()
		after(time.Minute)
		if n := f.count(&f.drains, from); n != 0 {
			t.Errorf("%d drains for nobody", n)
		}
		for _, c := range f.calls(&f.probes, time.Time{}) {
			if c.at.After(from) && len(c.groups) != 1 {
				t.Fatalf("probed %v", c.groups)
			}
		}
	})
}
