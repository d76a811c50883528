package consume

import "sync/atomic"

// Skew makes the wall clock of a session adjustable. It is to be called before Run.
func (s *Session) Skew(by *atomic.Int64) {
	s.clock = func() instant {
		now := s.readClocks()
		now.wall += by.Load()
		return now
	}
}
