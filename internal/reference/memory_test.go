package reference_test

import (
	"context"
	"encoding/json"
	"fmt"
	"github.com/google/uuid"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/reference"
	"github.com/sqlstreams/sqlstreams/internal/storetest"
)

// SQLSTREAMS_HISTORIES sets how many histories each test plays, SQLSTREAMS_SEED the first seed; SQLSTREAMS_CALLS, not empty, shows the calls to the store in memory.
func setting(t testing.TB, name string, def int) int {
	text := os.Getenv(name)
	if text == "" {
		return def
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s=%q is not a number", name, text)
	}
	return n
}

// memoryScale is for a clock that costs nothing.
func memoryScale() reference.Scale {
	ms := func(list ...int) (all []time.Duration) {
		for _, n := range list {
			all = append(all, time.Duration(n)*time.Millisecond)
		}
		return all
	}
	return reference.Scale{
		Messages: 24, Takes: ms(0, 0, 1, 5, 30, 200, 900), Delays: ms(1, 100, 5000), Backoffs: ms(1, 50, 1000), Pauses: ms(0, 1, 20, 300, 2000, 10000), Deaths: 60, Lossy: true, Compacted: 20,
	}
}

// Thousands of histories in memory, with the real engine and a clock that costs nothing: what is seen is what the reference allows.
func TestHistoriesInMemory(t *testing.T) {
	t.Parallel()
	first, count := setting(t, "SQLSTREAMS_SEED", 1), setting(t, "SQLSTREAMS_HISTORIES", 2000)
	deaths := 0
	for seed := first; seed < first+count; seed++ {
		plan := reference.Draw(uint64(seed), memoryScale())
		var objections []string
		synctest.Test(t, func(t *testing.T) {
			var died int
			objections, died = playInMemory(t, plan, nil)
			deaths += min(died, 1)
		})
		for _, o := range objections {
			t.Error(o)
		}
		if len(objections) > 0 {
			t.Fatalf("play it again with SQLSTREAMS_SEED=%d SQLSTREAMS_HISTORIES=1:\n%v", seed, plan)
		}
	}
	if count >= 100 && deaths < count/5 {
		t.Errorf("an instance died in %d of %d histories, less than a fifth", deaths, count)
	}
	t.Logf("%d histories from seed %d, an instance died in %d", count, first, deaths)
}

// playInMemory plays a plan, with a change to the play if one is given.
func playInMemory(t *testing.T, plan *reference.Plan, change func(*play)) (objections []string, died int) {
	const timeout = time.Second
	s := &memoryStage{Memory: storetest.NewMemory()}
	s.SetLatency(time.Duration(plan.Seed%3) * time.Millisecond)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	p := &play{
		plan: plan, told: plan, rec: reference.NewRecorder(plan, true), stage: s, timeout: timeout,
		options: consume.Options{QueueMargin: 3 * time.Second, TimeoutGrace: 100 * time.Millisecond, RecordMargin: 500 * time.Millisecond},
	}
	if change != nil {
		change(p)
	}
	s.stream = s.AddStream()
	s.group = s.AddGroup(s.stream, timeout, plan.MaxReclaims)
	s.SetConfig(s.group, groupConfig(p.told), timeout)
	s.OnWork(func(req *delivery.WorkRequest, reply *delivery.WorkReply) {
		p.mu.Lock()
		actors := p.actors
		p.mu.Unlock()
		for _, a := range actors {
			if a.id == req.Instance {
				a.sent(req, reply)
				if os.Getenv("SQLSTREAMS_CALLS") != "" {
					t.Logf("%d: i%d asks %s\n  is told %s", len(p.rec.Trace().Events), a.number, encoded(t, req), encoded(t, reply))
				}
			}
		}
	})
	return p.act(ctx), p.rec.Deaths()
}

func encoded(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// memoryStage is the store in memory.
type memoryStage struct {
	*storetest.Memory
	stream, group int
}

func (s *memoryStage) link(int) (consume.Store, func(), error) {
	return s.Memory, func() {}, nil
}

func (s *memoryStage) waker(ctx context.Context) (consume.Waker, func()) {
	w := s.Memory.Waker(s.group)
	ctx, end := context.WithCancel(ctx)
	polled := make(chan struct{})
	go func() {
		defer close(polled)
		w.Poll(ctx, 200*time.Millisecond)
	}()
	return w, func() {
		end()
		<-polled
	}
}

func (s *memoryStage) wakeAll()                 {} // the store does it
func (s *memoryStage) gone(uuid.UUID)           {} // time costs nothing
func (s *memoryStage) ids() (stream, group int) { return s.stream, s.group }
func (s *memoryStage) strict() bool             { return true }

func (s *memoryStage) produce(msgs []delivery.Message) (int64, error) {
	return s.Append(s.stream, msgs...), nil
}

func (s *memoryStage) pause(paused bool) error {
	s.SetPaused(s.group, paused)
	return nil
}

func (s *memoryStage) fault(do string, times int) {
	switch do {
	case reference.Lose:
		s.Fail(storetest.Fault{Times: times, After: true})
	case reference.Refuse:
		s.Fail(storetest.Fault{Times: times})
	default:
		s.Heal()
	}
}

func (s *memoryStage) dead() (map[int64]reference.Letter, error) {
	all := make(map[int64]reference.Letter)
	for _, d := range s.State(s.group).Dead {
		all[d.ID] = reference.Letter{Reason: string(d.Reason), Attempts: d.Attempts}
	}
	return all, nil
}

func (s *memoryStage) operate(action string, ids []int64) error {
	if action == reference.Redrive {
		s.Redrive(s.group, ids...)
	} else {
		s.Discard(s.group, ids...)
	}
	return nil
}

func (s *memoryStage) remove(ids []int64) error {
	s.Remove(s.stream, ids...)
	return nil
}

func (s *memoryStage) unresolved() (waiting, open []int64, err error) {
	st := s.State(s.group)
	for _, c := range st.Claims {
		for id := c.Low + 1; id <= c.High; id++ {
			open = append(open, id)
		}
	}
	for _, d := range st.Deliveries {
		if d.Waiting {
			waiting = append(waiting, d.ID)
		} else {
			open = append(open, d.ID)
		}
	}
	for id := st.Claimed + 1; id <= s.Head(s.stream); id++ {
		open = append(open, id)
	}
	return waiting, open, nil
}

func (s *memoryStage) settle(what string, holds func() (bool, error)) error {
	for range 600 {
		if ok, err := holds(); ok || err != nil {
			return err
		}
		s.sleep(time.Second)
	}
	return fmt.Errorf("not within ten minutes: %s", what)
}

func (s *memoryStage) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
