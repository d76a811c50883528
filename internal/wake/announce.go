package wake

import (
	"context"
	"time"
)

// How announcements are sent.
const (
	// coalesce is the least time between two sendings of one announcement.
	coalesce = 5 * time.Millisecond
	// staleAfter is when an announcement that could not be sent is given up: polling has found the work by then.
	staleAfter = time.Second

	notifyTimeout = 5 * time.Second
)

// sending is what the announcer has to do. It is bounded by the number of streams and groups, as an announcement that waits is not added again.
type sending struct {
	started   bool
	kick      chan struct{}
	waiting   map[announcement]time.Time // since when
	sent      map[announcement]time.Time // of the last few milliseconds
	echoes    map[announcement]echo
	notBefore time.Time // after a failure
	failures  int       // in a row
}

// echo counts own announcements that the listener has yet to hear.
type echo struct {
	n    int
	last time.Time
}

func (s *sending) init() {
	s.kick = make(chan struct{}, 1)
	s.waiting = make(map[announcement]time.Time)
	s.sent = make(map[announcement]time.Time)
	s.echoes = make(map[announcement]echo)
}

// Announce tells every process, this one included, of a stream (Appended, Inboxed) or a group (Changed). It neither blocks nor fails: an
// announcement is a hint. The first of a stream leaves at once, those that follow within 5 ms leave as one. After Close it does nothing.
func (h *Hub) Announce(id int, kind Kind) {
	a := announcement{kind: kind, id: id}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || id <= 0 {
		return
	}
	h.hear(a, false)
	h.enqueue(a)
}

// enqueue leaves an announcement to the announcer. mu is held.
func (h *Hub) enqueue(a announcement) {
	if _, waits := h.send.waiting[a]; waits {
		return
	}
	h.send.waiting[a] = time.Now()
	kick(h.send.kick)
	if !h.send.started {
		h.send.started = true
		h.spawn(h.announce)
	}
}

// announce is the announcer.
func (h *Hub) announce() {
	for {
		h.mu.Lock()
		closing := h.closed
		now := time.Now()
		batch, next := h.send.take(now, closing)
		h.expectEchoes(batch, now)
		h.mu.Unlock()

		switch {
		case len(batch) > 0:
			h.notify(batch)
		case closing:
			return
		case next.IsZero():
			pause(h.ctx, -1, h.send.kick)
		default:
			pause(h.ctx, next.Sub(now), h.send.kick)
		}
	}
}

// outgoing is an announcement that is being sent.
type outgoing struct {
	announcement
	since time.Time // when it was first made
}

// take returns announcements to send now, as many as one payload holds, or when there will be some (zero: none wait).
func (s *sending) take(now time.Time, closing bool) (batch []outgoing, next time.Time) {
	for a, at := range s.sent {
		if now.Sub(at) >= coalesce {
			delete(s.sent, a)
		}
	}
	if len(s.waiting) == 0 {
		return nil, time.Time{}
	}
	if !closing && now.Before(s.notBefore) {
		return nil, s.notBefore
	}
	size := 0
	for a, since := range s.waiting {
		if at, ok := s.sent[a]; ok && !closing {
			if at = at.Add(coalesce); next.IsZero() || at.Before(next) {
				next = at
			}
			continue
		}
		if size += len(a.append(nil)) + 1; size > maxPayload {
			break
		}
		batch = append(batch, outgoing{a, since})
		delete(s.waiting, a)
		s.sent[a] = now
	}
	return batch, next
}

// notify sends a batch. What fails waits again, as it is soon made up for if only the connection was bad.
func (h *Hub) notify(batch []outgoing) {
	var payload []byte
	for i, a := range batch {
		if i > 0 {
			payload = append(payload, ',')
		}
		payload = a.append(payload)
	}
	ctx, cancel := context.WithTimeout(h.ctx, notifyTimeout)
	err := h.source.Notify(ctx, string(payload))
	cancel()
	if err == nil {
		h.faults.ok(fault{what: whatAnnounce})
	} else if h.ctx.Err() == nil {
		h.faults.fail(fault{what: whatAnnounce}, "announcing failed; consumers find the messages by polling", err)
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		h.send.failures = 0
		return
	}
	now := time.Now()
	h.send.failures++
	h.send.notBefore = now.Add(backoff(h.send.failures))
	for _, a := range batch {
		delete(h.send.sent, a.announcement)
		delete(h.send.echoes, a.announcement)
		if _, waits := h.send.waiting[a.announcement]; waits {
			continue
		}
		if h.closed || now.Sub(a.since) >= staleAfter {
			h.state.Unsent++
			continue
		}
		h.send.waiting[a.announcement] = a.since
	}
}

// expectEchoes notes the announcements of an inbox that this process is about to send and will hear itself. Its own plan to look again has begun
// when they were made; to begin it anew when they come back would look for a second for what has come already. mu is held.
func (h *Hub) expectEchoes(batch []outgoing, now time.Time) {
	for a, e := range h.send.echoes {
		if now.Sub(e.last) >= staleAfter {
			delete(h.send.echoes, a)
		}
	}
	if !h.state.Listening {
		return
	}
	for _, a := range batch {
		if a.kind == Inboxed && h.streams[a.id] != nil {
			h.send.echoes[a.announcement] = echo{n: h.send.echoes[a.announcement].n + 1, last: now}
		}
	}
}

// isEcho says whether an announcement just heard is taken for one of this process. It may be another process's that overtook it; then this
// process's own is taken for the other's. mu is held.
func (h *Hub) isEcho(a announcement, now time.Time) bool {
	e := h.send.echoes[a]
	if e.n == 0 || now.Sub(e.last) >= staleAfter {
		return false
	}
	e.n--
	h.send.echoes[a] = e
	if e.n == 0 {
		delete(h.send.echoes, a)
	}
	return true
}
