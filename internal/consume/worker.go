package consume

import (
	"context"
	"errors"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// work takes messages for one slot and runs their handlers itself. It ends when the session does, when its handler is abandoned, or when the
// handler ends the goroutine; in the last two cases another takes the slot.
func (s *Session) work(si int) {
	var at start
	running := false
	defer func() {
		if !running {
			return
		}
		// Only runtime.Goexit comes here.
		s.mu.Lock()
		if !s.mine(&at) {
			s.clear(&at)
			return
		}
		s.m.finish(si, s.clock(), judgeGoexit())
		s.restaff(si)
		s.flush()
	}()

	s.mu.Lock()
	for {
		now := s.clock()
		if s.ctx.Err() != nil {
			s.m.halt(now)
		}
		if !s.m.take(si, now, &at) {
			s.signal()
			switch {
			case s.m.fx.any:
				s.flush()
				s.mu.Lock()
			case s.m.stop.phase == halted:
				s.workers.Done()
				s.mu.Unlock()
				return
			default:
				s.idlers++
				s.idle.Wait()
				s.idlers--
			}
			continue
		}
		if s.idlers == 0 && s.staffed < len(s.m.slots) && s.m.startables() > 0 {
			s.staff()
		}
		s.flush()
		running = true
		v := s.call(&at)
		running = false
		s.mu.Lock()
		if !s.mine(&at) {
			s.clear(&at)
			return
		}
		s.m.finish(si, s.clock(), v)
	}
}

// mine says that the attempt has not been written off. mu is held.
func (s *Session) mine(at *start) bool {
	slot := &s.m.slots[at.slot]
	return slot.busy && slot.gen == at.gen
}

// clear records that an abandoned handler has returned. mu is held, and is let go.
func (s *Session) clear(at *start) {
	now := s.clock()
	s.m.counts.Cleared++
	s.m.event(Event{Code: diag.Cleared, Kind: KindCleared, Message: at.message.ID, Attempt: at.attempt, Duration: time.Duration(now.mono - at.began)}, now)
	s.flush()
	s.c.Strays.done()
}

// restaff gives a slot a new worker in place of one that ends without returning to it. mu is held.
func (s *Session) restaff(si int) {
	// The new one counts in place of the old one.
	go s.work(si)
}

// call runs the handler and judges what it returns.
func (s *Session) call(at *start) (v *verdict) {
	ctx := &handlerContext{
		base: s.base, ends: s.zero.Add(time.Duration(at.began) + at.timeout), timeout: at.timeout, message: at.message,
		attempt: Attempt{
			ID: at.message.ID, Attempt: at.attempt, Redelivered: at.redelivered, OutOfOrder: at.outOfOrder, LeaseDeadline: time.Unix(0, at.leaseEnds),
			Stream: s.c.Stream, Group: s.c.Group, GroupID: s.c.GroupID, Token: at.token, Delivery: at.delivery,
			Abandoned: s.zero.Add(time.Duration(at.began) + at.timeout + s.m.o.TimeoutGrace),
		},
	}
	returned := false
	defer func() {
		ctx.end()
		if !returned {
			if p := recover(); p != nil {
				v = judgePanic(p)
			}
		}
	}()
	err := s.c.Handler(ctx, at.message, ctx.attempt)
	returned = true
	if err == nil {
		return nil
	}
	if err == error(ErrRecorded) {
		if !at.delivery {
			return nil // its range is recorded as ever
		}
		return &verdict{kind: delivery.Succeeded, recorded: true}
	}
	v = judge(err)
	if v.kind == delivery.Failed && context.Cause(s.base) != nil && (errors.Is(err, context.Canceled) || errors.Is(err, ErrStopping)) {
		v.interrupted = true
	}
	return v
}

// guard is the watchdog: it ends what is past its time, and begins the stop.
func (s *Session) guard(quit <-chan struct{}) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	ended := s.ctx.Done()
	for {
		s.mu.Lock()
		now := s.clock()
		if s.ctx.Err() != nil {
			s.m.halt(now)
			ended = nil
		}
		abandoned, next := s.m.expire(now)
		for _, si := range abandoned {
			s.c.Strays.add()
			s.restaff(si)
		}
		s.flush()
		timer.Reset(time.Duration(min(next-now.mono, int64(time.Hour))))
		select {
		case <-timer.C:
		case <-s.watch:
		case <-ended:
		case <-quit:
			return
		}
	}
}
