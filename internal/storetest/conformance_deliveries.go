package storetest

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

// pending leaves these messages as pending deliveries, due as long from now.
func (s *site) pending(t *testing.T, dueIn ...time.Duration) {
	t.Helper()
	s.append(t, len(dueIn))
	r := s.claim(t, len(dueIn)).Range
	var outcomes []delivery.Outcome
	for i, d := range dueIn {
		outcomes = append(outcomes, failed(r.Low+1+int64(i), 1, d))
	}
	s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{result(r, outcomes...)}})
}

// hand asks for due deliveries.
func (s *site) hand(t *testing.T, n int) *delivery.WorkReply {
	t.Helper()
	return s.work(t, delivery.WorkRequest{DeliveryToken: uuid.New(), Retries: n, LookExpired: true})
}

func (s *site) handSolo(t *testing.T) *delivery.WorkReply {
	t.Helper()
	return s.work(t, delivery.WorkRequest{DeliveryToken: uuid.New(), Retries: 1, Solo: true, LookExpired: true})
}

func ids(list []delivery.Claimed) []int64 {
	var got []int64
	for _, c := range list {
		got = append(got, c.ID)
	}
	return got
}

func done(c delivery.Claimed, o delivery.Outcome) delivery.DeliveryResult {
	o.ID, o.Solo = c.ID, c.Solo
	return delivery.DeliveryResult{Token: c.Token, Outcome: o}
}

func deliveriesDue(t *testing.T, s *site) {
	s.pending(t, 0, time.Hour, 0, 0, 2*time.Hour)
	first := s.hand(t, 2)
	if len(first.Deliveries) != 2 || first.NextDue != 0 {
		t.Fatalf("%+v", first)
	}
	for _, c := range first.Deliveries {
		if c.Attempt != 1 || c.Solo || c.Lease != margins+ceiling || c.Ceiling != ceiling || c.Token != first.Deliveries[0].Token {
			t.Errorf("%+v", c)
		}
	}
	second := s.hand(t, 5)
	if len(second.Deliveries) != 1 || second.NextDue <= 59*time.Minute || second.NextDue > time.Hour {
		t.Errorf("%+v", second)
	}
	if got := s.hand(t, 5).Deliveries; len(got) != 0 {
		t.Errorf("handed out twice: %+v", got)
	}
	s.h.DueAll(t, s.group)
	if got := ids(s.hand(t, 5).Deliveries); !cmp.Equal(got, []int64{2, 5}) {
		t.Errorf("%v", got)
	}
}

func deliveriesByToken(t *testing.T, s *site) {
	s.pending(t, 0, 0, 0, 0, 0)
	c := s.hand(t, 5).Deliveries
	wrong := c[4]
	wrong.Token = uuid.New()
	reply := s.work(t, delivery.WorkRequest{Deliveries: []delivery.DeliveryResult{
		done(c[0], delivery.Outcome{Kind: delivery.Succeeded}),
		done(c[1], delivery.Outcome{Kind: delivery.Failed, Attempt: 2, DueIn: time.Hour, Error: "again"}),
		done(c[2], delivery.Outcome{Kind: delivery.Delayed, Attempt: 1, DueIn: 2 * time.Hour}),
		done(c[3], delivery.Outcome{Kind: delivery.Dead, Attempt: 2, Reason: delivery.Exhausted, Error: "enough"}),
		done(wrong, delivery.Outcome{Kind: delivery.Succeeded}),
	}})
	if !cmp.Equal(reply.LostDeliveries, []int64{5}) || reply.NextDue <= 59*time.Minute || reply.NextDue > time.Hour {
		t.Errorf("%+v", reply)
	}
	st := s.state(t)
	want := []Delivery{{ID: 2, Attempt: 2, Error: "again"}, {ID: 3, Attempt: 1, Error: "error of 3"}, {ID: 5, Running: true, Attempt: 1, Error: "error of 5"}}
	if diff := cmp.Diff(want, st.Deliveries); diff != "" {
		t.Error(diff)
	}
	if len(st.Dead) != 1 || st.Dead[0].ID != 4 || st.Dead[0].Attempts != 2 || st.Dead[0].Reason != delivery.Exhausted || st.Dead[0].Error != "enough" {
		t.Errorf("%+v", st.Dead)
	}
	if n := len(st.Attempts); n != 7 || st.Attempts[5].Kind != delivery.Failed || st.Attempts[6].Kind != delivery.Dead {
		t.Errorf("attempts: %+v", st.Attempts)
	}
	// Each token has been used.
	again := s.work(t, delivery.WorkRequest{Deliveries: []delivery.DeliveryResult{
		done(c[0], delivery.Outcome{Kind: delivery.Succeeded}), done(c[1], delivery.Outcome{Kind: delivery.Succeeded}), done(c[3], delivery.Outcome{Kind: delivery.Succeeded}),
	}})
	if !cmp.Equal(again.LostDeliveries, []int64{1, 2, 4}) {
		t.Errorf("lost %v", again.LostDeliveries)
	}
}

func release(t *testing.T, s *site) {
	s.pending(t, 0, 0, 0)
	c := s.hand(t, 3).Deliveries
	// One was recorded in the same call, one runs on under the same token.
	reply := s.work(t, delivery.WorkRequest{
		Deliveries: []delivery.DeliveryResult{done(c[0], delivery.Outcome{Kind: delivery.Failed, Attempt: 2, DueIn: time.Hour})},
		Release:    []delivery.DeliveryRef{{ID: 1, Token: c[0].Token}, {ID: 2, Token: c[1].Token}},
	})
	if reply.NextDue != 0 {
		t.Errorf("next due in %v", reply.NextDue)
	}
	st := s.state(t)
	want := []Delivery{{ID: 1, Attempt: 2, Error: "error of 1"}, {ID: 2, Attempt: 1, Error: "error of 2"}, {ID: 3, Running: true, Attempt: 1, Error: "error of 3"}}
	if diff := cmp.Diff(want, st.Deliveries); diff != "" {
		t.Error(diff)
	}
	if got := s.hand(t, 5).Deliveries; len(got) != 1 || got[0].ID != 2 || got[0].Attempt != 1 || got[0].Solo {
		t.Errorf("%+v", got)
	}
}

func deliveryExpiry(t *testing.T, s *site) {
	s.pending(t, 0)
	s.hand(t, 1)
	s.h.ExpireAll(t, s.group)
	// Looked for only when asked.
	if reply := s.work(t, delivery.WorkRequest{DeliveryToken: uuid.New(), Retries: 1, Solo: true}); len(reply.Deliveries) != 0 {
		t.Errorf("%+v", reply.Deliveries)
	}
	if reply := s.hand(t, 5); len(reply.Deliveries) != 0 || reply.NextSoloDue != 0 || reply.NextDue >= 0 {
		t.Errorf("%+v", reply)
	}
	// It had company: no attempt is counted.
	first := s.handSolo(t).Deliveries
	if len(first) != 1 || !first[0].Solo || first[0].Attempt != 1 {
		t.Fatalf("%+v", first)
	}
	s.h.ExpireAll(t, s.group)
	// It was alone: one is.
	second := s.handSolo(t).Deliveries
	if len(second) != 1 || second[0].Attempt != 2 {
		t.Fatalf("%+v", second)
	}
	if lost := s.work(t, delivery.WorkRequest{Deliveries: []delivery.DeliveryResult{done(first[0], delivery.Outcome{Kind: delivery.Succeeded})}}).LostDeliveries; len(lost) != 1 {
		t.Errorf("the older token was accepted")
	}
	if lost := s.work(t, delivery.WorkRequest{Deliveries: []delivery.DeliveryResult{done(second[0], delivery.Outcome{Kind: delivery.Failed, Attempt: 3})}}).LostDeliveries; len(lost) != 0 {
		t.Errorf("lost %v", lost)
	}
	if st := s.state(t); len(st.Deliveries) != 1 || !st.Deliveries[0].Solo || st.Deliveries[0].Attempt != 3 {
		t.Errorf("%+v", st.Deliveries)
	}
}

func soloOneByOne(t *testing.T, s *site) {
	s.pending(t, 0, 0, 0)
	s.hand(t, 3)
	s.h.ExpireAll(t, s.group)
	s.pending(t, 0)
	got := make(map[int64]bool)
	for range 3 {
		c := s.handSolo(t).Deliveries
		if len(c) != 1 || !c[0].Solo || got[c[0].ID] {
			t.Fatalf("%+v", c)
		}
		got[c[0].ID] = true
	}
	if c := s.handSolo(t).Deliveries; len(c) != 0 {
		t.Errorf("%+v", c)
	}
	if c := s.hand(t, 5).Deliveries; len(c) != 1 || c[0].Solo || c[0].ID != 4 {
		t.Errorf("%+v", c)
	}
}

func deadLetters(t *testing.T, s *site) {
	s.h.Append(t, s.stream,
		delivery.Message{Payload: []byte(`{"n": 1}`), Key: "k-1", RoutingKey: "a.b"}, delivery.Message{Payload: []byte(`{"n": 2}`), Key: "k-2"}, delivery.Message{Payload: []byte(`{"n": 3}`)})
	r := s.claim(t, 3).Range
	s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{result(r,
		delivery.Outcome{ID: 1, Kind: delivery.Dead, Attempt: 1, Reason: delivery.Undecodable, Error: "what"},
		failed(2, 1, 0),
	)}})
	c := s.hand(t, 1).Deliveries
	s.work(t, delivery.WorkRequest{Deliveries: []delivery.DeliveryResult{done(c[0], delivery.Outcome{Kind: delivery.Dead, Attempt: 2, Reason: delivery.Exhausted, Error: "no"})}})
	s.h.Remove(t, s.stream, 1, 2)
	st := s.state(t)
	for i := range st.Dead {
		st.Dead[i].Payload = compact(t, st.Dead[i].Payload)
	}
	want := []DeadLetter{
		{ID: 1, Reason: delivery.Undecodable, Error: "what", Attempts: 1, Payload: []byte(`{"n":1}`), Key: "k-1"},
		{ID: 2, Reason: delivery.Exhausted, Error: "no", Attempts: 2, Payload: []byte(`{"n":2}`), Key: "k-2"},
	}
	if diff := cmp.Diff(want, st.Dead); diff != "" {
		t.Error(diff)
	}
	if len(st.Deliveries) != 0 {
		t.Errorf("%+v", st.Deliveries)
	}
}

func compact(t *testing.T, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		t.Fatalf("%q: %v", b, err)
	}
	return out.Bytes()
}

func reading(t *testing.T, s *site) {
	s.h.Append(t, s.stream,
		delivery.Message{Payload: []byte(`{"n":1}`), Key: "k", RoutingKey: "a.b", Headers: []byte(`{"h":"v"}`), Options: []byte(`{"v":1,"timeout_ms":5}`)},
		delivery.Message{Payload: []byte(`[2]`)}, delivery.Message{Payload: []byte(`3`)}, delivery.Message{Payload: []byte(`4`)})
	s.h.Remove(t, s.stream, 2)
	s.h.Redact(t, s.stream, 3)
	check := func(msgs []delivery.Message, err error, want ...int64) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		var got []int64
		for _, m := range msgs {
			got = append(got, m.ID)
			if m.Redacted != (m.ID == 3) || m.Redacted && m.Payload != nil {
				t.Errorf("%+v", m)
			}
			if m.ID == 1 && (string(compact(t, m.Payload)) != `{"n":1}` || m.Key != "k" || m.RoutingKey != "a.b" || string(compact(t, m.Headers)) != `{"h":"v"}` ||
				string(compact(t, m.Options)) != `{"v":1,"timeout_ms":5}` || m.SchemaVersion != 1 || m.ProducedAt.IsZero() || m.AppendedAt.IsZero() || !m.ScheduledAt.IsZero()) {
				t.Errorf("%+v", m)
			}
			if m.ID == 4 && (m.Key != "" || m.RoutingKey != "" || m.Headers != nil || m.Options != nil) {
				t.Errorf("%+v", m)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	store, ctx := s.h.Store(), t.Context()
	msgs, err := store.Read(ctx, s.stream, 0, 4)
	check(msgs, err, 1, 3, 4)
	msgs, err = store.Read(ctx, s.stream, 1, 3)
	check(msgs, err, 3)
	msgs, err = store.Read(ctx, s.stream, 1, 2)
	check(msgs, err)
	msgs, err = store.ReadIDs(ctx, s.stream, s.group, []int64{4, 2, 1, 77})
	check(msgs, err, 1, 4)
	msgs, err = store.ReadIDs(ctx, s.stream, s.group, nil)
	check(msgs, err)
}
