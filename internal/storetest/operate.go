package storetest

import (
	"slices"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

// Redrive lets dead letters of a group run again, as an operator does. One that parks its key takes its place before its successors; another one of an ordered key is out of order from now on, and exclusive.
func (m *Memory) Redrive(groupID int, ids ...int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.groups[groupID-1]
	k := g.keyWork(time.Now())
	for _, id := range slices.Sorted(slices.Values(ids)) {
		l, ok := g.unbury(id)
		if !ok {
			continue
		}
		d := &row{id: id, due: k.now}
		if order := m.orderOf(g, k, id); order != "" {
			d.key, d.waiting = l.Key, true
			d.ordered = order == delivery.Ordered && l.parks != ""
			d.outOfOrder = order == delivery.Ordered && !d.ordered
		}
		g.put(d)
		k.free(d.key, l.parks)
	}
	k.wake()
	g.wake()
}

func (m *Memory) orderOf(g *group, k *keyWork, id int64) delivery.KeyOrder {
	s := m.streams[g.stream-1]
	at, ok := s.find(id)
	if !ok {
		return ""
	}
	return orderOf(k.order, &s.messages[at])
}

// Discard removes dead letters of a group.
func (m *Memory) Discard(groupID int, ids ...int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.groups[groupID-1]
	k := g.keyWork(time.Now())
	for _, id := range ids {
		if l, ok := g.unbury(id); ok {
			k.free(l.parks)
		}
	}
	k.wake()
	g.wake()
}

func (g *group) unbury(id int64) (letter, bool) {
	at := slices.IndexFunc(g.dead, func(l letter) bool { return l.ID == id })
	if at < 0 {
		return letter{}, false
	}
	l := g.dead[at]
	g.dead = slices.Delete(g.dead, at, at+1)
	return l, true
}

// Head returns the newest id of a stream.
func (m *Memory) Head(streamID int) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.streams[streamID-1].head
}
