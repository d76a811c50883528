package sqlstreams

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/store"
)

// pulse joins the signs of life of a client's sessions: whichever is due first sends one statement for all of them, so that two thousand idle groups cost a statement in several seconds and not hundreds.
type pulse struct {
	send func(ctx context.Context, instances []uuid.UUID, groups []int) error

	mu       sync.Mutex
	sessions map[uuid.UUID]beating
}

// beating is a session that says that it lives.
type beating struct {
	group int
	told  time.Time // when that was last said; zero: never
}

// pulseGap is how long a sign of life stands for the next one: half of the time after which sessions send theirs.
const pulseGap = 7 * time.Second

// beat says that a session lives, unless that was said a moment ago on behalf of all.
func (p *pulse) beat(ctx context.Context, group int, instance uuid.UUID) error {
	now := time.Now()
	p.mu.Lock()
	if s, ok := p.sessions[instance]; ok && !s.told.IsZero() && now.Sub(s.told) < pulseGap {
		p.mu.Unlock()
		return nil
	}
	if p.sessions == nil {
		p.sessions = map[uuid.UUID]beating{}
	}
	ids, groups := []uuid.UUID{instance}, []int{group}
	if p.sessions[instance].told.IsZero() {
		// Its first speaks for itself alone: else each of two thousand that start would name all before it.
		p.sessions[instance] = beating{group: group}
	} else {
		for id, s := range p.sessions {
			if id != instance {
				ids, groups = append(ids, id), append(groups, s.group)
			}
		}
	}
	p.mu.Unlock()
	if err := p.send(ctx, ids, groups); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		if s, ok := p.sessions[id]; ok {
			s.told = now
			p.sessions[id] = s
		}
	}
	return nil
}

// end forgets a session, before it signs off: a beat of another that is on its way may still name it, and upkeep removes the row then.
func (p *pulse) end(instance uuid.UUID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sessions, instance)
}

// sessionStore is the store as sessions see it.
type sessionStore struct {
	*store.Store
	pulse *pulse
}

// Beat implements the engine's store.
func (s sessionStore) Beat(ctx context.Context, group int, instance uuid.UUID) error {
	return s.pulse.beat(ctx, group, instance)
}

// Leave implements the engine's store.
func (s sessionStore) Leave(ctx context.Context, group int, instance uuid.UUID) error {
	s.pulse.end(instance)
	return s.Store.Leave(ctx, group, instance)
}
