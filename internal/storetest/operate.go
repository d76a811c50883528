package storetest

import (
	"slices"
	"time"
)

// Redrive lets dead letters of a group run again, as an operator does.
func (m *Memory) Redrive(groupID int, ids ...int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.groups[groupID-1]
	for _, id := range ids {
		if g.unbury(id) && g.deliveries[id] == nil {
			g.deliveries[id] = &row{id: id, due: time.Now()}
		}
	}
	g.wake()
}

// Discard removes dead letters of a group.
func (m *Memory) Discard(groupID int, ids ...int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.groups[groupID-1]
	for _, id := range ids {
		g.unbury(id)
	}
	g.wake()
}

func (g *group) unbury(id int64) bool {
	before := len(g.dead)
	g.dead = slices.DeleteFunc(g.dead, func(d letter) bool { return d.ID == id })
	return len(g.dead) < before
}

// Head returns the newest id of a stream.
func (m *Memory) Head(streamID int) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.streams[streamID-1].head
}
