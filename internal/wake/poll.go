package wake

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// How polling goes.
const (
	// maxStreams and maxGroups bound one probe. It takes a few relation locks for each stream.
	maxStreams = 50
	maxGroups  = 500
	// idleGap is the least time between two probes of idle groups: five a second, however many groups there are.
	idleGap = 200 * time.Millisecond
	// fastest and fastFloor: groups with recent work are probed every 25 ms when nothing is heard, or as often as the poll interval says if
	// that is shorter, but not more often than every 5 ms. It is also the distance of two such probes, so with very many streams each has its
	// turn less often.
	fastest   = 25 * time.Millisecond
	fastFloor = 5 * time.Millisecond
	// recent is how long a group counts as active after work was found; steady is how long of that it is polled at full speed.
	recent = 5 * time.Second
	steady = 2 * time.Second

	probeTimeout = 10 * time.Second
)

// polling is what the poller remembers from one probe to the next.
type polling struct {
	lastFast    time.Time // the last probe that was made for active groups
	lastIdle    time.Time // the last one that was made for idle groups
	notBefore   time.Time // after a failure
	failures    int       // in a row
	sleepsUntil time.Time
}

// pace is how a group is polled.
type pace int

const (
	atOnce pace = iota
	fast        // it had work lately, and nothing is heard
	slow
)

// turnOf is a group's turn to be probed.
type turnOf struct {
	g    *group
	pace pace
	own  time.Time // when its interval ends
	at   time.Time // when it can be probed, as probes keep distance
	join time.Time // from when on it joins a probe that is made for others of its pace
}

// due says when a group is to be probed next. mu is held.
func (h *Hub) due(g *group, now time.Time) turnOf {
	t := turnOf{g: g, pace: slow}
	age := now.Sub(g.active)
	interval := g.every
	distance := h.poll.lastIdle.Add(idleGap)
	switch {
	case g.urgent:
		t.pace, interval, distance = atOnce, 0, time.Time{}
	case age < recent && !h.state.Listening && g.idle():
		// A session that has not taken its last wake-up is busy: to tell it again needs no probe.
		unit := min(max(g.every, fastFloor), fastest)
		interval = unit
		if age > steady {
			interval <<= 1 + (age-steady)/time.Second
		}
		interval = min(interval, max(g.every, unit))
		// Sessions that finish at different moments would otherwise each cause a probe of their own.
		t.pace, distance = fast, h.poll.lastFast.Add(unit)
	case age >= recent:
		interval = max(interval, h.turn())
	}
	t.own, t.join = g.probed.Add(interval), g.probed.Add(interval/2)
	t.at = latest(latest(t.own, distance), h.poll.notBefore)
	return t
}

// turn is how long it takes to probe every group once at five probes a second.
func (h *Hub) turn() time.Duration {
	return idleGap * time.Duration(max(ceilDiv(len(h.streams), maxStreams), ceilDiv(len(h.groups), maxGroups)))
}

func ceilDiv(n, by int) int { return (n + by - 1) / by }

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// reckon makes the poller reckon anew if a group is to be probed before it would wake by itself. mu is held.
func (h *Hub) reckon(g *group, now time.Time) {
	if h.run != nil && h.due(g, now).at.Before(h.poll.sleepsUntil) {
		kick(h.run.kick)
	}
}

// pollAll is the poller.
func (h *Hub) pollAll(r *run) {
	for r.ctx.Err() == nil {
		h.mu.Lock()
		if h.run != r {
			h.mu.Unlock()
			return
		}
		now := time.Now()
		batch, next := h.pick(now)
		next = h.wakeDue(now, next)
		h.poll.sleepsUntil = next
		h.mu.Unlock()

		if len(batch) > 0 {
			h.probe(r, batch)
		} else {
			pause(r.ctx, next.Sub(now), r.kick)
		}
	}
}

// wakeDue wakes the groups of which a delivery has become due, and returns when that is next, or the given time if that is earlier.
// mu is held.
func (h *Hub) wakeDue(now, next time.Time) time.Time {
	for _, g := range h.groups {
		switch {
		case g.dueAt.IsZero():
		case !g.dueAt.After(now):
			g.dueAt = time.Time{}
			if !g.paused {
				g.wake()
			}
		case g.dueAt.Before(next):
			next = g.dueAt
		}
	}
	return next
}

// asked is a group that a probe asks for.
type asked struct {
	*group
	changes int // of the group when it was asked
}

// pick returns the groups to probe now, or when there will be some. The longest overdue come first. As active groups become due sooner they
// come before idle ones, but cannot keep them away for ever. mu is held.
func (h *Hub) pick(now time.Time) (batch []asked, next time.Time) {
	next = now.Add(MaxPollInterval)
	var due []turnOf
	for _, g := range h.groups {
		t := h.due(g, now)
		if !t.at.After(now) {
			due = append(due, t)
		} else if t.at.Before(next) {
			next = t.at
		}
	}
	if len(due) == 0 {
		return nil, next
	}

	streams := make(map[*stream]bool)
	var taken [slow + 1]bool
	take := func(turns []turnOf) {
		slices.SortFunc(turns, byTurn)
		for _, t := range turns {
			if len(batch) == maxGroups || !streams[t.g.stream] && len(streams) == maxStreams {
				continue
			}
			streams[t.g.stream] = true
			taken[t.pace] = true
			batch = append(batch, asked{t.g, t.g.changes})
			t.g.probed, t.g.urgent = now, false
		}
	}
	take(due)
	// Groups that subscribed at different moments would each need a statement of their own in every interval. Those past half of theirs
	// join one that is made for their like anyway, and from then on they go together.
	if len(streams) < maxStreams {
		var joining []turnOf
		for _, g := range h.groups {
			if t := h.due(g, now); t.at.After(now) && taken[t.pace] && !t.join.After(now) {
				joining = append(joining, t)
			}
		}
		take(joining)
	}
	if taken[fast] {
		h.poll.lastFast = now
	}
	if taken[slow] {
		h.poll.lastIdle = now
	}
	return batch, next
}

// byTurn orders turns: what is urgent, then the longest overdue.
func byTurn(a, b turnOf) int {
	if (a.pace == atOnce) != (b.pace == atOnce) {
		return cmp.Compare(a.pace, b.pace)
	}
	return cmp.Or(a.own.Compare(b.own), cmp.Compare(a.g.id, b.g.id))
}

// probe asks how the groups stand, and acts on it.
func (h *Hub) probe(r *run, batch []asked) {
	ids := make([]int, len(batch))
	for i, a := range batch {
		ids[i] = a.id
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(r.ctx, probeTimeout)
	probed, err := h.source.Probe(ctx, ids)
	cancel()
	if r.ctx.Err() != nil {
		return
	}
	if err != nil {
		h.probeFailed(batch, err)
		return
	}
	h.faults.ok(fault{what: whatProbe})

	h.mu.Lock()
	defer h.mu.Unlock()
	if h.run != r {
		return
	}
	now := time.Now()
	h.state.LastProbe = now
	if h.poll.failures > 0 {
		// Announcements may have gone by while the server was away, and what it was asked then is unanswered.
		h.poll.failures = 0
		h.probeAllBut(batch)
	}
	answers := make(map[int]Probed, len(probed))
	for _, p := range probed {
		answers[p.Group] = p
	}
	for _, a := range batch {
		if h.groups[a.id] != a.group {
			continue // closed meanwhile
		}
		p, ok := answers[a.id]
		if !ok {
			p = Probed{Gone: true}
		}
		h.learn(a, p, began, now)
	}
}

func (h *Hub) probeFailed(batch []asked, err error) {
	h.faults.fail(fault{what: whatProbe}, "polling for work failed; trying again", err)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.poll.failures++
	h.poll.notBefore = time.Now().Add(backoff(h.poll.failures))
	for _, a := range batch {
		a.urgent = true
	}
}

// probeAllBut makes every group urgent but those just probed. mu is held.
func (h *Hub) probeAllBut(batch []asked) {
	for _, g := range h.groups {
		g.urgent = true
	}
	for _, a := range batch {
		a.urgent = false
	}
}

// learn acts on how one group stands. mu is held.
func (h *Hub) learn(a asked, p Probed, began, now time.Time) {
	g, s := a.group, a.stream
	if p.Gone {
		g.wake() // the session finds out by itself
		return
	}
	h.explain(s, p.Head, began)
	s.head = p.Head // not the greater: a restored server counts from lower on
	resumed := false
	if a.changes == g.changes {
		resumed = g.paused && !p.Paused
		g.paused = p.Paused
	}
	g.dueAt = time.Time{}
	if !p.Due && p.NextDue >= 0 && p.NextDue <= MaxPollInterval { // what is later is seen by a later probe
		g.dueAt = now.Add(p.NextDue)
	}
	if !g.paused && (p.Head > p.Claimed || p.Due || p.Expired || resumed) {
		g.wake()
	}
	if p.Inbox {
		h.expect(s, false)
	}
}

// explain counts new messages of which no announcement has told. An announcement may still be on its way when a probe sees its message, so it is
// judged at the next probe of the stream. mu is held.
func (h *Hub) explain(s *stream, head int64, began time.Time) {
	last := s.probed
	if last.Equal(began) {
		return // done for another group of the stream
	}
	s.probed = began
	if !s.unexplained.IsZero() {
		if s.told.Before(s.unexplained) {
			h.state.Missed++
		}
		s.unexplained = time.Time{}
	}
	if h.state.Listening && h.state.Since.Before(last) && head > s.head && s.told.Before(last) {
		s.unexplained = last
	}
}
