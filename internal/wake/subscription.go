package wake

import (
	"slices"
	"time"
)

// stream is a stream that has a subscription in this process.
type stream struct {
	id     int
	groups []*group
	inbox  inbox

	head   int64     // the newest id seen; 0: not known
	told   time.Time // when something of it was last announced
	probed time.Time // when its last probe began
	// unexplained is since when something must have told of the ids that the last probe found, if nothing had yet; zero: all was told.
	unexplained time.Time
}

// group is a group that has a subscription in this process.
type group struct {
	id     int
	stream *stream
	subs   []*Subscription
	every  time.Duration // the shortest of its subscriptions' intervals

	active time.Time // when work was last found, or the group subscribed
	probed time.Time // when its last probe began
	dueAt  time.Time // when its next delivery is due; zero: not known of
	urgent bool      // to be probed at once
	paused bool
	// changes counts what was said of the group. A probe that began before a change and is answered after it says paused of a group that
	// was resumed meanwhile.
	changes int
}

// Subscription wakes one session.
type Subscription struct {
	hub   *Hub
	c     chan struct{}
	every time.Duration
	group *group // nil when closed

	linger time.Duration
	timer  *time.Timer // a wake-up that lingers; nil: none
}

// Linger delays each wake-up by d, so that more can have come when the session looks. Wake-ups in between are one.
func (s *Subscription) Linger(d time.Duration) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	s.linger = d
}

// wake gives the session a reason to look. The hub's mu is held.
func (s *Subscription) wake() {
	if s.linger <= 0 {
		kick(s.c)
		return
	}
	if s.timer == nil {
		s.timer = time.AfterFunc(s.linger, s.lingered)
	}
}

func (s *Subscription) lingered() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	s.timer = nil
	if s.group != nil {
		kick(s.c)
	}
}

// Subscribe asks for the wake-ups of a group at the hub's poll interval. After Close the subscription is never woken.
func (h *Hub) Subscribe(group, stream int) *Subscription {
	return h.SubscribeEvery(group, stream, 0)
}

// SubscribeEvery is Subscribe with a poll interval of its own; 0: the hub's.
func (h *Hub) SubscribeEvery(groupID, streamID int, every time.Duration) *Subscription {
	sub := &Subscription{hub: h, c: make(chan struct{}, 1), every: h.every}
	if every > 0 {
		sub.every = clampInterval(every)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return sub
	}
	now := time.Now()
	g := h.groups[groupID]
	if g == nil {
		s := h.streams[streamID]
		if s == nil {
			s = &stream{id: streamID, inbox: inbox{kick: make(chan struct{}, 1)}}
			h.streams[streamID] = s
		}
		g = &group{id: groupID, stream: s}
		h.groups[groupID] = g
		s.groups = append(s.groups, g)
	}
	g.subs = append(g.subs, sub)
	g.active = now
	g.setEvery()
	sub.group = g
	if h.run == nil {
		h.start()
	}
	h.reckon(g, now)
	return sub
}

// setEvery finds the group's poll interval.
func (g *group) setEvery() {
	g.every = MaxPollInterval
	for _, sub := range g.subs {
		g.every = min(g.every, sub.every)
	}
}

// C receives a value when there is a reason to look; it holds at most one.
func (s *Subscription) C() <-chan struct{} { return s.c }

// Looked reports how a look went, so that polling can adapt.
func (s *Subscription) Looked(found bool) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if s.group == nil {
		return
	}
	now := time.Now()
	if found {
		s.group.active = now
	}
	s.hub.reckon(s.group, now)
}

// Close ends the subscription. With the last one polling and listening end; the hub's Close waits for that.
func (s *Subscription) Close() {
	h := s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	g := s.group
	if g == nil {
		return
	}
	s.group = nil
	if s.timer != nil {
		s.timer.Stop()
	}
	g.subs = remove(g.subs, s)
	if len(g.subs) > 0 {
		g.setEvery()
		return
	}
	delete(h.groups, g.id)
	st := g.stream
	st.groups = remove(st.groups, g)
	if len(st.groups) == 0 {
		delete(h.streams, st.id)
		kick(st.inbox.kick) // its drain finds that nobody wants it any more
	}
	if len(h.groups) == 0 {
		h.stop()
	}
}

func remove[T comparable](list []T, x T) []T {
	return slices.DeleteFunc(list, func(y T) bool { return y == x })
}

// wake gives every session of the group a reason to look. mu is held.
func (g *group) wake() {
	for _, sub := range g.subs {
		sub.wake()
	}
}

// idle says that a session of the group has no reason to look that it has not acted on yet. mu is held.
func (g *group) idle() bool {
	return slices.ContainsFunc(g.subs, func(sub *Subscription) bool { return len(sub.c) == 0 })
}

// wake wakes the stream's groups, but for those known to be paused: they would look in vain at each message. mu is held.
func (s *stream) wake() {
	for _, g := range s.groups {
		if !g.paused {
			g.wake()
		}
	}
}

// hear acts on an announcement, whether it came from the server or was made in this process. Echo: it is one of this process coming back.
// mu is held.
func (h *Hub) hear(a announcement, echo bool) {
	if h.run == nil {
		return
	}
	now := time.Now()
	switch a.kind {
	case Appended:
		if s := h.streams[a.id]; s != nil {
			s.told = now
			s.wake()
		}
	case Inboxed:
		if s := h.streams[a.id]; s != nil {
			s.told = now
			h.expect(s, !echo) // the plan of an echo has begun when it was made
		}
	case Changed:
		if g := h.groups[a.id]; g != nil {
			g.changes++
			g.paused = false // until a probe says otherwise
			g.urgent = true
			g.wake()
			h.reckon(g, now)
		}
	}
}
