package consume

import (
	"slices"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// look is what is known of work that could be claimed, and when looking is worth while.
type look struct {
	fresh      bool // there may be a range to claim
	soon       bool // and it is worth a call of its own; else it is asked for with the next call that is made anyway
	woken      bool // since the last call: something changed, if only a pause
	dueAt      int64
	soloAt     int64
	expiryAt   int64 // when a lease of another, or one that we left, ends
	takenAt    int64 // when expired ranges were last looked for
	returnedAt int64 // when expired deliveries were
	workedAt   int64
	floor      int64
	claimed    int64
	paused     bool
	pollAt     int64 // while paused
	notSoon    int64 // a look that promised more and found nothing is not repeated before this
}

// calls is what is on its way to the store, and when the next call may go.
type calls struct {
	out     bool
	inDoubt *call
	retryAt int64
	fails   int
	beatAt  int64
	flushAt int64
	watchAt int64
	lastOK  instant
	shun    map[string]bool // for the range that the call which is out may bring; see span.shun
	lastErr diag.Code
}

// call is one Work with what is to be done with its reply.
type call struct {
	req        *delivery.WorkRequest
	sent       instant
	recorded   []*span
	given      []*span
	stale      []*span
	deliveries []deliveryDone
	released   []*parcel
	partials   []partialSent
	freed      []string
	keyed      bool // it tells of messages that hold their keys, so it may wake others
	wants      bool // it asks for work
}

const lookEvery = int64(time.Second)

// woke says that the waker has signalled.
func (m *machine) woke(now instant) {
	m.look.fresh, m.look.soon, m.look.woken, m.look.notSoon = true, true, true, 0
	// What it signalled may be a lease that ended, while such were looked for less than a second ago.
	m.look.expiryAt = min(m.look.expiryAt, max(now.mono, m.look.takenAt+lookEvery))
}

// buildWork puts together everything that there is to say and to ask. It returns nil if that is nothing.
func (m *machine) buildWork(now instant) *call {
	c := &call{sent: now, req: &delivery.WorkRequest{
		Group: m.names.groupID, Stream: m.names.streamID, Instance: m.names.instance, ConfigVersion: m.version,
		Margins: m.o.Margins(), MaxReclaims: m.o.MaxReclaims,
	}}
	worth := m.addResults(c, now)
	if m.addClaims(c, now) {
		worth = true
	}
	if m.stop.phase == active && m.look.woken && now.mono-m.look.workedAt >= m.statusGap() || m.look.paused && m.look.pollAt <= now.mono {
		worth = true
	}
	if !worth {
		return nil
	}
	for i := range c.partials {
		c.partials[i].span.sent = true
	}
	if len(c.freed) > 0 {
		m.freed = nil
	}
	for _, r := range c.recorded {
		r.sent = true
	}
	for _, r := range c.given {
		r.sent = true
	}
	if len(c.deliveries) > 0 {
		m.results = nil
	}
	if len(c.deliveries)+len(c.freed) > 0 {
		m.calls.flushAt = never
	}
	m.look.woken = false
	m.look.workedAt = now.mono
	m.look.pollAt = now.mono + m.pausedPoll()
	m.calls.out = true
	return c
}

// statusGap is the least time between two calls that are made only because the waker has signalled, while nothing can be claimed: the group may
// have been paused or moved, and is it resumed it goes on at once.
func (m *machine) statusGap() int64 {
	if m.look.paused {
		return int64(50 * time.Millisecond)
	}
	return int64(250 * time.Millisecond)
}

// addResults says whether there is anything to tell.
func (m *machine) addResults(c *call, now instant) bool {
	req := c.req
	for _, r := range m.spans {
		switch {
		case r.stale == staleSay && !r.gone:
			req.Stale = append(req.Stale, r.ref)
			c.stale = append(c.stale, r)
		case !r.finished():
			if m.partialDue(r, now) {
				if p, sent, ok := m.partial(r, now); ok {
					req.Partials = append(req.Partials, p)
					c.partials = append(c.partials, sent)
				}
			}
		case r.whole():
			req.Results = append(req.Results, r.result(now))
			c.recorded = append(c.recorded, r)
		default:
			req.Surrenders = append(req.Surrenders, r.surrender(now))
			c.given = append(c.given, r)
		}
	}
	for _, p := range m.parcels {
		if !p.releasable() {
			continue
		}
		for i := range p.items {
			if p.items[i].state < msgRunning {
				req.Release = append(req.Release, delivery.DeliveryRef{ID: p.items[i].ID, Token: p.token})
			}
		}
		c.released = append(c.released, p)
	}
	worth := len(c.stale)+len(c.recorded)+len(c.given)+len(c.released)+len(c.partials) > 0
	if len(m.results)+len(m.freed) > 0 && (worth || m.calls.flushAt <= now.mono || m.stop.phase != active) {
		worth = true
	}
	// What waits to be recorded goes with any call that is made.
	c.deliveries, c.freed = m.results, m.freed
	req.Freed = m.freed
	for _, r := range m.spans {
		// One that is not read yet has no places in the lines: what is claimed behind it could be read before it.
		if r.keyed && r.read && !r.gone && !r.giveBack && r.stale == notStale {
			req.Holds = append(req.Holds, r.ref.Token)
		}
	}
	c.keyed = len(c.partials)+len(c.freed) > 0 || slices.ContainsFunc(c.recorded, func(r *span) bool { return r.keyed })
	for _, d := range m.results {
		o := d.Outcome
		c.keyed = c.keyed || o.Order != ""
		if o.Kind == delivery.Waits {
			req.Release = append(req.Release, delivery.DeliveryRef{ID: o.ID, Token: d.parcel.token})
			continue
		}
		o.DueIn = dueIn(d.due, now)
		req.Deliveries = append(req.Deliveries, delivery.DeliveryResult{Token: d.parcel.token, Outcome: o})
	}
	return worth
}

// addClaims asks for what there is room for, and says whether that is worth a call of its own.
func (m *machine) addClaims(c *call, now instant) bool {
	req, l := c.req, &m.look
	if m.stop.phase != active || l.paused {
		return false
	}
	worth := false
	req.LookExpired = now.mono >= l.returnedAt+lookEvery
	mayTake := now.mono >= l.takenAt+lookEvery
	if m.gate.closed {
		if m.gate.mine && !m.soloBusy() && l.soloAt <= now.mono {
			req.DeliveryToken, req.Retries, req.Solo = m.token(), 1, true
			c.wants, worth = true, true
		}
		return worth
	}
	// Ranges whose holder has died are older than what fills the slots, so they are looked for all the same.
	if n := m.claimSize(now); n > 0 && (l.fresh || l.expiryAt <= now.mono) && (!m.busy(now) || mayTake) {
		req.RangeToken, req.MaxMessages, req.MaxBytes = m.token(), n, m.o.MaxBatchBytes
		req.RestToken, req.PartMax = m.token(), max(n, 1)
		m.lastAsk = n
		c.wants = true
		req.TakeOver = mayTake
		req.Free = max(len(m.slots)-m.running-m.queued, 0)
		worth = l.soon && l.notSoon <= now.mono || l.expiryAt <= now.mono && mayTake
	}
	if n := m.retrySize(now, c.keyed || l.woken && m.keyed); n > 0 {
		req.DeliveryToken, req.Retries, req.Followers = m.token(), n, m.followers(n)
		req.Free = max(req.Free, n)
		c.wants = true
		worth = worth || l.notSoon <= now.mono && l.dueAt <= now.mono
	}
	req.Floor = l.floor
	return worth
}

// applied takes the reply to a call.
func (m *machine) applied(c *call, reply *delivery.WorkReply, now instant) {
	m.latest = now.mono
	m.calls.out = false
	m.calls.fails, m.calls.retryAt = 0, 0
	m.calls.lastOK, m.calls.lastErr = now, ""
	m.stop.tries = 0
	if reply.Gone {
		m.fail(&diag.Error{Code: diag.GroupNotFound, Op: "consume", Object: m.object(), Detail: "the group or its stream was deleted"}, now)
		m.forget(now)
		return
	}
	m.settleRanges(c, reply.LostRanges, now)
	m.settleDeliveries(c, reply.LostDeliveries, now)
	m.version = max(m.version, reply.ConfigVersion)
	if reply.Epoch != m.epoch {
		if m.epoch != 0 {
			m.newEpoch(now)
		}
		m.epoch = reply.Epoch
	}
	l := &m.look
	l.dueAt, l.soloAt = after(now, reply.NextDue), after(now, reply.NextSoloDue)
	m.keep = keeping{}
	if c.req.LookExpired {
		l.returnedAt = now.mono
	}
	if c.req.TakeOver {
		l.takenAt = now.mono
		l.floor = reply.Floor
		// A millisecond later, as the store's clock has a resolution.
		l.expiryAt = max(after(now, reply.NextExpiry)+int64(time.Millisecond), now.mono+lookEvery)
		for _, r := range m.spans {
			if r.stale == staleSay || r.stale == staleSaid {
				l.expiryAt = min(l.expiryAt, r.ends(now)+ownExpiry)
			}
		}
	}
	if len(c.given) > 0 {
		// What was given back can be claimed, by us too.
		l.expiryAt = min(l.expiryAt, max(now.mono, l.takenAt+lookEvery))
	}
	m.pause(reply.Paused, now)
	if reply.BrokenUp > 0 {
		m.counts.BrokenUp += int64(reply.BrokenUp)
		m.event(Event{Code: diag.BrokenUp, Kind: KindBrokenUp, Count: reply.BrokenUp}, now)
	}
	if reply.LostTo > reply.LostFrom {
		m.event(Event{Code: diag.PositionLost, Kind: KindPositionLost, Low: reply.LostFrom, High: reply.LostTo, Count: int(reply.LostTo - reply.LostFrom)}, now)
	}
	if reply.Woken > 0 {
		m.keyed = true
		m.fx.announce, m.fx.any = true, true
	}
	m.handOut(c, reply, now)
	m.calls.shun = nil
	if m.queued > 0 {
		m.wake(len(m.slots) - m.running) // a slot may have been kept for a delivery
	}
}

// ownExpiry is how much later than by our own count a lease of ours is looked at again: ours ends before the database's.
const ownExpiry = int64(250 * time.Millisecond)

func (m *machine) handOut(c *call, reply *delivery.WorkReply, now instant) {
	l := &m.look
	if reply.Range != nil {
		m.adopt(reply.Range, c.sent, now)
		if reply.Range.Again {
			l.expiryAt = min(l.expiryAt, now.mono+lookEvery) // there may be another
		}
		if full := reply.More || reply.Range.High-reply.Range.Low >= int64(c.req.MaxMessages); full && !reply.Range.Again {
			m.grow(c.req.MaxMessages)
		}
	}
	if c.req.DeliveryToken != (delivery.Token{}) && len(reply.Deliveries) == 0 {
		m.heads = 0
	}
	if len(reply.Deliveries) > 0 {
		p := m.newParcel(reply.Deliveries, c.sent)
		p.giveBack = m.stop.phase != active || m.look.paused
		m.parcels = append(m.parcels, p)
	}
	if c.req.Solo && len(reply.Deliveries) == 0 {
		m.endSolo()
	}
	switch {
	case c.req.RangeToken == (delivery.Token{}):
		// Nothing was learnt of ranges.
	case reply.Range != nil || reply.More:
		l.fresh, l.soon = true, reply.More
	default:
		l.fresh, l.soon = false, false
	}
	// What was asked for, is said to be there and did not come, such as for a limit of the group, is not asked for again at once.
	// A range that moved the group on and of which nothing is left to run is no such thing.
	noRange := c.req.RangeToken != (delivery.Token{}) && reply.Range == nil && reply.More && reply.Claimed <= l.claimed
	noDelivery := c.req.DeliveryToken != (delivery.Token{}) && len(reply.Deliveries) == 0 && l.dueAt <= now.mono
	l.claimed = max(l.claimed, reply.Claimed)
	m.counts.Superseded += reply.Passed
	l.notSoon = 0
	if noRange || noDelivery {
		l.notSoon = now.mono + max(notSoon, int64(min(reply.Limited, maxLimited)))
	}
}

const notSoon = int64(50 * time.Millisecond)

// maxLimited is the longest that a group's rate keeps an instance from asking again: a changed rate is seen then.
const maxLimited = 5 * time.Second

// adopt makes a range ours.
func (m *machine) adopt(r *delivery.Range, sent, now instant) {
	if r.Again || r.Reclaims > 0 {
		m.counts.Reclaimed++
	}
	s := m.newSpan(r, sent)
	s.shun, m.calls.shun = m.calls.shun, nil
	m.spans = append(m.spans, s)
	if m.stop.phase != active || m.look.paused {
		s.giveBack = true
	}
}

func after(now instant, d time.Duration) int64 {
	if d < 0 {
		return never
	}
	return now.mono + int64(min(d, maxWait))
}

func (m *machine) settleRanges(c *call, lost []delivery.RangeRef, now instant) {
	for _, list := range [][]*span{c.recorded, c.given} {
		for _, r := range list {
			r.sent = false
			if r.gone {
				continue
			}
			if slices.Contains(lost, r.ref) {
				m.lose(r, now)
			} else {
				m.drop(r)
			}
		}
	}
	for i := range c.partials {
		if s := &c.partials[i]; s.span.gone {
			continue
		} else if slices.Contains(lost, s.ref) {
			s.span.sent = false
			m.lose(s.span, now)
		} else {
			m.partialDone(s)
		}
	}
	for _, r := range c.stale {
		if r.stale == staleSay {
			r.stale = staleSaid
			m.recorded(r, r.allKeys()) // from now on it keeps its keys from us, too
		}
	}
}

func (m *machine) settleDeliveries(c *call, lost []int64, now instant) {
	for _, d := range c.deliveries {
		if slices.Contains(lost, d.ID) {
			m.loseDelivery(d, now)
		}
		m.acknowledge(d.parcel, 1)
	}
	for _, p := range c.released {
		m.dropParcel(p)
	}
}

// loseDelivery tells of a delivery that is not ours any longer. It may be gone because its handler's transaction ended it, so who waits for its key is woken.
func (m *machine) loseDelivery(d deliveryDone, now instant) {
	m.counts.LeaseLost++
	m.event(Event{Code: diag.LeaseLost, Kind: KindLeaseLost, Message: d.ID}, now)
	if d.Order != "" && d.Key != "" {
		m.freed = append(m.freed, d.Key)
		m.flushSoon()
	}
}

func (m *machine) acknowledge(p *parcel, n int) {
	p.open -= n
	if p.open <= 0 && !p.gone {
		m.dropParcel(p)
	}
}

// pause acts on the group's state: what is not started is given back, so that it waits in the database and not here.
func (m *machine) pause(paused bool, now instant) {
	l := &m.look
	if paused == l.paused {
		return
	}
	l.paused = paused
	if !paused {
		l.fresh, l.soon = true, true
		return
	}
	l.pollAt = now.mono + m.pausedPoll()
	m.giveAllBack()
}

// pausedPoll is how often a paused group is looked at when nothing tells of it.
func (m *machine) pausedPoll() int64 {
	return int64(min(max(m.o.PollInterval, time.Second), time.Minute))
}

// giveAllBack ends the starting of everything that is held.
func (m *machine) giveAllBack() {
	for _, r := range m.spans {
		if r.stale == notStale && !r.gone {
			m.quit(r)
		}
	}
	for _, p := range m.parcels {
		p.giveBack = true
	}
	m.requeue()
	m.requeueRetries()
}

// newEpoch: the group was moved. Its claims are gone with their tokens, while deliveries may have stayed; those not started are handed back.
func (m *machine) newEpoch(now instant) {
	for _, r := range slices.Clone(m.spans) {
		m.lose(r, now)
	}
	for _, p := range m.parcels {
		p.giveBack = true
	}
	m.requeueRetries()
	m.look.floor, m.look.claimed = 0, 0
	m.look.fresh, m.look.soon = true, true
	m.look.expiryAt = min(m.look.expiryAt, now.mono+lookEvery)
}

// forget lets go of everything without a word: there is nobody to tell.
func (m *machine) forget(now instant) {
	for _, r := range slices.Clone(m.spans) {
		m.drop(r)
	}
	for _, p := range slices.Clone(m.parcels) {
		m.dropParcel(p)
	}
	m.results, m.freed = nil, nil
	m.calls.inDoubt = nil
}

func (m *machine) object() string {
	return "group \"" + m.names.group + "\" of stream \"" + m.names.stream + "\""
}
