package storetest

import (
	"slices"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

// Redrive lets dead letters of a group run again, as an operator does. One that parks its key takes its place before its successors; another one of an ordered key is out of order from now on, and exclusive.
func (m *Memory) Redrive(groupID int, ids ...int64) {
	m.operate(groupID, func(g *group, k *keyWork) {
		for _, id := range ids {
			d, ok := g.unbury(id)
			if !ok {
				continue
			}
			k.free(d.parks)
			if g.comes(id) {
				continue
			}
			order := orderOf(k.order, &delivery.Message{Key: d.Key, Options: d.options})
			r := &row{id: id, due: k.now, err: d.Error}
			switch {
			case d.parks != "":
				r.key, r.ordered, r.outOfOrder = d.parks, k.park, !k.park
			case order != "":
				r.key, r.outOfOrder = d.Key, order == delivery.Ordered
			}
			r.waiting = r.key != ""
			g.put(r)
			k.free(r.key)
		}
	})
}

// Discard removes dead letters of a group.
func (m *Memory) Discard(groupID int, ids ...int64) {
	m.operate(groupID, func(g *group, k *keyWork) {
		for _, id := range ids {
			d, _ := g.unbury(id)
			k.free(d.parks)
		}
	})
}

// DiscardDeliveries removes deliveries of a group that do not run.
func (m *Memory) DiscardDeliveries(groupID int, ids ...int64) {
	m.operate(groupID, func(g *group, k *keyWork) {
		for _, id := range ids {
			if d := g.deliveries[id]; d != nil && !d.running {
				delete(g.deliveries, id)
				k.free(d.key)
			}
		}
	})
}

// SweepKeys wakes what waits for keys that nobody holds, and says how many.
func (m *Memory) SweepKeys(groupID int) (woken int) {
	m.operate(groupID, func(g *group, k *keyWork) {
		for _, d := range g.deliveries {
			if d.waiting {
				k.free(d.key)
			}
		}
		k.wake()
		woken = len(k.woken)
	})
	return woken
}

// operate changes a group as one transaction does, wakes what that set free, and lets the sessions look.
func (m *Memory) operate(groupID int, change func(*group, *keyWork)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.groups[groupID-1]
	k := g.keyWork(time.Now())
	change(g, k)
	k.wake()
	g.wake()
}

// comes says whether a message will be handed out by itself: it is still to be claimed, or lies unfinished in an open range.
func (g *group) comes(id int64) bool {
	return id > g.claimed || !g.done[id] && slices.ContainsFunc(g.claims, func(c *claim) bool { return c.low < id && id <= c.high })
}

func (g *group) unbury(id int64) (found letter, ok bool) {
	g.dead = slices.DeleteFunc(g.dead, func(d letter) bool {
		if d.ID == id {
			found, ok = d, true
		}
		return d.ID == id
	})
	return found, ok
}

// Head returns the newest id of a stream.
func (m *Memory) Head(streamID int) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.streams[streamID-1].head
}
