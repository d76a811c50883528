package sqlstreams

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
)

// Two thousand sessions, each with its own rhythm of fifteen seconds: every one is told of at least that often, and few statements do it.
func TestSignsOfLifeAreJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		seen := map[uuid.UUID]time.Time{}
		p := &pulse{send: func(_ context.Context, ids []uuid.UUID, groups []int) error {
			if len(ids) != len(groups) {
				t.Fatal("ids and groups differ")
			}
			sent++
			for _, id := range ids {
				seen[id] = time.Now()
			}
			return nil
		}}
		var sessions []uuid.UUID
		for range 2000 {
			sessions = append(sessions, uuid.New())
		}
		for i, id := range sessions { // they start within two seconds
			if err := p.beat(t.Context(), i, id); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		sent = 0
		began := time.Now()
		for round := range 20 {
			for i, id := range sessions {
				if i%100 == round%100 {
					time.Sleep(150 * time.Millisecond)
				}
				if err := p.beat(t.Context(), i, id); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(12 * time.Second)
			for _, id := range sessions {
				if age := time.Since(seen[id]); age > 30*time.Second {
					t.Fatalf("one was not told of for %v", age)
				}
			}
		}
		if most := int(time.Since(began)/pulseGap) + 1; sent > most {
			t.Errorf("%d statements in %v, want at most %d", sent, time.Since(began), most)
		}
	})
}

// A failure is told to who asked, and nobody counts as told of; a session that has ended is not named any more.
func TestSignsOfLifeThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("down")
		var last []uuid.UUID
		p := &pulse{}
		p.send = func(_ context.Context, ids []uuid.UUID, _ []int) error { last = ids; return down }
		a, b := uuid.New(), uuid.New()
		for _, id := range []uuid.UUID{a, b, a} {
			if err := p.beat(t.Context(), 1, id); !errors.Is(err, down) {
				t.Errorf("%v", err)
			}
		}
		down = nil
		for _, id := range []uuid.UUID{a, b} {
			if err := p.beat(t.Context(), 1, id); err != nil || !slices.Equal(last, []uuid.UUID{id}) {
				t.Errorf("%v, %v named", err, last)
			}
		}
		time.Sleep(time.Minute)
		if err := p.beat(t.Context(), 1, a); err != nil || len(last) != 2 {
			t.Errorf("%v, %v named", err, last)
		}
		p.end(a)
		time.Sleep(time.Minute)
		if err := p.beat(t.Context(), 1, b); err != nil || !slices.Equal(last, []uuid.UUID{b}) {
			t.Errorf("%v, %v named", err, last)
		}
	})
}
