package wake

import (
	"fmt"
	"testing"
	"time"
)

// idleGroups makes n groups on as many streams, none with work.
func idleGroups(f *fakeSource, n int) {
	for id := 1; id <= n; id++ {
		f.set(Probed{Group: id, Stream: id, NextDue: -1})
	}
}

func TestOneIdleGroupCostsOneProbeASecond(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		idleGroups(f, 1)
		h.Subscribe(1, 1)
		after(10 * time.Second)
		from := time.Now()
		after(time.Minute)
		if n := f.count(&f.probes, from); n < 59 || n > 61 {
			t.Errorf("%d probes in a minute, want 60", n)
		}
		if n := f.count(&f.drains, time.Time{}); n != 0 {
			t.Errorf("%d drains of an empty inbox, want none", n)
		}
		if n := f.count(&f.notifies, from); n != 0 {
			t.Errorf("%d notifications, want none", n)
		}
	})
}

func TestIdleGroupsThatSubscribeAtDifferentMomentsShareProbes(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		idleGroups(f, 30)
		for id := 1; id <= 30; id++ {
			h.Subscribe(id, id)
			after(37 * time.Millisecond)
		}
		after(10 * time.Second)
		from := time.Now()
		after(time.Minute)
		if n := f.count(&f.probes, from); n > 61 {
			t.Errorf("%d probes in a minute for 30 idle groups, want 60", n)
		}
		probed := make(map[int]int)
		for _, c := range f.calls(&f.probes, from) {
			for _, id := range c.groups {
				probed[id]++
			}
		}
		for id := 1; id <= 30; id++ {
			if probed[id] < 59 {
				t.Errorf("group %d was probed %d times in a minute", id, probed[id])
			}
		}
	})
}

func TestAThousandIdleStreamsCostFiveProbesASecond(t *testing.T) {
	for _, every := range []time.Duration{time.Millisecond, time.Second} {
		t.Run(every.String(), func(t *testing.T) {
			bubble(t, Config{PollInterval: every}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
				f.setLatency(time.Millisecond)
				for id := 1; id <= 2000; id++ { // two groups a stream
					f.set(Probed{Group: id, Stream: id % 1000, NextDue: -1})
					h.Subscribe(id, id%1000)
				}
				after(10 * time.Second)
				from := time.Now()
				after(20 * time.Second)
				if n := f.count(&f.probes, from); n > 100 {
					t.Errorf("%d probes in 20 s, want at most 100", n)
				}
				last := make(map[int]time.Time)
				for _, c := range f.calls(&f.probes, time.Time{}) {
					streams := make(map[int]bool)
					for _, id := range c.groups {
						streams[id%1000] = true
						if was, ok := last[id]; ok && !c.at.Before(from) && c.at.Sub(was) > 4500*time.Millisecond {
							t.Errorf("group %d was not probed for %v", id, c.at.Sub(was))
						}
						last[id] = c.at
					}
					if len(streams) > maxStreams {
						t.Fatalf("%d streams in one probe", len(streams))
					}
				}
				if len(last) != 2000 {
					t.Errorf("%d groups were probed", len(last))
				}
			})
		})
	}
}

// BenchmarkPick is what the poller computes five times a second with 1,000 idle streams of two groups.
func BenchmarkPick(b *testing.B) {
	h := NewHub(Config{})
	now := time.Now()
	for id := range 2000 {
		s := h.streams[id%1000]
		if s == nil {
			s = &stream{id: id % 1000}
			h.streams[s.id] = s
		}
		g := &group{id: id, stream: s, every: time.Second}
		s.groups = append(s.groups, g)
		h.groups[id] = g
	}
	for b.Loop() {
		now = now.Add(idleGap)
		if batch, _ := h.pick(now); len(batch) != 100 {
			b.Fatalf("%d groups", len(batch))
		}
	}
}

func TestActiveGroupsAreProbedBeforeIdleOnesAndDoNotStarveThem(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		idleGroups(f, 1000)
		subs := make([]*Subscription, 1001)
		for id := 1; id <= 1000; id++ {
			subs[id] = h.Subscribe(id, id)
		}
		after(20 * time.Second)
		from := time.Now()
		for range 100 {
			for id := 1; id <= 400; id++ { // more than five probes a second can serve
				subs[id].Looked(true)
			}
			after(200 * time.Millisecond)
		}
		probed := make(map[int]int)
		for _, c := range f.calls(&f.probes, from) {
			for _, id := range c.groups {
				probed[id]++
			}
		}
		if n := f.count(&f.probes, from); n > 101 {
			t.Errorf("%d probes in 20 s", n)
		}
		for id := 1; id <= 1000; id++ {
			if probed[id] < 2 {
				t.Errorf("group %d was probed %d times in 20 s", id, probed[id])
			}
		}
		if probed[1] <= probed[1000] {
			t.Errorf("an active group was probed %d times, an idle one %d times", probed[1], probed[1000])
		}
	})
}

func TestProbeWakes(t *testing.T) {
	quiet := Probed{Group: 1, Stream: 1, Claimed: 10, Head: 10, NextDue: -1}
	cases := map[string]func(p *Probed){
		"head beyond claimed": func(p *Probed) { p.Head = 11 },
		"due":                 func(p *Probed) { p.Due = true },
		"expired":             func(p *Probed) { p.Expired = true },
		"gone":                func(p *Probed) { p.Gone = true },
		"gone while paused":   func(p *Probed) { p.Gone, p.Paused = true, true },
	}
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
				f.set(quiet)
				sub := h.Subscribe(1, 1)
				after(10 * time.Second)
				if woken(sub) {
					t.Fatal("woken for nothing")
				}
				p := quiet
				change(&p)
				f.set(p)
				if d := wakeAfter(sub, 2*time.Second); d < 0 {
					t.Error("not woken")
				}
			})
		})
	}
	t.Run("left out", func(t *testing.T) {
		bubble(t, Config{}, func(t *testing.T, h *Hub, _ *fakeSource, _ *logBuffer) {
			if d := wakeAfter(h.Subscribe(1, 1), 2*time.Second); d < 0 {
				t.Error("not woken")
			}
		})
	})
}

func TestNextDueWakesWithoutAProbe(t *testing.T) {
	bubble(t, Config{PollInterval: time.Hour}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		f.set(Probed{Group: 1, Stream: 1, NextDue: 7 * time.Second})
		sub := h.Subscribe(1, 1)
		if d := wakeAfter(sub, time.Minute); d != 7*time.Second {
			t.Errorf("woken after %v, want 7 s", d)
		}
	})
}

func TestPausedGroupSleepsAndIsWokenWhenResumed(t *testing.T) {
	paused := Probed{Group: 1, Stream: 1, Claimed: 10, Head: 20, Due: true, Paused: true, NextDue: -1}
	t.Run("by a probe", func(t *testing.T) {
		bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
			f.set(paused)
			sub := h.Subscribe(1, 1)
			after(5 * time.Second)
			f.broadcast("d1")
			after(5 * time.Second)
			if woken(sub) {
				t.Fatal("woken while paused")
			}
			f.set(Probed{Group: 1, Stream: 1, Claimed: 20, Head: 20, NextDue: -1})
			if d := wakeAfter(sub, 2*time.Second); d < 0 {
				t.Error("not woken when resumed")
			}
		})
	})
	t.Run("by an announcement, with a long interval", func(t *testing.T) {
		bubble(t, Config{PollInterval: time.Hour}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
			f.set(paused)
			sub := h.Subscribe(1, 1)
			after(10 * time.Second)
			p := paused
			p.Paused = false
			f.set(p)
			from := time.Now()
			f.broadcast("g1")
			if d := wakeAfter(sub, time.Second); d != 0 {
				t.Errorf("woken after %v, want at once", d)
			}
			settle()
			if f.count(&f.probes, from) == 0 {
				t.Error("not probed, though rows may wait in its inbox")
			}
			after(time.Second)
			woken(sub)
			f.broadcast("d1")
			if d := wakeAfter(sub, time.Second); d != 0 {
				t.Errorf("after resuming a message woke it after %v, want at once", d)
			}
		})
	})
	t.Run("by an announcement that overtakes a probe", func(t *testing.T) {
		bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
			f.set(paused)
			f.setLatency(100 * time.Millisecond)
			sub := h.Subscribe(1, 1)
			after(150 * time.Millisecond)
			h.Announce(1, Changed) // the probe on its way answers from before
			settle()
			if !woken(sub) {
				t.Fatal("not woken")
			}
			after(60 * time.Millisecond)
			h.Announce(1, Appended)
			settle()
			if !woken(sub) {
				t.Error("taken for paused, though it was resumed after the probe began")
			}
		})
	})
}

func TestPollingFastWhileActiveWithoutListen(t *testing.T) {
	for _, name := range []string{"poll only", "deaf", "listen lost"} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Config{PollOnly: name == "poll only"}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
				f.with(func() { f.deaf = name == "deaf" })
				f.setLatency(time.Millisecond)
				idleGroups(f, 1)
				sub := h.Subscribe(1, 1)
				after(10 * time.Second)
				if name == "listen lost" {
					f.with(func() {
						f.breakListeners()
						f.deaf = true
					})
				}
				head := int64(0)
				var worst time.Duration
				from := time.Now()
				for i := range 200 {
					after(20*time.Millisecond + time.Duration(i%7)*time.Millisecond)
					head++
					f.set(Probed{Group: 1, Stream: 1, Claimed: head - 1, Head: head, NextDue: -1})
					if i == 0 {
						sub.Looked(true) // became active
					}
					d := wakeAfter(sub, time.Minute)
					worst = max(worst, d)
					f.set(Probed{Group: 1, Stream: 1, Claimed: head, Head: head, NextDue: -1})
					sub.Looked(true)
				}
				if worst > 40*time.Millisecond {
					t.Errorf("woken after up to %v", worst)
				}
				if n, most := f.count(&f.probes, from), int(time.Since(from)/(12*time.Millisecond)); n > most {
					t.Errorf("%d probes in %v", n, time.Since(from))
				}

				// Without work it backs off, and after some seconds costs what an idle one costs.
				from = time.Now()
				for range 10 {
					after(time.Second)
					sub.Looked(false)
				}
				for i, most := range []int{42, 42, 21, 11, 7, 3, 2, 2, 2, 2} {
					at := from.Add(time.Duration(i) * time.Second)
					n := 0
					for _, c := range f.calls(&f.probes, time.Time{}) {
						if !c.at.Before(at) && c.at.Before(at.Add(time.Second)) {
							n++
						}
					}
					if n > most {
						t.Errorf("%d probes in second %d without work, want at most %d", n, i, most)
					}
				}
			})
		})
	}
}

func TestListeningPollsOnlyOncePerInterval(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		idleGroups(f, 1)
		sub := h.Subscribe(1, 1)
		after(time.Second)
		from := time.Now()
		for range 1000 {
			after(10 * time.Millisecond)
			sub.Looked(true)
		}
		if n := f.count(&f.probes, from); n > 11 {
			t.Errorf("%d probes in 10 s while active and listening", n)
		}
	})
}

func TestABusySessionIsNotPolledFast(t *testing.T) {
	bubble(t, Config{PollOnly: true}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		f.set(Probed{Group: 1, Stream: 1, Claimed: 1, Head: 2, NextDue: -1})
		sub := h.Subscribe(1, 1)
		after(time.Second)
		from := time.Now()
		after(3 * time.Second) // the wake-up lies in the channel
		if n := f.count(&f.probes, from); n > 4 {
			t.Errorf("%d probes in 3 s for a session that has not looked", n)
		}
		if !woken(sub) {
			t.Fatal("not woken")
		}
		from = time.Now()
		sub.Looked(true)
		if d := wakeAfter(sub, time.Second); d > 30*time.Millisecond {
			t.Errorf("woken again after %v", d)
		}
	})
}

func TestSessionsThatFinishAtDifferentMomentsShareFastProbes(t *testing.T) {
	bubble(t, Config{PollOnly: true}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		var subs []*Subscription
		for id := 1; id <= 40; id++ { // each with a backlog
			f.set(Probed{Group: id, Stream: id, Head: 1, NextDue: -1})
			subs = append(subs, h.Subscribe(id, id))
		}
		after(ms)
		from := time.Now()
		looks := 0
		for i := range 2000 {
			if sub := subs[i%40]; woken(sub) {
				sub.Looked(true)
				looks++
			}
			after(ms)
		}
		if n := f.count(&f.probes, from); n > 81 {
			t.Errorf("%d probes in 2 s, want at most 80", n)
		}
		if looks < 900 {
			t.Errorf("%d looks, want one of each session in most of its 50 turns", looks)
		}
	})
}

func TestManyActiveGroupsWithoutListenShareFastProbes(t *testing.T) {
	for n, most := range map[int]int{40: 41, 1000: 41} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			bubble(t, Config{PollOnly: true}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
				f.setLatency(time.Millisecond)
				idleGroups(f, n)
				subs := make([]*Subscription, n)
				for i := range subs {
					subs[i] = h.Subscribe(i+1, i+1)
					after(time.Millisecond)
				}
				from := time.Now()
				for i := range 1000 {
					for j := range n / 20 {
						subs[(i*7+j*13)%n].Looked(true)
					}
					after(time.Millisecond)
				}
				if got := f.count(&f.probes, from); got > most {
					t.Errorf("%d probes in a second for %d active groups, want at most %d", got, n, most)
				}
			})
		})
	}
}

func TestPollIntervalBounds(t *testing.T) {
	// probes within a minute of idleness, and the first delay after which work is found without any announcement
	for every, want := range map[time.Duration]struct{ least, most int }{
		time.Nanosecond:      {299, 301},
		time.Millisecond:     {299, 301},
		time.Second:          {59, 61},
		time.Minute:          {0, 2},
		time.Hour:            {0, 0},
		1000 * time.Hour:     {0, 0},
		-1 * time.Nanosecond: {299, 301},
	} {
		t.Run(every.String(), func(t *testing.T) {
			bubble(t, Config{PollInterval: every}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
				idleGroups(f, 1)
				sub := h.Subscribe(1, 1)
				after(10 * time.Second)
				from := time.Now()
				after(time.Minute)
				if n := f.count(&f.probes, from); n < want.least || n > want.most {
					t.Errorf("%d probes in a minute, want %d to %d", n, want.least, want.most)
				}
				f.broadcast("d1")
				if d := wakeAfter(sub, time.Second); d != 0 {
					t.Errorf("announced work was told after %v", d)
				}
				f.set(Probed{Group: 1, Stream: 1, Head: 1, NextDue: -1})
				if d := wakeAfter(sub, 2*time.Hour); d < 0 || d > max(time.Second, min(every, time.Hour)) {
					t.Errorf("work was found after %v", d)
				}
			})
		})
	}
}

func TestSubscriptionsHaveIntervalsOfTheirOwn(t *testing.T) {
	bubble(t, Config{PollInterval: time.Hour}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		idleGroups(f, 2)
		h.Subscribe(1, 1)
		quick := h.SubscribeEvery(1, 1, time.Second)
		h.Subscribe(2, 2)
		after(10 * time.Second)
		from := time.Now()
		after(time.Minute)
		if n := f.count(&f.probes, from); n < 59 || n > 61 {
			t.Errorf("%d probes in a minute, want 60", n)
		}
		for _, c := range f.calls(&f.probes, time.Time{}) {
			if !c.at.Before(from) && len(c.groups) != 1 {
				t.Fatalf("probed %v", c.groups)
			}
		}
		quick.Close()
		after(2 * time.Second)
		from = time.Now()
		after(time.Minute)
		if n := f.count(&f.probes, from); n != 0 {
			t.Errorf("%d probes after the quick one was closed", n)
		}
	})
}

func TestMissedAnnouncementsAreCounted(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		idleGroups(f, 1)
		f.set(Probed{Group: 2, Stream: 1, NextDue: -1})
		h.Subscribe(1, 1)
		h.Subscribe(2, 1)
		after(10 * time.Second)
		grow := func(head int64) {
			f.set(Probed{Group: 1, Stream: 1, Claimed: head, Head: head, NextDue: -1})
			f.set(Probed{Group: 2, Stream: 1, Claimed: head, Head: head, NextDue: -1})
		}
		for head := int64(1); head <= 10; head++ { // each is told, some after the probe that saw it
			grow(head)
			after(time.Duration(head) * 170 * time.Millisecond)
			f.broadcast("d1")
			after(3 * time.Second)
		}
		if n := h.State().Missed; n > 5 { // told over a second late is as good as not told
			t.Errorf("%d missed of those that were told", n)
		}
		before := h.State().Missed
		grow(11)
		after(5 * time.Second)
		if n := h.State().Missed - before; n != 1 {
			t.Errorf("%d missed, want 1", n)
		}
	})
}
