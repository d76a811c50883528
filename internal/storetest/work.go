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
	k := g.keyWork(now)
	k.holds = req.Holds
	// 1. Ranges: the row with the token decides.
	for _, r := range req.Results {
		at := g.claimAt(r.RangeRef, -1)
		if at < 0 {
			reply.LostRanges = append(reply.LostRanges, r.RangeRef)
			continue
		}
		c := g.claims[at]
		g.settle(s, k, c.low, r.Outcomes)
		g.clearDone(c.low, c.high)
		g.claims = slices.Delete(g.claims, at, at+1)
		k.free(c.keys...)
	}
	// 2. Deliveries, likewise.
	for _, r := range req.Deliveries {
		g.recordDelivery(s, k, r, reply)
	}
	// 3. What is given back.
	g.recordPartials(s, k, req, reply)
	g.giveBack(s, k, req, reply)
	k.free(req.Freed...)
	if !g.paused {
		// 4. Deliveries, within the group's limits.
		if req.LookExpired {
			g.expire(k)
		}
		k.wake()
		room := g.room(req, now)
		g.handDeliveries(req, k, reply, room)
		// 5. Expired ranges.
		reply.Floor = req.Floor
		if req.TakeOver {
			g.takeOver(s, req, k, reply, room)
		}
		// 6. Fresh ids.
		if reply.Range == nil && req.RangeToken != (delivery.Token{}) {
			g.takeFresh(s, req, k, reply, room)
		} else if reply.Range != nil {
			reply.More = true
		}
		reply.Limited = room.limited()
	}
	k.wake()
	reply.Woken = len(k.woken)
	reply.Claimed = g.claimed
	for _, d := range g.deliveries {
		if d.running || d.waiting {
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

// claimAt finds a range by its token, at the low that the caller knows or above, because a partial record whose confirmation was lost has raised it; and only if it ends above prefix.
func (g *group) claimAt(ref delivery.RangeRef, prefix int64) int {
	return slices.IndexFunc(g.claims, func(c *claim) bool { return c.low >= ref.Low && c.token == ref.Token && c.high > prefix })
}

func (g *group) clearDone(low, high int64) {
	for id := range g.done {
		if id > low && id <= high {
			delete(g.done, id)
		}
	}
}

// settle writes the outcomes of messages on the main line. What lies at or below low, or has a mark, was recorded before.
func (g *group) settle(s *stream, k *keyWork, low int64, outcomes []delivery.Outcome) {
	for _, o := range outcomes {
		if o.ID <= low || g.done[o.ID] {
			continue
		}
		switch o.Kind {
		case delivery.Failed, delivery.Delayed, delivery.Waits:
			d := &row{id: o.ID, due: k.now.Add(o.DueIn), attempt: o.Attempt, solo: o.Solo, err: o.Error}
			if o.Order.InLine() {
				d.key, d.ordered = o.Key, o.Order == delivery.Ordered
			}
			d.waiting = o.Kind == delivery.Waits && d.key != ""
			g.put(d)
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
	d := letter{DeadLetter: DeadLetter{ID: o.ID, Reason: o.Reason, Error: o.Error, Attempts: o.Attempt}}
	if at, ok := s.find(o.ID); ok {
		d.Payload, d.Key, d.options = s.messages[at].Payload, s.messages[at].Key, s.messages[at].Options
	}
	if o.Parks {
		d.parks = o.Key
	}
	g.dead = slices.DeleteFunc(g.dead, func(x letter) bool { return x.ID == o.ID })
	g.dead = append(g.dead, d)
	slices.SortFunc(g.dead, func(a, b letter) int { return cmp.Compare(a.ID, b.ID) })
}

func (g *group) recordDelivery(s *stream, k *keyWork, r delivery.DeliveryResult, reply *delivery.WorkReply) {
	d := g.deliveries[r.ID]
	if d == nil || !d.running || d.token != r.Token {
		reply.LostDeliveries = append(reply.LostDeliveries, r.ID)
		return
	}
	switch r.Kind {
	case delivery.Succeeded:
		delete(g.deliveries, r.ID)
	case delivery.Dead:
		r.Key = d.key
		g.bury(s, r.Outcome)
		delete(g.deliveries, r.ID)
	case delivery.Failed, delivery.Delayed:
		d.giveBack(k.now.Add(r.DueIn))
		d.attempt, d.solo, d.err = r.Attempt, r.Solo, cmp.Or(r.Error, d.err)
	case delivery.Waits:
		d.giveBack(k.now)
		d.waiting = d.key != ""
	}
	k.free(d.key)
	g.history(r.Outcome)
}

func (g *group) recordPartials(s *stream, k *keyWork, req *delivery.WorkRequest, reply *delivery.WorkReply) {
	for _, r := range req.Partials {
		at := g.claimAt(r.RangeRef, r.Prefix)
		if at < 0 {
			reply.LostRanges = append(reply.LostRanges, r.RangeRef)
			continue
		}
		c := g.claims[at]
		g.finishPart(s, k, c, r.Prefix, r.Done, r.Outcomes)
		c.messages = min(c.most(), c.high-c.low)
		c.keys = slices.DeleteFunc(c.keys, func(key string) bool { return slices.Contains(r.Keys, key) })
		k.free(r.Keys...)
	}
}

// finishPart writes what is finished of a range that stays open: everything up to prefix, and the ids in done above it.
func (g *group) finishPart(s *stream, k *keyWork, c *claim, prefix int64, done []int64, outcomes []delivery.Outcome) {
	g.settle(s, k, c.low, outcomes)
	prefix = max(prefix, c.low)
	g.clearDone(c.low, prefix)
	c.low = prefix
	for _, id := range done {
		if id > c.low && id <= c.high {
			g.done[id] = true
		}
	}
}

func (g *group) giveBack(s *stream, k *keyWork, req *delivery.WorkRequest, reply *delivery.WorkReply) {
	for _, r := range req.Surrenders {
		at := g.claimAt(r.RangeRef, r.Prefix)
		if at < 0 {
			reply.LostRanges = append(reply.LostRanges, r.RangeRef)
			continue
		}
		c := g.claims[at]
		g.finishPart(s, k, c, r.Prefix, r.Done, r.Outcomes)
		c.token, c.expires, c.excused, c.messages = uuid.New(), k.now, true, -1
	}
	for _, ref := range req.Stale {
		if at := g.claimAt(ref, -1); at >= 0 && !g.claims[at].excused {
			g.claims[at].stale++
			g.claims[at].excused = true
		}
	}
	for _, ref := range req.Release {
		if d := g.deliveries[ref.ID]; d != nil && d.running && d.token == ref.Token {
			d.giveBack(k.now)
			d.waiting = d.key != ""
			k.free(d.key)
		}
	}
}

// expire gives back the deliveries whose lease ended. Those behind another in the line of a key had not started and wait; the others run alone from now on.
func (g *group) expire(k *keyWork) {
	var ended, behind []*row
	for _, d := range g.deliveries {
		if !d.running || d.expires.After(k.now) {
			continue
		}
		if d.key != "" && k.any(d.key, func(b *row) bool { return b.running && b.token == d.token && b.id < d.id }) {
			behind = append(behind, d)
		} else {
			ended = append(ended, d)
		}
		k.free(d.key)
	}
	for _, d := range behind {
		d.giveBack(k.now)
		d.waiting = true
	}
	for _, d := range ended {
		d.giveBack(k.now)
		if d.solo {
			d.attempt++
			d.err = "its lease ended while it ran alone"
		}
		d.solo = true
	}
}

func (g *group) handDeliveries(req *delivery.WorkRequest, k *keyWork, reply *delivery.WorkReply, room *room) {
	if req.DeliveryToken == (delivery.Token{}) {
		return
	}
	var due []*row
	for _, d := range g.deliveries {
		if !d.running && !d.waiting && d.solo == req.Solo && !d.due.After(k.now) {
			due = append(due, d)
		}
	}
	slices.SortFunc(due, func(a, b *row) int { return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.id, b.id)) })
	limit, followers := req.Retries, req.Followers
	if req.Solo {
		limit, followers = 1, 0
	}
	due = due[:min(len(due), limit, int(max(room.start, 0)))]
	var handed, withKey []*row
	for _, d := range due {
		if d.key == "" {
			handed = append(handed, d)
		} else {
			withKey = append(withKey, d)
		}
	}
	handed = append(handed, k.lineUp(withKey, int(min(int64(followers), room.start-int64(len(due)))))...)
	room.take(int64(len(handed)))
	slices.SortFunc(handed, byID)
	lease := req.Margins + g.ceiling
	for _, d := range handed {
		delete(k.woken, d.id)
		d.running, d.waiting, d.token, d.ceiling, d.expires = true, false, req.DeliveryToken, g.ceiling, k.now.Add(lease)
		reply.Deliveries = append(reply.Deliveries, delivery.Claimed{
			ID: d.id, Token: d.token, Attempt: d.attempt, Solo: d.solo, Lease: lease, Ceiling: g.ceiling, Order: d.order(), OutOfOrder: d.outOfOrder,
		})
	}
}

// looks is how many expired ranges one call breaks up or takes over.
const looks = 4

func (g *group) takeOver(s *stream, req *delivery.WorkRequest, k *keyWork, reply *delivery.WorkReply, room *room) {
	for range looks {
		at := slices.IndexFunc(g.claims, func(c *claim) bool { return c.low >= req.Floor && !c.expires.After(k.now) })
		if at < 0 {
			break
		}
		c := g.claims[at]
		if !c.excused && c.reclaims >= g.maxReclaims {
			reply.BrokenUp += g.breakUp(s, k, c)
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
			rest.low, rest.token, rest.expires, rest.excused, rest.instance, rest.messages = mid, req.RestToken, k.now, true, req.Instance, -1
			c.high, c.messages = mid, -1
			g.claims = slices.Insert(g.claims, at+1, &rest)
		}
		if !c.excused {
			c.reclaims++
		}
		c.token, c.excused, c.again, c.instance = req.RangeToken, false, true, req.Instance
		c.ceiling, c.expires = g.ceiling, k.now.Add(req.Margins+g.ceiling)
		started := c.high - c.low
		// What was claimed as parallel stays parallel; else what lower ranges have come to hold decides anew.
		if held := c.keys; len(held) > 0 {
			k.take(s, c)
			started = c.messages
			k.free(slices.DeleteFunc(slices.Clone(held), func(key string) bool { return slices.Contains(c.keys, key) })...)
		}
		room.take(started)
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
		if !c.expires.After(k.now) {
			reply.More = true
		} else if wait := c.expires.Sub(k.now); c.instance != req.Instance && (reply.NextExpiry < 0 || wait < reply.NextExpiry) {
			reply.NextExpiry = wait
		}
	}
	if floor < 0 {
		floor = g.claimed
	}
	reply.Floor = floor
}

func (g *group) handed(c *claim) *delivery.Range {
	r := &delivery.Range{Low: c.low, High: c.high, Token: c.token, Reclaims: c.reclaims, Stale: c.stale, Again: c.again, Ceiling: c.ceiling, Keyed: len(c.keys) > 0}
	if r.Keyed && c.keyOrder != nil {
		r.KeyOrder = *c.keyOrder
	}
	for id := range g.done {
		if id > c.low && id <= c.high {
			r.Done = append(r.Done, id)
		}
	}
	slices.Sort(r.Done)
	return r
}

// brokenUp is the error of deliveries that were a range.
const brokenUp = "its range was taken over too often"

func (g *group) breakUp(s *stream, k *keyWork, c *claim) int {
	n := 0
	if len(c.keys) > 0 {
		n = k.alone(s, c)
	}
	at, _ := s.find(c.low + 1)
	for ; at < len(s.messages) && s.messages[at].ID <= c.high; at++ {
		msg := &s.messages[at]
		if msg.Redacted || g.done[msg.ID] || g.deliveries[msg.ID] != nil {
			continue
		}
		g.put(&row{id: msg.ID, due: k.now, solo: true, err: brokenUp})
		n++
	}
	g.clearDone(c.low, c.high)
	return n
}

func (g *group) takeFresh(s *stream, req *delivery.WorkRequest, k *keyWork, reply *delivery.WorkReply, room *room) {
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
	c := &claim{messages: int64(n), low: g.claimed, high: s.messages[at+n-1].ID, token: req.RangeToken, expires: k.now.Add(lease), ceiling: g.ceiling, instance: req.Instance, keyOrder: k.order}
	g.claimed = c.high
	if waiting := k.take(s, c); len(waiting) > 0 && c.messages == 0 {
		reply.Passed = c.high - c.low - int64(len(waiting))
		// All of it waits for its keys: there is no range to open, and more may lie behind it.
		reply.More = true
		return
	}
	room.take(c.messages)
	g.claims = append(g.claims, c)
	slices.SortFunc(g.claims, func(a, b *claim) int { return cmp.Compare(a.low, b.low) })
	reply.Range = g.handed(c)
	reply.Range.Lease = lease
	reply.More = reply.More || at+n < len(s.messages)
}
