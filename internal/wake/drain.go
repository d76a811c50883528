package wake

import (
	"context"
	"math/rand/v2"
	"time"
)

// How inboxes are drained.
const (
	// maxDrains bounds the drains on their way at once, as they share a handful of connections with claims and records.
	maxDrains = 2
	// passDrains bounds the drains of one pass over a stream.
	passDrains = 16
	// drainGap is the least time between two passes over a stream.
	drainGap = 2 * time.Millisecond
	// busyTries is how often a drain that found the stream's lock taken is tried again at once.
	busyTries = 4
	// lookFor is how long is looked for rows that were announced before they were visible.
	lookFor = time.Second

	drainTimeout = 30 * time.Second
)

// inbox is the draining of one stream.
type inbox struct {
	draining  bool          // its goroutine runs
	announced int           // announcements that the goroutine has not seen
	visible   bool          // a look is wanted, without looking again
	kick      chan struct{} // tells the goroutine that one of these was set
	notBefore time.Time     // the next pass, for the gap or after a failure
	failures  int           // in a row
	wasBusy   bool          // at the last drain somebody else had the lock
}

// lookAgain is the plan by which an inbox is looked into after an announcement: at once, then after 5, 10, 20 … 250 ms, until something came or a
// second has passed. A further announcement begins it again.
//
// The announcing transaction may be open still. Where several were announced, the first rows that come say nothing of the others:
//
//	A announces, B announces, A commits, a drain moves A's rows, B commits
//
// If the plan ended with A's rows, B's would wait for the poll. So each coming settles one announcement, and the plan goes on while there are
// more, though not in the smallest steps.
type lookAgain struct {
	until time.Time // zero: no plan
	step  int       // the next pause
	open  int       // announcements without a coming
}

// calmStep is where the plan goes on after something came.
const calmStep = 2

// gap is the pause before the look after the nth (from 0).
func gap(n int) time.Duration {
	if n > 5 {
		return 250 * time.Millisecond
	}
	return 5 * time.Millisecond << n
}

func (p *lookAgain) announced(n int, now time.Time) {
	p.until, p.step = now.Add(lookFor), 0
	p.open += n
}

func (p *lookAgain) came() {
	if p.open--; p.open <= 0 {
		*p = lookAgain{}
		return
	}
	p.step = max(p.step, calmStep)
}

// next returns when to look next; zero: no more.
func (p *lookAgain) next(now time.Time) time.Time {
	if !now.Before(p.until) {
		*p = lookAgain{}
		return time.Time{}
	}
	at := now.Add(gap(p.step))
	p.step++
	if at.After(p.until) {
		at = p.until
	}
	return at
}

// expect drains a stream in whose inbox rows wait or, with a plan, are about to come. mu is held.
func (h *Hub) expect(s *stream, plan bool) {
	if plan {
		s.inbox.announced++
	} else {
		s.inbox.visible = true
	}
	kick(s.inbox.kick)
	if !s.inbox.draining {
		s.inbox.draining = true
		r := h.run
		h.spawn(func() { h.drain(r, s) })
	}
}

// drain looks into a stream's inbox until no more rows are expected.
func (h *Hub) drain(r *run, s *stream) {
	var (
		plan  lookAgain
		tries int
		at    time.Time // the next look; zero: none
	)
	for {
		h.mu.Lock()
		now := time.Now()
		if s.inbox.announced > 0 {
			plan.announced(s.inbox.announced, now)
			at, tries = now, 0
		}
		if s.inbox.visible {
			at = now
		}
		s.inbox.announced, s.inbox.visible = 0, false
		// The decision to end and its mark are one step under mu: an announcement either was seen above or finds draining false and starts a
		// new goroutine.
		if h.run != r || h.streams[s.id] != s || at.IsZero() {
			s.inbox.draining = false
			h.mu.Unlock()
			return
		}
		at = latest(at, s.inbox.notBefore)
		h.mu.Unlock()
		if at.After(now) {
			pause(r.ctx, at.Sub(now), s.inbox.kick)
			if now = time.Now(); at.After(now) {
				continue // kicked, or the end
			}
		}

		moved, reply, err := h.drainPass(r, s)
		if r.ctx.Err() != nil {
			continue
		}
		if moved {
			plan.came()
		}
		now = time.Now()
		switch {
		case err != nil:
			h.faults.fail(fault{what: whatDrain, stream: s.id}, "sequencing what waits in an inbox failed; trying again", err)
			at = plan.next(now)
		case reply.stuck() && tries < busyTries:
			tries++
			at = now.Add(2*time.Millisecond + rand.N(3*time.Millisecond))
		case reply.stuck():
			// Whoever holds the lock may be moving the rows or may hang; either way the next looks tell.
			if tries == busyTries && plan.until.IsZero() {
				plan.announced(1, now)
			}
			tries++
			at = plan.next(now)
		case reply.More:
			tries, at = 0, now
		default:
			tries = 0
			at = plan.next(now)
		}
		if err == nil {
			h.faults.ok(fault{what: whatDrain, stream: s.id})
		}
	}
}

// drainPass drains while there is more, and wakes the stream's groups as messages come.
func (h *Hub) drainPass(r *run, s *stream) (moved bool, reply DrainReply, err error) {
	for range passDrains {
		select {
		case h.drains <- struct{}{}:
		case <-r.ctx.Done():
			return moved, reply, r.ctx.Err()
		}
		ctx, cancel := context.WithTimeout(r.ctx, drainTimeout)
		reply, err = h.source.Drain(ctx, s.id)
		cancel()
		<-h.drains
		h.drained(s, reply, err)
		moved = moved || reply.Moved > 0
		if err != nil || reply.stuck() || !reply.More {
			break
		}
	}
	return moved, reply, err
}

// stuck says that rows wait which this drain could not move: somebody else has the lock, or room was made in the log first.
func (r DrainReply) stuck() bool { return r.Busy || r.More && r.Moved == 0 }

// drained notes a drain's result and wakes the stream's groups if there are new messages, whoever has moved them: another process that drains
// the same stream does not announce it. A drain that has moved rows may fail afterwards.
func (h *Hub) drained(s *stream, reply DrainReply, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	// Where the head is not known, somebody who had the lock is taken to have moved something.
	if reply.Moved > 0 || reply.Head > s.head || err == nil && s.inbox.wasBusy && !reply.Busy && reply.Head == 0 {
		s.wake()
	}
	s.head = max(s.head, reply.Head)
	now := time.Now()
	if err != nil {
		s.inbox.failures++
		s.inbox.notBefore = now.Add(backoff(s.inbox.failures))
		return
	}
	s.inbox.failures = 0
	s.inbox.notBefore = now.Add(drainGap)
	s.inbox.wasBusy = reply.Busy
}
