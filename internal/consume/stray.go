package consume

import (
	"context"
	"sync"
)

// Strays owns the goroutines of abandoned handlers: nothing can end them, but somebody knows how many there are and can wait for them. A
// client has one for all its sessions, and they outlive their sessions.
type Strays struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n falls to 0; nil when nobody waits
}

// Outstanding says how many abandoned handlers have not returned yet.
func (s *Strays) Outstanding() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// Wait returns when every abandoned handler has returned, or with ctx's error.
func (s *Strays) Wait(ctx context.Context) error {
	s.mu.Lock()
	if s.n == 0 {
		s.mu.Unlock()
		return nil
	}
	if s.none == nil {
		s.none = make(chan struct{})
	}
	none := s.none
	s.mu.Unlock()
	select {
	case <-none:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Strays) add() {
	s.mu.Lock()
	s.n++
	s.mu.Unlock()
}

func (s *Strays) done() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n--
	if s.n == 0 && s.none != nil {
		close(s.none)
		s.none = nil
	}
}
