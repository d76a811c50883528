package storetest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

// SameHistories plays random histories of groups with keys on two stores: the same calls must get the same replies, and leave the same in the tables. Leases end and retries fall due when the history says so.
func SameHistories(t *testing.T, a, b Harness, seed uint64, histories, steps int) {
	p := &player{stores: [2]*site{newSite(t, a), newSite(t, b)}, instances: []uuid.UUID{uuid.New(), uuid.New()}}
	for n := range histories {
		p.rand = rand.New(rand.NewPCG(seed, uint64(n)))
		if !p.history(t, steps) {
			t.Fatalf("seed %d, history %d:\n%s", seed, n, strings.Join(p.log, "\n"))
		}
	}
}

// player makes up one history and knows what its callers would know.
type player struct {
	stores     [2]*site
	rand       *rand.Rand
	instances  []uuid.UUID
	messages   []string // by id-1: the words of keyed
	from       int64    // the group begins behind it
	ranges     []*delivery.Range
	deliveries []delivery.Claimed
	log        []string
}

func (p *player) one(n int) bool { return p.rand.IntN(n) == 0 }

func (p *player) both(f func(s *site)) {
	for _, s := range p.stores {
		f(s)
	}
}

func (p *player) history(t *testing.T, steps int) bool {
	p.ranges, p.deliveries, p.log, p.from = nil, nil, nil, int64(len(p.messages))
	p.both(func(s *site) {
		s.group = s.h.NewGroup(t, s.stream, ceiling, 1)
		s.h.Seek(t, s.group, p.from)
	})
	for n := range steps {
		if !p.step(t) {
			return false
		}
		if (n%8 == 7 || n == steps-1) && !p.sameTables(t) {
			return false
		}
	}
	return true
}

func (p *player) say(format string, args ...any) {
	p.log = append(p.log, fmt.Sprintf(format, args...))
}

func (p *player) step(t *testing.T) bool {
	if int64(len(p.messages)) == p.from {
		p.append(t)
		return true
	}
	id := p.from + 1 + p.rand.Int64N(int64(len(p.messages))-p.from)
	switch p.rand.IntN(26) {
	case 0, 1, 2:
		p.append(t)
	case 3:
		p.say("expire")
		p.both(func(s *site) { s.h.ExpireAll(t, s.group) })
	case 4:
		p.say("due")
		p.both(func(s *site) { s.h.DueAll(t, s.group) })
	case 5:
		configs := []string{`{"v":1}`, `{"v":1}`, `{"v":1,"key_order":"ordered"}`, `{"v":1,"key_order":"parallel"}`, parking, `{"v":1,"max_running":4}`}
		config := configs[p.rand.IntN(len(configs))]
		p.say("config %s", config)
		p.both(func(s *site) { s.h.SetConfig(t, s.group, []byte(config), ceiling) })
	case 6:
		p.say("redrive %d %d", id, id+1)
		p.both(func(s *site) { s.h.Redrive(t, s.group, id, id+1) })
	case 7:
		p.say("discard %d", id)
		p.both(func(s *site) { s.h.Discard(t, s.group, id) })
	case 8:
		p.say("discard delivery %d", id)
		p.both(func(s *site) { s.h.DiscardDeliveries(t, s.group, id) })
	case 9:
		if len(p.deliveries) > 0 {
			c := p.deliveries[p.rand.IntN(len(p.deliveries))]
			p.say("finish %d", c.ID)
			p.both(func(s *site) { s.h.FinishDelivery(t, s.group, c.ID) })
		}
	case 10:
		p.say("sweep")
		var woken [2]int
		for i, s := range p.stores {
			woken[i] = s.h.SweepKeys(t, s.group)
		}
		return p.same(t, "woken by a sweep", woken[0], woken[1])
	default:
		return p.work(t)
	}
	return true
}

func (p *player) append(t *testing.T) {
	var words []string
	for range 1 + p.rand.IntN(5) {
		word := []string{"a", "b", "c"}[p.rand.IntN(3)] + []string{".o", ".o", ".x", ".x", ""}[p.rand.IntN(5)]
		if p.one(8) {
			word = "-"
		}
		words = append(words, word)
	}
	p.say("append from %d: %v", len(p.messages)+1, words)
	p.messages = append(p.messages, words...)
	p.both(func(s *site) { s.keyed(t, strings.Join(words, " ")) })
}

// outcome makes one up for a message under an order.
func (p *player) outcome(id int64, group delivery.KeyOrder) delivery.Outcome {
	key, order, _ := strings.Cut(p.messages[id-1], ".")
	o := delivery.Outcome{ID: id, Kind: []delivery.Kind{delivery.Failed, delivery.Delayed, delivery.Dead, delivery.Waits}[p.rand.IntN(4)]}
	if key != "-" {
		o.Key, o.Order = key, map[string]delivery.KeyOrder{"o": delivery.Ordered, "x": delivery.Exclusive}[order]
		if group != "" {
			o.Order = group
		}
	}
	switch o.Kind {
	case delivery.Failed:
		o.Attempt, o.Error = 1, "no"
	case delivery.Dead:
		o.Attempt, o.Error, o.Reason, o.Parks = 1, "never", delivery.Exhausted, o.Order == delivery.Ordered && p.one(2)
	case delivery.Waits:
		if o.Order == "" {
			o.Kind = delivery.Delayed
		}
	}
	if o.Kind != delivery.Waits && p.one(2) {
		o.DueIn = time.Hour
	}
	return o
}

// outcomes makes up results of a third of a range's messages, up to one.
func (p *player) outcomes(r *delivery.Range, last int64) (list []delivery.Outcome) {
	for id := r.Low + 1; id <= last; id++ {
		if p.one(3) {
			list = append(list, p.outcome(id, r.KeyOrder))
		}
	}
	return list
}

func (p *player) work(t *testing.T) bool {
	req := delivery.WorkRequest{Instance: p.instances[p.rand.IntN(2)], ConfigVersion: 1000, Free: 10, MaxBytes: 1 << 20, MaxReclaims: 1, Margins: margins}
	p.settleRanges(&req)
	p.settleDeliveries(&req)
	if p.one(6) {
		req.Freed = []string{"a", "b"}
	}
	for _, r := range p.ranges {
		if p.one(2) {
			req.Holds = append(req.Holds, r.Token)
		}
	}
	if !p.one(3) {
		req.RangeToken, req.RestToken, req.MaxMessages, req.PartMax, req.TakeOver = uuid.New(), uuid.New(), 1+p.rand.IntN(5), 1+p.rand.IntN(3), p.one(2)
	}
	if !p.one(3) {
		req.DeliveryToken, req.Retries, req.Followers, req.Solo = uuid.New(), 1+p.rand.IntN(3), p.rand.IntN(4), p.one(4)
	}
	req.LookExpired = p.one(2)
	p.say("work %+v", req)
	var replies [2]*delivery.WorkReply
	for i, s := range p.stores {
		req.Group, req.Stream = s.group, s.stream
		reply, err := s.h.Store().Work(t.Context(), &req)
		if err != nil {
			t.Errorf("work: %v", err)
			return false
		}
		replies[i] = reply
	}
	p.learn(replies[0])
	return p.same(t, "replies", comparable(replies[0]), comparable(replies[1]))
}

// settleRanges records, gives back or leaves some of the ranges, each in one way.
func (p *player) settleRanges(req *delivery.WorkRequest) {
	p.ranges = slices.DeleteFunc(p.ranges, func(r *delivery.Range) bool {
		switch p.rand.IntN(7) {
		case 0, 1:
			req.Results = append(req.Results, result(r, p.outcomes(r, r.High)...))
			return !p.one(4) // sometimes it is sent again
		case 2, 3:
			part := delivery.Partial{RangeRef: ref(r), Prefix: r.Low + p.rand.Int64N(r.High-r.Low), Keys: []string{"a", "b"}[:p.rand.IntN(3)]}
			part.Outcomes = p.outcomes(r, part.Prefix)
			for id := part.Prefix + 1; id <= r.High; id++ {
				if p.one(4) {
					part.Done = append(part.Done, id)
				}
			}
			req.Partials = append(req.Partials, part)
		case 4:
			prefix := r.Low + p.rand.Int64N(r.High-r.Low)
			req.Surrenders = append(req.Surrenders, delivery.Surrender{RangeRef: ref(r), Prefix: prefix, Outcomes: p.outcomes(r, prefix)})
			return true
		case 5:
			req.Stale = append(req.Stale, ref(r))
		}
		return false
	})
}

func (p *player) settleDeliveries(req *delivery.WorkRequest) {
	p.deliveries = slices.DeleteFunc(p.deliveries, func(c delivery.Claimed) bool {
		switch p.rand.IntN(5) {
		case 0, 1:
			o := p.outcome(c.ID, c.Order)
			if p.one(2) {
				o = delivery.Outcome{Kind: delivery.Succeeded}
			}
			o.Parks = o.Parks && c.Order == delivery.Ordered
			req.Deliveries = append(req.Deliveries, done(c, o))
			return true
		case 2:
			req.Release = append(req.Release, delivery.DeliveryRef{ID: c.ID, Token: c.Token})
			return true
		}
		return false
	})
}

func (p *player) learn(reply *delivery.WorkReply) {
	if reply.Range != nil {
		p.ranges = append(p.ranges, reply.Range)
		slices.SortFunc(p.ranges, func(a, b *delivery.Range) int { return cmp.Compare(a.Low, b.Low) })
	}
	p.deliveries = append(p.deliveries, reply.Deliveries...)
	slices.SortStableFunc(p.deliveries, func(a, b delivery.Claimed) int { return cmp.Compare(a.ID, b.ID) })
}

// comparable is what two stores must agree on: times but for whether there is one and whether it has come. More may be said in vain, and the frontier by one of them only.
func comparable(r *delivery.WorkReply) delivery.WorkReply {
	c := *r
	for _, d := range []*time.Duration{&c.NextDue, &c.NextSoloDue, &c.NextExpiry} {
		*d = time.Duration(cmp.Compare(*d, 0))
	}
	c.More, c.Claimed = false, 0
	return c
}

func (p *player) sameTables(t *testing.T) bool {
	var states [2]State
	for i, s := range p.stores {
		states[i] = s.state(t)
		for n := range states[i].Claims {
			states[i].Claims[n].Token = delivery.Token{}
		}
	}
	return p.same(t, "tables", states[0], states[1])
}

func (p *player) same(t *testing.T, what string, a, b any) bool {
	diff := gocmp.Diff(a, b, cmpopts.EquateEmpty())
	if diff != "" {
		t.Errorf("%s differ (-first +second):\n%s", what, diff)
	}
	return diff == ""
}
