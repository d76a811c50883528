package consume

import (
	"slices"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// actionKind is what the loop does next.
type actionKind int

const (
	doWait    actionKind = iota // until then, or until something happens
	doWork                      // send the call
	doSettle                    // ask for the tokens of a call whose outcome is unknown
	doVerify                    // ask for the tokens of what is suspect
	doRead                      // read a range
	doReadIDs                   // read deliveries
	doBeat
	doAskGate
	doEnd
)

type action struct {
	kind   actionKind
	call   *call
	tokens []delivery.Token
	span   *span
	parcel *parcel
	until  int64
}

// next says what the loop is to do.
func (m *machine) next(now instant) action {
	m.latest = now.mono
	m.sweep(now)
	m.trim(now)
	if m.ended() {
		return action{kind: doEnd}
	}
	if m.calls.retryAt <= now.mono {
		if a, ok := m.talk(now); ok {
			return a
		}
	}
	if m.gate.queued && !m.wantsGate(now) && !m.soloBusy() {
		m.endSolo()
	}
	if m.keep.until != 0 && m.keep.until <= now.mono && !m.keep.over {
		m.keep.over = true
		m.wake(len(m.slots) - m.running)
	}
	return action{kind: doWait, until: m.wait(now)}
}

// talk finds the most urgent thing to say to the store.
func (m *machine) talk(now instant) (action, bool) {
	c := &m.calls
	if c.inDoubt != nil {
		return action{kind: doSettle, call: c.inDoubt, tokens: c.inDoubt.tokens()}, true
	}
	if tokens := m.suspects(); len(tokens) > 0 {
		return action{kind: doVerify, tokens: tokens}, true
	}
	for _, r := range m.spans {
		if !r.read && !r.giveBack && !r.sent && r.readAt <= now.mono {
			return action{kind: doRead, span: r}, true
		}
	}
	for _, p := range m.parcels {
		if !p.read && !p.giveBack && p.readAt <= now.mono {
			return action{kind: doReadIDs, parcel: p}, true
		}
	}
	if m.wantsGate(now) && !m.gate.asked && !m.gate.mine && m.gate.askAt <= now.mono {
		return action{kind: doAskGate}, true
	}
	if call := m.buildWork(now); call != nil {
		return action{kind: doWork, call: call}, true
	}
	if m.stop.phase == active && c.beatAt <= now.mono {
		return action{kind: doBeat}, true
	}
	return action{}, false
}

// wantsGate says that a delivery that must run alone is due.
func (m *machine) wantsGate(now instant) bool {
	return m.stop.phase == active && !m.look.paused && m.look.soloAt <= now.mono && m.calls.retryAt <= now.mono && !m.soloBusy()
}

// wait says when time alone gives the loop something to do. What is due already waits for something else, which will kick the loop.
func (m *machine) wait(now instant) int64 {
	until := never
	at := func(t int64) {
		if t > now.mono {
			until = min(until, t)
		}
	}
	c, l := &m.calls, &m.look
	at(c.retryAt)
	if m.stop.phase == active {
		at(c.beatAt)
		at(l.dueAt)
		at(l.soloAt)
		at(m.gate.askAt)
		at(l.notSoon)
		at(m.keep.until)
		at(max(l.expiryAt, l.takenAt+lookEvery))
		if l.woken {
			at(l.workedAt + m.statusGap())
		}
		if l.paused {
			at(l.pollAt)
		}
		if m.running > 0 && !l.paused && (l.fresh || l.dueAt <= now.mono) {
			// What there is room for changes with the age of what runs.
			at(now.mono + lookEvery/2)
		}
	}
	at(c.flushAt)
	at(m.trimAt(now))
	for _, r := range m.spans {
		at(r.readAt)
		at(r.partialAt)
		at(r.ends(now))
		if r.left > 0 && r.waiting == 0 {
			at(r.lastStart + linger)
		}
	}
	for _, p := range m.parcels {
		at(p.readAt)
	}
	return until
}

// sweep ends what time has ended.
func (m *machine) sweep(now instant) {
	for i := 0; i < len(m.spans); i++ {
		r := m.spans[i]
		if r.sent || r.suspect || r.remaining(now) > 0 || r.parted(now) {
			continue
		}
		switch {
		case r.stale != notStale:
			if r.stale == staleFree || r.running > 0 {
				continue
			}
			m.drop(r)
			i--
		case r.waiting+r.lined > 0:
			m.leave(r, now, r.remaining(now), m.needed(int64(m.plain.Timeout)))
		case !r.read:
			r.giveBack = true
		}
	}
	for _, p := range m.parcels {
		if p.remaining(now) <= 0 && !p.parted(now) && (p.waiting+p.lined > 0 || !p.read) && !p.giveBack {
			p.giveBack = true
			m.requeueRetries()
			if m.solo == p {
				m.endSolo()
			}
		}
	}
}

// readFailed says when a range is read again: not after its lease has become too short for anything to start; then it is given back.
func (m *machine) readFailed(r *span, now instant) {
	r.readTries++
	wait := m.backoff(r.readTries)
	r.readAt = now.mono + wait
	if r.remaining(now)-wait < m.needed(int64(min(m.plain.Timeout, timeoutCap(r.ceiling)))) {
		r.giveBack = true
	}
}

func (m *machine) parcelReadFailed(p *parcel, now instant) {
	p.readTries++
	wait := m.backoff(p.readTries)
	p.readAt = now.mono + wait
	if p.solo || p.remaining(now)-wait < m.needed(int64(m.plain.Timeout)) {
		p.giveBack = true // a solo one at once: the gate is closed for it
		if p.solo {
			m.endSolo()
		}
	}
}

// Backoff after a failure of the store.
const (
	firstBackoff = int64(50 * time.Millisecond)
	lastBackoff  = int64(5 * time.Second)
	stopBackoff  = int64(250 * time.Millisecond)
)

func (m *machine) backoff(fails int) int64 {
	d := min(firstBackoff<<min(max(fails-1, 0), 10), lastBackoff)
	if m.stop.phase != active {
		d = min(d, stopBackoff)
	}
	return d/2 + int64(m.random()*float64(d)/2)
}

// tripped notes a failure of the store that will pass.
func (m *machine) tripped(err error, now instant) {
	c := &m.calls
	c.fails++
	c.retryAt = now.mono + m.backoff(c.fails)
	c.lastErr = diag.CodeOf(err)
	if m.stop.phase != active && m.running == 0 {
		m.stop.tries++
	}
	m.event(Event{Code: diag.ConsumeRetrying, Kind: KindRetrying, Count: c.fails, Err: err}, now)
}

// failed takes the failure of a call. Unless its outcome is unknown, nothing of it has taken effect and all of it is to be said again.
func (m *machine) failed(c *call, err error, unknown bool, now instant) {
	m.calls.out = false
	m.tripped(err, now)
	if unknown {
		if c.req.Solo {
			m.endSolo() // the gate is not kept closed while the store is away
		}
		m.calls.inDoubt = c
		return
	}
	m.calls.shun = nil
	m.putBack(c, now)
}

func (m *machine) putBack(c *call, now instant) {
	for _, list := range [][]*span{c.recorded, c.given} {
		for _, r := range list {
			r.sent = false
		}
	}
	for i := range c.partials {
		if r := c.partials[i].span; !r.gone {
			r.sent, r.unsaid, r.partialAt = false, now.mono-partialAtLast, now.mono
		}
	}
	if len(c.deliveries)+len(c.freed) > 0 {
		m.results = append(c.deliveries, m.results...)
		m.freed = append(c.freed, m.freed...)
		m.calls.flushAt = now.mono
	}
	if c.wants {
		m.look.fresh, m.look.soon = true, true
	}
	if c.req.Solo {
		m.endSolo()
	}
}

// tokens are those that show whether a call took effect.
func (c *call) tokens() []delivery.Token {
	var list []delivery.Token
	for _, t := range []delivery.Token{c.req.RangeToken, c.req.DeliveryToken} {
		if t != (delivery.Token{}) {
			list = append(list, t)
		}
	}
	for _, spans := range [][]*span{c.recorded, c.given, c.stale} {
		for _, r := range spans {
			list = append(list, r.ref.Token)
		}
	}
	for _, p := range c.partials {
		list = append(list, p.ref.Token)
	}
	for _, d := range c.deliveries {
		if !slices.Contains(list, d.parcel.token) {
			list = append(list, d.parcel.token)
		}
	}
	for _, p := range c.released {
		if !slices.Contains(list, p.token) {
			list = append(list, p.token)
		}
	}
	return list
}

// settled takes what is held under the tokens of a call whose outcome was unknown. Where it stays in doubt, a lease counts as lost.
func (m *machine) settled(c *call, held *delivery.Held, sent, now instant) {
	m.calls.inDoubt = nil
	m.calls.fails, m.calls.retryAt = 0, 0
	m.latest = now.mono
	again := &call{req: &delivery.WorkRequest{}, wants: c.wants, freed: c.freed} // to wake twice does no harm
	for _, r := range c.recorded {
		if _, ok := heldRange(held, r.ref.Token); ok {
			again.recorded = append(again.recorded, r)
		} else if !r.gone {
			m.lose(r, now)
		}
	}
	for _, r := range c.given {
		// What was surrendered may still bear our token, with a raised bound and no lease.
		h, ok := heldRange(held, r.ref.Token)
		switch {
		case ok && h.Low == r.ref.Low && h.Lease > 0:
			again.given = append(again.given, r)
		case r.gone:
		case ok:
			m.drop(r)
		default:
			m.lose(r, now)
		}
	}
	for _, p := range c.partials {
		// Said again: the store drops what it has taken already. It may have raised the bound.
		if h, ok := heldRange(held, p.ref.Token); ok {
			p.span.ref.Low = max(p.span.ref.Low, h.Low)
			again.partials = append(again.partials, p)
		} else if !p.span.gone {
			p.span.sent = false
			m.lose(p.span, now)
		}
	}
	for _, r := range c.stale {
		h, ok := heldRange(held, r.ref.Token)
		switch {
		case r.gone:
		case !ok:
			m.lose(r, now)
		case h.Stale > r.staleBefore && r.stale == staleSay:
			r.stale = staleSaid
			m.recorded(r, r.allKeys())
		}
	}
	for _, d := range c.deliveries {
		if heldDelivery(held, d.parcel.token, d.ID) {
			again.deliveries = append(again.deliveries, d)
			continue
		}
		m.loseDelivery(d, now)
		m.acknowledge(d.parcel, 1)
	}
	for _, p := range c.released {
		if !slices.ContainsFunc(p.items, func(it item) bool { return it.state < msgRunning && heldDelivery(held, p.token, it.ID) }) && !p.gone {
			m.dropParcel(p)
		}
	}
	if r, ok := heldRange(held, c.req.RangeToken); ok {
		m.adopt(&r, sent, now)
	}
	var claimed []delivery.Claimed
	for _, d := range held.Deliveries {
		if d.Token == c.req.DeliveryToken {
			claimed = append(claimed, d)
		}
	}
	if len(claimed) > 0 {
		p := m.newParcel(claimed, sent)
		p.giveBack = m.stop.phase != active || m.look.paused || c.req.Solo
		m.parcels = append(m.parcels, p)
	}
	m.calls.shun = nil
	m.putBack(again, now)
}

func heldRange(held *delivery.Held, token delivery.Token) (delivery.Range, bool) {
	for _, r := range held.Ranges {
		if r.Token == token {
			return r, true
		}
	}
	return delivery.Range{}, false
}

func heldDelivery(held *delivery.Held, token delivery.Token, id int64) bool {
	return slices.ContainsFunc(held.Deliveries, func(d delivery.Claimed) bool { return d.Token == token && d.ID == id })
}

// suspects are the tokens whose leases the database must vouch for.
func (m *machine) suspects() []delivery.Token {
	var list []delivery.Token
	for _, r := range m.spans {
		if r.suspect {
			list = append(list, r.ref.Token)
		}
	}
	for _, p := range m.parcels {
		if p.suspect {
			list = append(list, p.token)
		}
	}
	return list
}

// verified takes what the database says of what was suspect: the lease is counted anew from before it was asked.
func (m *machine) verified(held *delivery.Held, sent, now instant) {
	m.calls.fails, m.calls.retryAt = 0, 0
	for _, r := range slices.Clone(m.spans) {
		if !r.suspect {
			continue
		}
		r.suspect = false
		if h, ok := heldRange(held, r.ref.Token); ok {
			r.lease = lease{taken: sent, length: int64(h.Lease)}
		} else {
			m.lose(r, now)
		}
	}
	for _, p := range slices.Clone(m.parcels) {
		if !p.suspect {
			continue
		}
		p.suspect = false
		p.lease = lease{taken: sent, length: never}
		lost := 0
		for i := range p.items {
			it := &p.items[i]
			at := slices.IndexFunc(held.Deliveries, func(d delivery.Claimed) bool { return d.Token == p.token && d.ID == it.ID })
			if at >= 0 {
				p.length = min(p.length, int64(held.Deliveries[at].Lease))
			} else if it.state < msgRunning {
				m.unline(p, i)
				it.state = msgFinished
				lost++
			}
		}
		if lost > 0 {
			p.giveBack = p.giveBack || p.lined > 0 // what it lost may have been before what is left
			m.counts.LeaseLost += int64(lost)
			m.event(Event{Code: diag.LeaseLost, Kind: KindLeaseLost, Count: lost}, now)
			m.acknowledge(p, lost)
		}
	}
	m.requeue()
	m.requeueRetries()
	m.wake(len(m.slots) - m.running)
}

// halt begins the stop: from now on nothing starts.
func (m *machine) halt(now instant) {
	if m.stop.phase != active {
		return
	}
	m.stop.phase = stopping
	m.stop.deadline = now.mono + int64(m.o.stopTimeout(m.limits))
	if m.running == 0 {
		m.stop.drained = max(now.mono, 1)
	}
	for _, r := range m.spans {
		if r.stale == staleSay || r.stale == staleSaid {
			r.stale = staleFree // nothing waits for its expiry any more
			m.quit(r)
		}
	}
	m.giveAllBack()
	m.fx.watch = true
	m.kick()
}

// fail stops for a reason that waiting cannot mend.
func (m *machine) fail(err error, now instant) {
	if m.stop.fatal == nil {
		m.stop.fatal = err
	}
	m.calls.lastErr = diag.CodeOf(err)
	m.halt(now)
}

// maxStopTries is how often the store is tried once all handlers have ended. What cannot be given back then expires by itself.
const maxStopTries = 4

// ended says that nothing is left to do.
func (m *machine) ended() bool {
	if m.stop.phase == active || m.running > 0 || m.calls.out {
		return false
	}
	if m.stop.tries >= maxStopTries || m.stop.fatal != nil && m.stop.tries > 0 {
		return true
	}
	return len(m.spans) == 0 && len(m.parcels) == 0 && len(m.results)+len(m.freed) == 0 && m.calls.inDoubt == nil
}
