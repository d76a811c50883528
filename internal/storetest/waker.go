package storetest

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/consume"
)

// Waker wakes the sessions of a group of the memory store.
type Waker struct {
	store *Memory
	group int
	c     chan struct{}
	looks atomic.Int64
	found atomic.Int64
}

var _ consume.Waker = (*Waker)(nil)

// Waker makes a waker that hears of what happens to a group.
func (m *Memory) Waker(groupID int) *Waker {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := &Waker{store: m, group: groupID, c: make(chan struct{}, 1)}
	g := m.groups[groupID-1]
	g.wakers = append(g.wakers, w)
	return w
}

// C receives a value when there is a reason to look.
func (w *Waker) C() <-chan struct{} { return w.c }

// Looked counts the looks.
func (w *Waker) Looked(found bool) {
	w.looks.Add(1)
	if found {
		w.found.Add(1)
	}
}

// Looks says how many looks there were, and how many found something.
func (w *Waker) Looks() (looks, found int64) { return w.looks.Load(), w.found.Load() }

// Wake signals.
func (w *Waker) Wake() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// Poll probes the group as the hub does, until ctx ends.
func (w *Waker) Poll(ctx context.Context, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if w.store.due(w.group) {
				w.Wake()
			}
		}
	}
}

// due says whether a probe would find something to do.
func (m *Memory) due(groupID int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.groups[groupID-1]
	now := time.Now()
	if g.paused {
		return false
	}
	if s := m.streams[g.stream-1]; g.gone || s.head > g.claimed {
		return true
	}
	for _, c := range g.claims {
		if !c.expires.After(now) {
			return true
		}
	}
	for _, d := range g.deliveries {
		if d.running && !d.expires.After(now) || !d.running && !d.due.After(now) {
			return true
		}
	}
	return false
}

func (g *group) wake() {
	for _, w := range g.wakers {
		w.Wake()
	}
}
