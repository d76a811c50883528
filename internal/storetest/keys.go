package storetest

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

// keyWork is what one call does with exclusive and ordered keys. A key stands for its hash.
type keyWork struct {
	g     *group
	now   time.Time
	order *delivery.KeyOrder // the group's own; nil: each message's
	park  bool
	holds []delivery.Token // of claims that hold no key against the caller
	freed []string         // let go of by this call: their next is to be woken
	woken map[int64]bool   // deliveries that this call woke and has not handed out
}

// keyWork looks at the group's config.
func (g *group) keyWork(now time.Time) *keyWork {
	k := &keyWork{g: g, now: now, woken: make(map[int64]bool)}
	var config struct {
		Order *delivery.KeyOrder `json:"key_order"`
		Park  bool               `json:"park_key_on_dead_letter"`
	}
	if json.Unmarshal(g.config, &config) == nil {
		k.order, k.park = config.Order, config.Park
	}
	return k
}

// orderOf is the order of a message: Exclusive, Ordered, or "".
func orderOf(group *delivery.KeyOrder, msg *delivery.Message) delivery.KeyOrder {
	if msg.Key == "" || msg.Redacted {
		return ""
	}
	if group != nil {
		return inLine(*group)
	}
	var options struct {
		Order delivery.KeyOrder `json:"key_order"`
	}
	if json.Unmarshal(msg.Options, &options) != nil {
		return ""
	}
	return inLine(options.Order)
}

func inLine(o delivery.KeyOrder) delivery.KeyOrder {
	if o.InLine() {
		return o
	}
	return ""
}

// free notes keys that were let go of; "" is none.
func (k *keyWork) free(keys ...string) {
	for _, key := range keys {
		if key != "" {
			k.freed = append(k.freed, key)
		}
	}
}

// claimed says whether an open claim below a low holds the key, those with a token in holds excepted.
func (k *keyWork) claimed(key string, below int64, holds []delivery.Token) bool {
	return slices.ContainsFunc(k.g.claims, func(c *claim) bool {
		return c.low < below && slices.Contains(c.keys, key) && !slices.Contains(holds, c.token)
	})
}

// any says whether the group has such a delivery of the key.
func (k *keyWork) any(key string, is func(*row) bool) bool {
	for _, d := range k.g.deliveries {
		if d.key == key && is(d) {
			return true
		}
	}
	return false
}

func (k *keyWork) running(key string) bool {
	return k.any(key, func(d *row) bool { return d.running })
}

// blocked says whether an ordered message must wait for one with a lower id: unresolved, or dead in a group that parks keys.
func (k *keyWork) blocked(key string, id int64) bool {
	return k.any(key, func(d *row) bool { return d.ordered && d.id < id }) || k.parked(key) < id
}

// parked is the lowest dead letter that parks the key; a number beyond all ids: there is none.
func (k *keyWork) parked(key string) int64 {
	if k.park {
		for _, d := range k.g.dead {
			if d.parks == key {
				return d.ID
			}
		}
	}
	return math.MaxInt64
}

// keyed is a message of a range that holds its key.
type keyed struct {
	id      int64
	key     string
	ordered bool
	waits   bool
}

// look finds the exclusive and ordered messages of a range that are not finished, and how many are left to run if those that must wait do.
func (k *keyWork) look(s *stream, low, high int64, order *delivery.KeyOrder, holds []delivery.Token) (list []keyed, left int64) {
	at, _ := s.find(low + 1)
	for ; at < len(s.messages) && s.messages[at].ID <= high; at++ {
		msg := &s.messages[at]
		if msg.Redacted || k.g.done[msg.ID] {
			continue
		}
		left++
		o := orderOf(order, msg)
		if o == "" {
			continue
		}
		m := keyed{id: msg.ID, key: msg.Key, ordered: o == delivery.Ordered}
		m.waits = k.claimed(m.key, low, holds) || k.running(m.key) || m.ordered && k.blocked(m.key, m.id)
		if m.waits {
			left--
		}
		list = append(list, m)
	}
	return list, left
}

// take looks at the keys of a range that is claimed: what must wait becomes a waiting delivery, the keys of the others are held.
func (k *keyWork) take(s *stream, c *claim) (waiting []int64) {
	list, left := k.look(s, c.low, c.high, c.keyOrder, k.holds)
	c.keys = nil
	if len(list) == 0 {
		if c.again {
			c.messages = left
		}
		return nil
	}
	c.messages = left
	for _, m := range list {
		switch {
		case m.waits:
			waiting = append(waiting, m.id)
			k.g.put(&row{id: m.id, waiting: true, due: k.now, key: m.key, ordered: m.ordered})
		case !slices.Contains(c.keys, m.key):
			c.keys = append(c.keys, m.key)
		}
	}
	if c.again || left > 0 {
		for _, id := range waiting {
			k.g.done[id] = true
		}
	}
	return waiting
}

// alone turns the keyed messages of a range that is broken up into deliveries that run alone: of each key the first that may run is due, the others wait. It says how many.
func (k *keyWork) alone(s *stream, c *claim) int {
	list, _ := k.look(s, c.low, c.high, c.keyOrder, nil)
	n := 0
	first := make(map[string]bool)
	for _, m := range list {
		waits := m.waits || first[m.key]
		first[m.key] = first[m.key] || !m.waits
		if k.g.put(&row{id: m.id, waiting: waits, due: k.now, solo: true, err: brokenUp, key: m.key, ordered: m.ordered}) {
			n++
		}
	}
	k.free(c.keys...)
	return n
}

// wake makes due, of each key that was let go of, that nobody holds and of which nothing is due already, the lowest waiting delivery that may run.
func (k *keyWork) wake() {
	for _, key := range k.freed {
		if k.claimed(key, math.MaxInt64, nil) || k.any(key, func(d *row) bool { return d.running || !d.waiting && !d.due.After(k.now) }) {
			continue
		}
		for _, id := range sortedKeys(k.g.deliveries) {
			d := k.g.deliveries[id]
			if d.key == key && d.waiting && !(d.ordered && k.blocked(key, id)) {
				d.waiting, d.due = false, k.now
				k.woken[id] = true
				break
			}
		}
	}
	k.freed = nil
}

// lineUp chooses among due deliveries with a key: those whose key is held or that are blocked go back to waiting, of each other key the lowest is a head, and behind the heads at most so many followers go along.
func (k *keyWork) lineUp(due []*row, followers int) []*row {
	slices.SortFunc(due, byID)
	heads := make(map[string]*row)
	for _, d := range due {
		if heads[d.key] == nil && !k.claimed(d.key, math.MaxInt64, nil) && !k.running(d.key) && !(d.ordered && k.blocked(d.key, d.id)) {
			heads[d.key] = d
		}
	}
	var chosen []*row
	for _, d := range due {
		switch {
		case heads[d.key] == d:
			chosen = append(chosen, d)
		default:
			d.waiting = true
			if heads[d.key] == nil {
				k.free(d.key)
			}
		}
	}
	// Of a key that has more, more go along: the longest line decides when all are done. So many of one key are looked at.
	each := min(followers, max(16, 4*followers/max(len(chosen), 1)))
	type place struct {
		part float64 // of its line
		head int64
	}
	places := make(map[*row]place)
	var behind []*row
	for _, head := range chosen {
		line := k.behind(head)
		line = line[:min(len(line), max(each, 0))]
		for i, d := range line {
			places[d] = place{float64(i+1) / float64(len(line)), head.id}
			behind = append(behind, d)
		}
	}
	slices.SortFunc(behind, func(a, b *row) int {
		return cmp.Or(cmp.Compare(places[a].part, places[b].part), cmp.Compare(places[a].head, places[b].head))
	})
	return append(chosen, behind[:min(len(behind), max(followers, 0))]...)
}

// behind are the deliveries that may follow a head, in order of id: an ordered one only if all that could block it go before it.
func (k *keyWork) behind(head *row) (list []*row) {
	cut := false // an ordered one that does not go along blocks those behind it
	for _, id := range sortedKeys(k.g.deliveries) {
		d := k.g.deliveries[id]
		if d.key != head.key || d == head {
			continue
		}
		follows := d.waiting && !d.solo && d.id > head.id
		switch {
		case follows && !d.ordered:
			list = append(list, d)
		case follows && !cut && k.parked(d.key) > d.id:
			list = append(list, d)
		case d.ordered:
			cut = true
		}
	}
	return list
}

func byID(a, b *row) int { return cmp.Compare(a.id, b.id) }
