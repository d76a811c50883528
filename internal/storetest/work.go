package storetest

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

// Work records and hands out.
func (m *Memory) Work(ctx context.Context, req *delivery.WorkRequest) (*delivery.WorkReply, error) {
	var reply *delivery.WorkReply
	err := m.enter(ctx, OpWork, func() error {
		reply = m.work(req, time.Now())
		if m.onWork != nil {
			m.onWork(req, reply)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return reply, nil
}

func (m *Memory) work(req *delivery.WorkRequest, now time.Time) *delivery.WorkReply {
	reply := &delivery.WorkReply{NextDue: -1, NextSoloDue: -1, NextExpiry: -1}
	g := m.groups[req.Group-1]
	s := m.streams[g.stream-1]
	if g.gone || s.gone {
		reply.Gone = true
		return reply
	}
	reply.Paused, reply.Epoch, reply.ConfigVersion = g.paused, g.epoch, g.version
	if g.version > req.ConfigVersion {
		reply.Config = g.config
	}
	// 1. Ranges: the row with the token decides.
	for _, r := range req.Results {
		at := g.claimAt(r.RangeRef)
		if at < 0 {
			reply.LostRanges = append(reply.LostRanges, r.RangeRef)
			continue
		}
		c := g.claims[at]
		g.settle(s, r.Outcomes, now)
		g.clearDone(c.low, c.high)
		g.claims = slices.Delete(g.claims, at, at+1)
	}
	// 2. Deliveries, likewise.
	for _, r := range req.Deliveries {
		g.recordDelivery(s, r, now, reply)
	}
	// 3. What is given back.
	g.giveBack(s, req, now, reply)
	if !g.paused {
		// 4. Deliveries, within the group's limits.
		room := g.room(req, now)
		g.handDeliveries(req, now, reply, room)
		// 5. Expired ranges.
		reply.Floor = req.Floor
		if req.TakeOver {
			g.takeOver(s, req, now, reply, room)
		}
		// 6. Fresh ids.
		if reply.Range == nil && req.RangeToken != (delivery.Token{}) {
			g.takeFresh(s, req, now, reply, room)
		} else if reply.Range != nil {
			reply.More = true
		}
		reply.Limited = room.limited()
	}
	reply.Claimed = g.claimed
	for _, d := range g.deliveries {
		if d.running {
			continue
		}
		next := &reply.NextDue
		if d.solo {
			next = &reply.NextSoloDue
		}
		if wait := max(d.due.Sub(now), 0); *next < 0 || wait < *next {
			*next = wait
		}
	}
	return reply
}

func (g *group) claimAt(ref delivery.RangeRef) int {
	return slices.IndexFunc(g.claims, func(c *claim) bool { return c.low == ref.Low && c.token == ref.Token })
}

func (g *group) clearDone(low, high int64) {
	for id := range g.done {
		if id > low && id <= high {
			delete(g.done, id)
		}
	}
}

// settle writes the outcomes of messages on the main line.
func (g *group) settle(s *stream, outcomes []delivery.Outcome, now time.Time) {
	for _, o := range outcomes {
		switch o.Kind {
		case delivery.Failed, delivery.Delayed:
			if g.deliveries[o.ID] == nil {
				g.deliveries[o.ID] = &row{id: o.ID, due: now.Add(o.DueIn), attempt: o.Attempt, solo: o.Solo, err: o.Error}
			}
		case delivery.Dead:
			g.bury(s, o)
		case delivery.Succeeded:
		}
		g.history(o)
	}
}

func (g *group) history(o delivery.Outcome) {
	if o.Kind == delivery.Failed || o.Kind == delivery.Dead {
		g.attempts = append(g.attempts, AttemptRow{ID: o.ID, Attempt: o.Attempt, Kind: o.Kind, Error: o.Error})
	}
}

func (g *group) bury(s *stream, o delivery.Outcome) {
	d := DeadLetter{ID: o.ID, Reason: o.Reason, Error: o.Error, Attempts: o.Attempt}
	if at, ok := s.find(o.ID); ok {
		d.Payload, d.Key = s.messages[at].Payload, s.messages[at].Key
	}
	g.dead = slices.DeleteFunc(g.dead, func(x DeadLetter) bool { return x.ID == o.ID })
	g.dead = append(g.dead, d)
	slices.SortFunc(g.dead, func(a, b DeadLetter) int { return cmp.Compare(a.ID, b.ID) })
}

func (g *group) recordDelivery(s *stream, r delivery.DeliveryResult, now time.Time, reply *delivery.WorkReply) {
	d := g.deliveries[r.ID]
	if d == nil || !d.running || d.token != r.Token {
		reply.LostDeliveries = append(reply.LostDeliveries, r.ID)
		return
	}
	switch r.Kind {
	case delivery.Succeeded:
		delete(g.deliveries, r.ID)
	case delivery.Dead:
		g.bury(s, r.Outcome)
		delete(g.deliveries, r.ID)
	case delivery.Failed, delivery.Delayed:
		*d = row{id: d.id, due: now.Add(r.DueIn), attempt: r.Attempt, solo: r.Solo, err: cmp.Or(r.Error, d.err)}
	}
	g.history(r.Outcome)
}

func (g *group) giveBack(s *stream, req *delivery.WorkRequest, now time.Time, reply *delivery.WorkReply) {
	for _, r := range req.Surrenders {
		at := g.claimAt(r.RangeRef)
		if at < 0 || g.claims[at].high <= r.Prefix {
			reply.LostRanges = append(reply.LostRanges, r.RangeRef)
			continue
		}
		c := g.claims[at]
		g.settle(s, r.Outcomes, now)
		g.clearDone(c.low, r.Prefix)
		c.low, c.token, c.expires, c.excused = max(c.low, r.Prefix), uuid.New(), now, true
		for _, id := range r.Done {
			g.done[id] = true
		}
	}
	for _, ref := range req.Stale {
		if at := g.claimAt(ref); at >= 0 && !g.claims[at].excused {
			g.claims[at].stale++
			g.claims[at].excused = true
		}
	}
	for _, ref := range req.Release {
		if d := g.deliveries[ref.ID]; d != nil && d.running && d.token == ref.Token {
			*d = row{id: d.id, due: now, attempt: d.attempt, solo: d.solo, err: d.err}
		}
	}
}

func (g *group) handDeliveries(req *delivery.WorkRequest, now time.Time, reply *delivery.WorkReply, room *room) {
	if req.LookExpired {
		for _, d := range g.deliveries {
			if !d.running || d.expires.After(now) {
				continue
			}
			again := row{id: d.id, due: now, attempt: d.attempt, solo: true, err: d.err}
			if d.solo {
				again.attempt++
				again.err = "its lease ended while it ran alone"
			}
			*d = again
		}
	}
	if req.DeliveryToken == (delivery.Token{}) {
		return
	}
	var due []*row
	for _, d := range g.deliveries {
		if !d.running && d.solo == req.Solo && !d.due.After(now) {
			due = append(due, d)
		}
	}
	slices.SortFunc(due, func(a, b *row) int { return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.id, b.id)) })
	limit := req.Retries
	if req.Solo {
		limit = 1
	}
	due = due[:min(len(due), limit, int(max(room.start, 0)))]
	room.take(int64(len(due)))
	slices.SortFunc(due, func(a, b *row) int { return cmp.Compare(a.id, b.id) })
	lease := req.Margins + g.ceiling
	for _, d := range due {
		d.running, d.token, d.ceiling, d.expires = true, req.DeliveryToken, g.ceiling, now.Add(lease)
		reply.Deliveries = append(reply.Deliveries, delivery.Claimed{ID: d.id, Token: d.token, Attempt: d.attempt, Solo: d.solo, Lease: lease, Ceiling: g.ceiling})
	}
}

// looks is how many expired ranges one call breaks up or takes over.
const looks = 4

func (g *group) takeOver(s *stream, req *delivery.WorkRequest, now time.Time, reply *delivery.WorkReply, room *room) {
	for range looks {
		at := slices.IndexFunc(g.claims, func(c *claim) bool { return c.low >= req.Floor && !c.expires.After(now) })
		if at < 0 {
			break
		}
		c := g.claims[at]
		if !c.excused && c.reclaims >= g.maxReclaims {
			reply.BrokenUp += g.breakUp(s, c, now)
			g.claims = slices.Delete(g.claims, at, at+1)
			continue
		}
		if req.RangeToken == (delivery.Token{}) || room.most() <= 0 {
			break
		}
		mid := c.high
		if ids := c.high - c.low; c.stale >= 2 && ids > 1 {
			mid = c.low + max(1, min(ids/2, int64(req.PartMax)))
		}
		if mid = min(mid, c.low+min(room.most(), c.high-c.low)); mid < c.high {
			rest := *c
			rest.low, rest.token, rest.expires, rest.excused, rest.instance = mid, req.RestToken, now, true, req.Instance
			c.high = mid
			g.claims = slices.Insert(g.claims, at+1, &rest)
		}
		if !c.excused {
			c.reclaims++
		}
		c.token, c.excused, c.again, c.instance = req.RangeToken, false, true, req.Instance
		c.ceiling, c.expires = g.ceiling, now.Add(req.Margins+g.ceiling)
		room.take(c.high - c.low)
		reply.Range = g.handed(c)
		reply.Range.Lease = req.Margins + g.ceiling
		break
	}
	floor := int64(-1)
	for _, c := range g.claims {
		if c.low < req.Floor {
			continue
		}
		if floor < 0 {
			floor = c.low
		}
		if !c.expires.After(now) {
			reply.More = true
		} else if wait := c.expires.Sub(now); c.instance != req.Instance && (reply.NextExpiry < 0 || wait < reply.NextExpiry) {
			reply.NextExpiry = wait
		}
	}
	if floor < 0 {
		floor = g.claimed
	}
	reply.Floor = floor
}

func (g *group) handed(c *claim) *delivery.Range {
	r := &delivery.Range{Low: c.low, High: c.high, Token: c.token, Reclaims: c.reclaims, Stale: c.stale, Again: c.again, Ceiling: c.ceiling}
	for id := range g.done {
		if id > c.low && id <= c.high {
			r.Done = append(r.Done, id)
		}
	}
	slices.Sort(r.Done)
	return r
}

func (g *group) breakUp(s *stream, c *claim, now time.Time) int {
	n := 0
	at, _ := s.find(c.low + 1)
	for ; at < len(s.messages) && s.messages[at].ID <= c.high; at++ {
		msg := &s.messages[at]
		if msg.Redacted || g.done[msg.ID] || g.deliveries[msg.ID] != nil {
			continue
		}
		g.deliveries[msg.ID] = &row{id: msg.ID, due: now, solo: true, err: "its range was taken over too often"}
		n++
	}
	g.clearDone(c.low, c.high)
	return n
}

func (g *group) takeFresh(s *stream, req *delivery.WorkRequest, now time.Time, reply *delivery.WorkReply, room *room) {
	if g.claimed < s.first-1 {
		reply.LostFrom, reply.LostTo = g.claimed, s.first-1
		g.claimed = s.first - 1
	}
	at, _ := s.find(g.claimed + 1)
	n, bytes := 0, int64(0)
	if room.most() <= 0 {
		reply.More = reply.More || at < len(s.messages)
		return
	}
	for ; at+n < len(s.messages) && n < req.MaxMessages && int64(n) < room.most(); n++ {
		msg := &s.messages[at+n]
		bytes += int64(len(msg.Payload) + len(msg.Headers))
		if n > 0 && bytes > req.MaxBytes {
			break
		}
	}
	if n == 0 {
		return
	}
	lease := req.Margins + g.ceiling
	room.take(int64(n))
	c := &claim{messages: int64(n), low: g.claimed, high: s.messages[at+n-1].ID, token: req.RangeToken, expires: now.Add(lease), ceiling: g.ceiling, instance: req.Instance}
	g.claims = append(g.claims, c)
	slices.SortFunc(g.claims, func(a, b *claim) int { return cmp.Compare(a.low, b.low) })
	g.claimed = c.high
	reply.Range = g.handed(c)
	reply.Range.Lease = lease
	reply.More = reply.More || at+n < len(s.messages)
}
