package wake

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// waker is what a session of a consumer needs.
type waker interface {
	C() <-chan struct{}
	Looked(found bool)
}

var _ waker = (*Subscription)(nil)

func TestOneMessageWakesEveryInstance(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		idleGroups(f, 1)
		var subs []*Subscription
		for range 4 {
			subs = append(subs, h.Subscribe(1, 1))
		}
		after(10 * time.Second)
		f.broadcast("d1")
		settle()
		for i, sub := range subs {
			if !woken(sub) {
				t.Errorf("instance %d was not woken", i)
			}
			if woken(sub) {
				t.Errorf("instance %d was woken twice", i)
			}
		}
	})
}

func TestPollingAndListeningLiveAsLongAsSubscriptions(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		idleGroups(f, 2)
		for range 3 {
			a, b := h.Subscribe(1, 1), h.Subscribe(2, 2)
			after(10 * time.Second)
			if !h.State().Listening {
				t.Fatal("not listening")
			}
			a.Close()
			after(10 * time.Second)
			if !h.State().Listening {
				t.Fatal("not listening with one subscription left")
			}
			b.Close()
			b.Close()
			b.Looked(true)
			after(ms)
			from := time.Now()
			f.broadcast("d1")
			after(time.Minute)
			if h.State().Listening || f.count(&f.probes, from) > 0 || f.count(&f.listens, from) > 0 || f.listening() > 0 {
				t.Fatal("polls or listens without a subscription")
			}
			if woken(a) || woken(b) {
				t.Fatal("a closed subscription was woken")
			}
		}
		if n := f.count(&f.listens, time.Time{}); n != 3 {
			t.Errorf("listened %d times", n)
		}
	})
}

// A new run begins before the goroutines of the one before are gone.
func TestSubscribingAgainAtOnce(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		f.setLatency(3 * ms)
		idleGroups(f, 1)
		for range 50 {
			sub := h.Subscribe(1, 1)
			h.Announce(1, Inboxed)
			after(ms)
			sub.Close()
		}
		sub := h.Subscribe(1, 1)
		after(10 * time.Second)
		if f.listening() != 1 || !h.State().Listening {
			t.Errorf("%d listeners", f.listening())
		}
		from := time.Now()
		after(time.Minute)
		if n := f.count(&f.probes, from); n > 61 {
			t.Errorf("%d probes in a minute", n)
		}
		woken(sub)
		f.broadcast("d1")
		if d := wakeAfter(sub, time.Second); d != 0 {
			t.Errorf("woken after %v", d)
		}
	})
}

func TestCloseInEveryState(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	states := map[string]func(*Hub, *fakeSource){
		"unused":          func(*Hub, *fakeSource) {},
		"producing":       func(h *Hub, _ *fakeSource) { h.Announce(1, Appended); after(time.Second) },
		"just subscribed": func(h *Hub, _ *fakeSource) { h.Subscribe(1, 1) },
		"idle":            func(h *Hub, _ *fakeSource) { h.Subscribe(1, 1); after(time.Minute) },
		"probing":         func(h *Hub, f *fakeSource) { f.setLatency(time.Second); h.Subscribe(1, 1); after(ms) },
		"draining": func(h *Hub, f *fakeSource) {
			h.Subscribe(1, 1)
			after(time.Second)
			f.setLatency(ms)
			h.Announce(1, Inboxed)
		},
		"looking again": func(h *Hub, _ *fakeSource) {
			h.Subscribe(1, 1)
			after(time.Second)
			h.Announce(1, Inboxed)
			after(20 * ms)
		},
		"backing off": func(h *Hub, f *fakeSource) {
			f.setDown(true)
			h.Subscribe(1, 1)
			h.Announce(1, Inboxed)
			after(time.Minute)
		},
		"subscriptions gone": func(h *Hub, _ *fakeSource) { h.Subscribe(1, 1).Close() },
	}
	for name, reach := range states {
		for how, ctx := range map[string]context.Context{"": context.Background(), " with an ended context": ended} {
			t.Run(name+how, func(t *testing.T) {
				bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
					idleGroups(f, 1)
					reach(h, f)
					from := time.Now()
					var wg sync.WaitGroup
					for range 3 {
						wg.Go(func() {
							if err := h.Close(ctx); err != nil {
								t.Errorf("close: %v", err)
							}
						})
					}
					wg.Wait()
					synctest.Wait()
					if h.running != 0 {
						t.Errorf("%d goroutines are left", h.running)
					}
					if d := time.Since(from); d > 2*time.Second {
						t.Errorf("took %v", d)
					}

					// Afterwards everything is inert.
					n := f.statements()
					sub := h.Subscribe(1, 1)
					sub.Looked(true)
					h.Announce(1, Appended)
					h.Announce(1, Inboxed)
					after(time.Minute)
					if n != f.statements() {
						t.Error("statements after Close")
					}
					if woken(sub) {
						t.Error("woken after Close")
					}
					sub.Close()
				})
			})
		}
	}
}

func TestSubscriptionsOutliveTheHub(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		idleGroups(f, 1)
		sub := h.Subscribe(1, 1)
		after(time.Second)
		if err := h.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		sub.Looked(true)
		sub.Looked(false)
		sub.Close()
		sub.Close()
	})
}

func TestCloseSendsWhatWaits(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		f.setLatency(ms)
		h.Announce(1, Appended)
		after(2 * ms)
		h.Announce(1, Appended) // within 5 ms of the first
		h.Announce(2, Inboxed)
		if err := h.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if sent := f.sent(); len(sent) != 3 {
			t.Errorf("sent %v", sent)
		}
	})
}

func TestCloseGivesUpWithItsContext(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		f.setLatency(time.Hour)
		h.Announce(1, Appended)
		after(ms)
		ctx, cancel := context.WithTimeout(t.Context(), 100*ms)
		defer cancel()
		from := time.Now()
		if err := h.Close(ctx); err != nil {
			t.Error(err)
		}
		if d := time.Since(from); d != 100*ms {
			t.Errorf("took %v", d)
		}
		if n := h.State().Unsent; n != 1 {
			t.Errorf("%d unsent", n)
		}
	})
}

// stuckSource has a statement that does not keep to its context.
type stuckSource struct {
	*fakeSource
	release chan struct{}
}

func (s stuckSource) Notify(context.Context, string) error {
	<-s.release
	return nil
}

func TestCloseSaysWhenSomethingDoesNotEnd(t *testing.T) {
	bubble(t, Config{}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		stuck := stuckSource{f, make(chan struct{})}
		h.source = stuck
		h.Announce(1, Appended)
		after(ms)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := h.Close(ctx); err == nil {
			t.Error("no error though a goroutine is left")
		}
		close(stuck.release)
	})
}

// Everything at once, for the race detector.
func TestConcurrentUse(t *testing.T) {
	bubble(t, Config{PollInterval: ms}, func(t *testing.T, h *Hub, f *fakeSource, _ *logBuffer) {
		f.setLatency(ms / 10)
		idleGroups(f, 20)
		f.with(func() {
			f.drain = func(int) (DrainReply, error) { return DrainReply{Moved: 1, Head: int64(len(f.drains))}, nil }
		})
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				for n := range 30 {
					sub := h.Subscribe(i+1, i+1)
					for range 10 {
						h.Announce(i+1, []Kind{Appended, Inboxed, Changed}[n%3])
						select {
						case <-sub.C():
							sub.Looked(true)
						case <-time.After(10 * ms):
							sub.Looked(false)
						}
						h.State()
					}
					sub.Close()
				}
			})
		}
		wg.Go(func() {
			for range 20 {
				time.Sleep(30 * ms)
				f.with(f.breakListeners)
			}
		})
		wg.Wait()
	})
}
