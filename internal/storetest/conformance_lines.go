package storetest

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

func partial(t *testing.T, s *site) {
	s.keyed(t, "a.o b.o c.x - d.o a.o b.o c.x d.o")
	r := s.mustClaim(t, 5, 0, 5)
	s.other(t, 4)
	s.rows(t, "6wo 7wo 8wx 9wo")
	reply := s.work(t, delivery.WorkRequest{Partials: []delivery.Partial{{
		RangeRef: ref(r), Prefix: 1, Done: []int64{3, 5}, Keys: []string{"a", "c", "d"}, Outcomes: []delivery.Outcome{inKey(failed(5, 1, time.Hour), "d", delivery.Ordered)},
	}}})
	if len(reply.LostRanges) > 0 || reply.Woken != 2 {
		t.Errorf("%+v", reply)
	}
	s.claims(t, "1-5:1")
	s.rows(t, "5po 6po 7wo 8px 9wo")
	s.expect(t, "marks", s.state(t).Done, []int64{3, 5})
	// The woken can be handed out by the call that frees them.
	reply = s.work(t, delivery.WorkRequest{
		Partials:      []delivery.Partial{{RangeRef: delivery.RangeRef{Low: 1, Token: r.Token}, Prefix: 3, Done: []int64{5}, Keys: []string{"b"}}},
		DeliveryToken: uuid.New(), Retries: 9,
	})
	s.expect(t, "handed out", ids(reply.Deliveries), []int64{6, 7, 8})
	s.expect(t, "woken", reply.Woken, 0)
	s.claims(t, "3-5:0")
	s.expect(t, "marks", s.state(t).Done, []int64{5})
	// What lost its keys, and is taken over, holds none.
	s.h.ExpireAll(t, s.group)
	again := s.over(t, 9).Range
	if again == nil || again.Low != 3 || again.Keyed {
		t.Errorf("%+v", again)
	}
	s.expect(t, "done", again.Done, []int64{5})
	s.record(t, result(again))
	s.expect(t, "marks", len(s.state(t).Done), 0)
}

func partialTwice(t *testing.T, s *site) {
	s.keyed(t, "a.o b.o c.o - d.o")
	r := s.mustClaim(t, 5, 0, 5)
	part := delivery.Partial{
		RangeRef: ref(r), Prefix: 2, Done: []int64{4}, Keys: []string{"a", "b"},
		Outcomes: []delivery.Outcome{inKey(failed(1, 1, 0), "a", delivery.Ordered), failed(4, 1, 0), inKey(dead(2), "b", delivery.Ordered)},
	}
	s.work(t, delivery.WorkRequest{Partials: []delivery.Partial{part}})
	s.finish(t, s.hand(t, 9).Deliveries...)
	before := s.state(t)
	if reply := s.work(t, delivery.WorkRequest{Partials: []delivery.Partial{part}}); len(reply.LostRanges) > 0 || reply.Woken > 0 {
		t.Errorf("%+v", reply)
	}
	s.expect(t, "the second time changes nothing", s.state(t), before)
	s.claims(t, "2-5:2")
	// An older one that comes late lowers nothing and leaves no mark below.
	late := delivery.Partial{RangeRef: ref(r), Prefix: 1, Done: []int64{2}, Outcomes: []delivery.Outcome{inKey(failed(2, 1, 0), "b", delivery.Ordered)}}
	if reply := s.work(t, delivery.WorkRequest{Partials: []delivery.Partial{late}}); len(reply.LostRanges) > 0 {
		t.Errorf("%+v", reply)
	}
	s.expect(t, "a late one changes nothing", s.state(t), before)
	// Not its token, not its place, nothing left.
	for _, wrong := range []delivery.Partial{
		{RangeRef: delivery.RangeRef{Low: 2, Token: uuid.New()}, Prefix: 3}, {RangeRef: delivery.RangeRef{Low: 3, Token: r.Token}, Prefix: 3}, {RangeRef: ref(r), Prefix: 5},
	} {
		if reply := s.work(t, delivery.WorkRequest{Partials: []delivery.Partial{wrong}}); !cmp.Equal(reply.LostRanges, []delivery.RangeRef{wrong.RangeRef}) {
			t.Errorf("lost %v", reply.LostRanges)
		}
	}
	s.expect(t, "a refused one changes nothing", s.state(t), before)
	// The record may know only the low from before.
	s.record(t, result(r, failed(1, 7, 0), inKey(failed(3, 1, time.Hour), "c", delivery.Ordered)))
	s.rows(t, "3po")
	s.expect(t, "marks", len(s.state(t).Done), 0)
}

func surrenderHolds(t *testing.T, s *site) {
	s.keyed(t, "a.o b.o a.o b.o")
	r := s.mustClaim(t, 2, 0, 2)
	s.other(t, 2)
	reply := s.work(t, delivery.WorkRequest{Surrenders: []delivery.Surrender{{RangeRef: ref(r), Prefix: 1}}})
	s.expect(t, "woken", reply.Woken, 0)
	s.claims(t, "1-2:2!")
	over := s.over(t, 9)
	s.expect(t, "woken", over.Woken, 1)
	s.claims(t, "1-2:1")
	s.rows(t, "3po 4wo")
}

func wakeLowest(t *testing.T, s *site) {
	s.keyed(t, "a.x a.x a.x a.x")
	r := s.mustClaim(t, 1, 0, 1)
	s.other(t, 3)
	s.rows(t, "2wx 3wx 4wx")
	s.record(t, result(r))
	s.rows(t, "2px 3wx 4wx")
	// Freed once more while one is due already: one is enough.
	if reply := s.work(t, delivery.WorkRequest{Freed: []string{"a", "a"}}); reply.Woken != 0 {
		t.Errorf("%+v", reply)
	}
	c := s.hand(t, 9).Deliveries
	s.expect(t, "handed out", ids(c), []int64{2})
	// It fails: the next does not wait for it.
	reply := s.work(t, delivery.WorkRequest{Deliveries: []delivery.DeliveryResult{done(c[0], failed(2, 1, time.Hour))}, DeliveryToken: uuid.New(), Retries: 9})
	s.expect(t, "handed out", ids(reply.Deliveries), []int64{3})
	s.rows(t, "2px 3rx 4wx")
}

// waiting leaves these messages as waiting deliveries behind one of each key that is due: "a.o" and so on.
func (s *site) waiting(t *testing.T, words string) {
	t.Helper()
	low := s.state(t).Claimed
	s.keyed(t, words)
	var outcomes []delivery.Outcome
	for i, w := range strings.Fields(words) {
		key, order, _ := strings.Cut(w, ".")
		outcomes = append(outcomes, waits(low+1+int64(i), key, map[string]delivery.KeyOrder{"x": delivery.Exclusive, "o": delivery.Ordered}[order]))
	}
	r := s.mustClaim(t, len(outcomes), low, low+int64(len(outcomes)))
	s.record(t, result(r, outcomes...))
}

func lineTogether(t *testing.T, s *site) {
	s.waiting(t, "a.o a.x b.x a.o a.o")
	s.rows(t, "1po 2wx 3px 4wo 5wo")
	token := uuid.New()
	c := s.work(t, delivery.WorkRequest{DeliveryToken: token, Retries: 9, Followers: 2}).Deliveries
	s.expect(t, "handed out", ids(c), []int64{1, 2, 3, 4})
	for _, d := range c {
		if d.Token != token || d.Order == "" {
			t.Errorf("%+v", d)
		}
	}
	s.rows(t, "1ro 2rx 3rx 4ro 5wo")
	// While one of the line is out, the key is held.
	s.expect(t, "woken", s.finish(t, c[0], c[1], c[2]).Woken, 0)
	s.expect(t, "woken", s.finish(t, c[3]).Woken, 1)
	s.expect(t, "none with solo", len(s.handSolo(t).Deliveries), 0)
	s.rows(t, "5po")
}

func fairFollowers(t *testing.T, s *site) {
	s.waiting(t, "a.o a.o a.o a.o b.o b.o b.o c.o")
	s.expect(t, "handed out", ids(s.handLine(t, 9, 3)), []int64{1, 2, 3, 5, 6, 8})
	s.waiting(t, "d.x e.x e.x e.x d.x")
	s.expect(t, "handed out", ids(s.handLine(t, 1, 9)), []int64{9, 13})
}

func lineStops(t *testing.T, s *site) {
	s.waiting(t, "a.o a.o a.o a.o a.x")
	c := s.handLine(t, 1, 9)
	s.expect(t, "handed out", ids(c), []int64{1, 2, 3, 4, 5})
	// The third fails, those behind it wait, and the two before it are sent again and delayed.
	results := []delivery.DeliveryResult{
		done(c[0], delivery.Outcome{Kind: delivery.Delayed}), done(c[1], delivery.Outcome{Kind: delivery.Waits}),
		done(c[2], failed(3, 1, time.Hour)), done(c[3], delivery.Outcome{Kind: delivery.Waits}), done(c[4], delivery.Outcome{Kind: delivery.Waits}),
	}
	s.work(t, delivery.WorkRequest{Deliveries: results})
	s.rows(t, "1po 2wo 3po 4wo 5wx")
	// Behind 3, which waits for its retry, no ordered one goes along.
	s.expect(t, "handed out", ids(s.handLine(t, 9, 9)), []int64{1, 2, 5})
}

func lineExpires(t *testing.T, s *site) {
	s.waiting(t, "a.o a.o b.x b.x a.o")
	s.expect(t, "handed out", ids(s.handLine(t, 9, 9)), []int64{1, 2, 3, 4, 5})
	s.h.ExpireAll(t, s.group)
	reply := s.work(t, delivery.WorkRequest{LookExpired: true})
	s.expect(t, "woken", reply.Woken, 0)
	s.rows(t, "1po-solo 2wo 3px-solo 4wx 5wo")
	c := s.handSolo(t).Deliveries
	s.expect(t, "handed out", ids(c), []int64{1})
	s.expect(t, "attempt", c[0].Attempt, 0)
	s.expect(t, "woken", s.finish(t, c...).Woken, 1)
	s.rows(t, "2po 3px-solo 4wx 5wo")
	// A follower alone at the head, recorded in part: the lowest of what is left runs alone.
	line := s.handLine(t, 1, 9)
	s.expect(t, "handed out", ids(line), []int64{2, 5})
	s.finish(t, line[0])
	s.h.ExpireAll(t, s.group)
	s.work(t, delivery.WorkRequest{LookExpired: true})
	s.rows(t, "3px-solo 4wx 5po-solo")
}

func releaseKey(t *testing.T, s *site) {
	s.waiting(t, "a.o a.o a.o")
	c := s.handLine(t, 1, 9)
	reply := s.work(t, delivery.WorkRequest{Release: []delivery.DeliveryRef{{ID: 3, Token: c[2].Token}, {ID: 2, Token: c[1].Token}}})
	s.expect(t, "woken", reply.Woken, 0)
	s.rows(t, "1ro 2wo 3wo")
	reply = s.work(t, delivery.WorkRequest{Release: []delivery.DeliveryRef{{ID: 1, Token: c[0].Token}}})
	if reply.Woken != 1 || reply.NextDue != 0 {
		t.Errorf("%+v", reply)
	}
	s.rows(t, "1po 2wo 3wo")
}

func freedKeys(t *testing.T, s *site) {
	s.waiting(t, "a.x a.x b.x b.x")
	c := s.handLine(t, 9, 0)
	s.expect(t, "handed out", ids(c), []int64{1, 3})
	s.rows(t, "1rx 2wx 3rx 4wx")
	// A handler's transaction removes its delivery without the group's lock.
	s.h.FinishDelivery(t, s.group, 1)
	s.rows(t, "2wx 3rx 4wx")
	if reply := s.work(t, delivery.WorkRequest{Freed: []string{"a", "b", "unknown"}}); reply.Woken != 1 {
		t.Errorf("%+v", reply)
	}
	s.rows(t, "2px 3rx 4wx")
}

func parks(t *testing.T, s *site) {
	park := []byte(`{"v":1,"park_key_on_dead_letter":true}`)
	s.h.SetConfig(t, s.group, park, ceiling)
	parked := func(id int64) delivery.Outcome {
		o := inKey(dead(id), "a", delivery.Ordered)
		o.Parks = true
		return o
	}
	s.keyed(t, "a.o b.x a.o a.x b.x a a.o")
	r := s.mustClaim(t, 2, 0, 2)
	s.other(t, 4)
	s.rows(t, "3wo 4wx 5wx")
	s.expect(t, "woken", s.record(t, result(r, parked(1), inKey(dead(2), "b", delivery.Exclusive))), 2)
	if st := s.state(t); len(st.Dead) != 2 || !st.Dead[0].Parks || st.Dead[1].Parks {
		t.Errorf("%+v", st.Dead)
	}
	// The exclusive one goes on; the ordered ones wait, those that come too.
	s.rows(t, "3wo 4px 5px")
	s.expect(t, "handed out", ids(s.handLine(t, 9, 9)), []int64{4, 5})
	if reply := s.claim(t, 1); reply.Range != nil {
		t.Errorf("%+v", reply.Range)
	}
	s.rows(t, "3wo 4rx 5rx 7wo")
	// The config of the moment says whether a letter blocks, the one who buried it whether it can.
	s.h.SetConfig(t, s.group, []byte(`{"v":1}`), ceiling)
	s.expect(t, "woken", s.work(t, delivery.WorkRequest{Freed: []string{"a"}}).Woken, 0)
	s.h.FinishDelivery(t, s.group, 4)
	s.expect(t, "woken", s.work(t, delivery.WorkRequest{Freed: []string{"a"}}).Woken, 1)
	c := s.hand(t, 1).Deliveries
	s.expect(t, "woken", s.work(t, delivery.WorkRequest{Deliveries: []delivery.DeliveryResult{done(c[0], parked(3))}}).Woken, 1)
	s.h.SetConfig(t, s.group, park, ceiling)
	if st := s.state(t); len(st.Dead) != 3 || !st.Dead[2].Parks {
		t.Errorf("%+v", st.Dead)
	}
	if got := s.hand(t, 9); len(got.Deliveries) != 0 || got.NextDue >= 0 {
		t.Errorf("%+v", got)
	}
	s.rows(t, "5rx 7wo")
}

func maxRunningLine(t *testing.T, s *site) {
	s.waiting(t, "a.x a.x a.x a.x b.x")
	s.h.SetConfig(t, s.group, []byte(`{"v":1,"max_running":3}`), ceiling)
	s.expect(t, "handed out", ids(s.handLine(t, 9, 9)), []int64{1, 2, 5})
	s.keyed(t, "c.x")
	if reply := s.claim(t, 1); reply.Range != nil {
		t.Errorf("%+v", reply.Range)
	}
	// What waits is not counted among what a range holds.
	s.h.SetConfig(t, s.group, []byte(`{"v":1,"max_running":8}`), ceiling)
	s.keyed(t, "a.x a.x d.x d.x d.x")
	r := s.other(t, 4).Range
	if r == nil || r.Low != 5 || r.High != 9 || len(r.Done) != 2 {
		t.Fatalf("%+v", r)
	}
	if r := s.other(t, 9).Range; r != nil {
		t.Errorf("all wait: %+v", r)
	}
	s.keyed(t, "e.x f.x g.x h.x")
	if r := s.other(t, 9).Range; r == nil || r.High-r.Low != 3 {
		t.Errorf("%+v", r)
	}
}

func pausedWakes(t *testing.T, s *site) {
	s.keyed(t, "a.o a.o")
	r := s.mustClaim(t, 1, 0, 1)
	s.other(t, 1)
	s.h.SetPaused(t, s.group, true)
	reply := s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{result(r)}, DeliveryToken: uuid.New(), Retries: 9})
	if reply.Woken != 1 || len(reply.Deliveries) != 0 {
		t.Errorf("%+v", reply)
	}
	s.rows(t, "2po")
}

func heldKeys(t *testing.T, s *site) {
	s.waiting(t, "a.o a.x")
	c := s.handLine(t, 1, 1)
	s.h.SetConfig(t, s.group, []byte(`{"v":1,"key_order":"exclusive"}`), ceiling)
	s.keyed(t, "a b c b")
	r := s.mustClaim(t, 4, 2, 6)
	s.work(t, delivery.WorkRequest{Partials: []delivery.Partial{{RangeRef: ref(r), Prefix: 4, Done: []int64{5}, Keys: []string{"c"}}}})
	got, err := s.h.Store().Held(t.Context(), s.group, []delivery.Token{r.Token, c[0].Token})
	if err != nil || len(got.Ranges) != 1 || len(got.Deliveries) != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
	if x := got.Ranges[0]; x.Low != 4 || x.High != 6 || !x.Keyed || x.KeyOrder != delivery.Exclusive || !cmp.Equal(x.Done, []int64{5}) {
		t.Errorf("%+v", x)
	}
	if got.Deliveries[0].Order != delivery.Ordered || got.Deliveries[1].Order != delivery.Exclusive {
		t.Errorf("%+v", got.Deliveries)
	}
}
