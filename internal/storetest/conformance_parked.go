package storetest

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

func parkedCases() []conformanceCase {
	return []conformanceCase{
		{"what was redriven after its successors went on is exclusive and out of order", redriveLate},
		{"what is redriven from a parked key takes its place", redriveParked},
		{"letters of one key are redriven together", redriveTogether},
		{"a letter that parks its key is discarded", discardParked},
		{"a waiting delivery is discarded", discardWaiting},
		{"a letter goes when its message comes by itself", redriveComes},
		{"a sweep wakes what nobody holds", sweep},
	}
}

// parking is a config that parks keys.
const parking = `{"v":1,"park_key_on_dead_letter":true}`

// deadAs ends a range of one message as a dead letter of key a.
func (s *site) deadAs(t *testing.T, order delivery.KeyOrder, parks bool) int64 {
	t.Helper()
	r := s.claim(t, 1).Range
	o := inKey(dead(r.High), "a", order)
	o.Parks = parks
	s.record(t, result(r, o))
	return r.High
}

func redriveLate(t *testing.T, s *site) {
	s.keyed(t, "a.o a.o a.o a a.x")
	s.deadAs(t, delivery.Ordered, false)
	r := s.mustClaim(t, 1, 1, 2)
	s.h.Redrive(t, s.group, 1)
	s.rows(t, "1wx-late") // a is held
	s.expect(t, "woken", s.record(t, result(r)), 1)
	s.rows(t, "1px-late")
	c := s.hand(t, 9).Deliveries
	if len(c) != 1 || c[0].Order != delivery.Exclusive || !c[0].OutOfOrder || c[0].Attempt != 0 {
		t.Fatalf("%+v", c)
	}
	// It blocks nobody while it waits for a retry, and stays out of order.
	s.work(t, delivery.WorkRequest{Deliveries: []delivery.DeliveryResult{done(c[0], failed(1, 1, time.Hour))}})
	s.rows(t, "1px-late")
	r = s.mustClaim(t, 1, 2, 3)
	if !r.Keyed || len(r.Done) > 0 {
		t.Errorf("%+v", r)
	}
	s.record(t, result(r))
	// Parallel and exclusive ones are as they were.
	for range 2 {
		s.deadAs(t, delivery.Exclusive, false)
	}
	s.h.Redrive(t, s.group, 4, 5)
	s.rows(t, "1px-late 4p 5px")
}

func redriveParked(t *testing.T, s *site) {
	s.h.SetConfig(t, s.group, []byte(parking), ceiling)
	s.keyed(t, "a.o a.o a.x")
	s.deadAs(t, delivery.Ordered, true)
	if r := s.claim(t, 1); r.Range != nil {
		t.Fatalf("%+v", r.Range)
	}
	x := s.mustClaim(t, 1, 2, 3)
	s.rows(t, "2wo")
	s.h.Redrive(t, s.group, 1)
	s.rows(t, "1wo 2wo")
	s.expect(t, "woken", s.record(t, result(x)), 1)
	s.rows(t, "1po 2wo")
	c := s.handLine(t, 9, 9)
	s.expect(t, "handed out", ids(c), []int64{1, 2})
	if c[0].Order != delivery.Ordered || c[0].OutOfOrder {
		t.Errorf("%+v", c[0])
	}
	// It dies again, parks again, and the group has stopped parking when it is redriven: its successors may have gone on.
	again := dead(1)
	again.Parks = true
	s.work(t, delivery.WorkRequest{Deliveries: []delivery.DeliveryResult{done(c[0], again), done(c[1], delivery.Outcome{Kind: delivery.Waits})}})
	s.rows(t, "2wo")
	s.h.SetConfig(t, s.group, []byte(`{"v":1}`), ceiling)
	s.h.Redrive(t, s.group, 1)
	s.rows(t, "1px-late 2wo")
}

func redriveTogether(t *testing.T, s *site) {
	s.keyed(t, "a.x a.x a.x")
	for range 3 {
		s.deadAs(t, delivery.Exclusive, false)
	}
	s.h.Redrive(t, s.group, 1, 2, 3)
	s.rows(t, "1px 2wx 3wx")
	s.expect(t, "handed out", ids(s.handLine(t, 9, 1)), []int64{1, 2})
}

func discardParked(t *testing.T, s *site) {
	s.h.SetConfig(t, s.group, []byte(parking), ceiling)
	s.keyed(t, "a.o a.o a.o")
	s.deadAs(t, delivery.Ordered, true)
	s.claim(t, 2)
	s.rows(t, "2wo 3wo")
	s.h.Discard(t, s.group, 1)
	s.rows(t, "2po 3wo")
}

func discardWaiting(t *testing.T, s *site) {
	s.waiting(t, "a.o a.o a.o b.x b.x")
	s.rows(t, "1po 2wo 3wo 4px 5wx")
	s.h.DiscardDeliveries(t, s.group, 1, 2, 4)
	s.rows(t, "3po 5px")
}

func redriveComes(t *testing.T, s *site) {
	s.h.SetConfig(t, s.group, []byte(parking), ceiling)
	s.keyed(t, "a.o a.o")
	s.deadAs(t, delivery.Ordered, true)
	s.claim(t, 1)
	s.rows(t, "2wo")
	s.h.Seek(t, s.group, 0)
	r := s.mustClaim(t, 1, 0, 1)
	s.h.Redrive(t, s.group, 1)
	if st := s.state(t); len(st.Dead) != 0 {
		t.Errorf("%+v", st.Dead)
	}
	s.rows(t, "")
	s.record(t, result(r))
}

func sweep(t *testing.T, s *site) {
	s.expect(t, "woken", s.h.SweepKeys(t, s.group), 0)
	s.waiting(t, "a.o a.o b.x b.x c.o c.o d.x d.x")
	s.expect(t, "of due ones no more", s.h.SweepKeys(t, s.group), 0)
	c := s.handLine(t, 9, 0)
	s.expect(t, "handed out", ids(c), []int64{1, 3, 5, 7})
	s.expect(t, "of held ones none", s.h.SweepKeys(t, s.group), 0)
	// Two handlers' transactions ended their deliveries, and their instance died before it said so.
	s.h.FinishDelivery(t, s.group, 1)
	s.h.FinishDelivery(t, s.group, 7)
	s.expect(t, "woken", s.h.SweepKeys(t, s.group), 2)
	s.rows(t, "2po 3rx 4wx 5ro 6wo 8px")
	s.expect(t, "woken", s.h.SweepKeys(t, s.group), 0)
	// A group that stops parking keys.
	s.h.SetConfig(t, s.group, []byte(parking), ceiling)
	o := dead(5)
	o.Parks = true
	s.work(t, delivery.WorkRequest{Deliveries: []delivery.DeliveryResult{done(c[2], o)}})
	s.expect(t, "woken", s.h.SweepKeys(t, s.group), 0)
	s.h.SetConfig(t, s.group, []byte(`{"v":1}`), ceiling)
	s.expect(t, "woken", s.h.SweepKeys(t, s.group), 1)
	s.rows(t, "2po 3rx 4wx 6po 8px")
	if got := s.work(t, delivery.WorkRequest{DeliveryToken: uuid.New(), Retries: 9}); len(got.Deliveries) != 3 {
		t.Errorf("%+v", got)
	}
}
