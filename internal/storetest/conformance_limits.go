package storetest

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

// Ranges and deliveries under a lease count together, over all instances; what expired, or was recorded or given back, does not.
func maxRunning(t *testing.T, s *site) {
	s.append(t, 20)
	s.h.SetConfig(t, s.group, []byte(`{"v":1,"max_running":5}`), ceiling)
	a := s.mustClaim(t, 3, 0, 3)
	if r := s.work(t, delivery.WorkRequest{Instance: uuid.New(), RangeToken: uuid.New(), MaxMessages: 10}); r.Range == nil || r.Range.Low != 3 || r.Range.High != 5 || !r.More {
		t.Fatalf("%+v", r)
	}
	full := func() {
		t.Helper()
		if r := s.claim(t, 10); r.Range != nil || !r.More {
			t.Fatalf("beyond the limit: %+v", r)
		}
		if r := s.over(t, 10); r.Range != nil || !r.More {
			t.Fatalf("beyond the limit: %+v", r)
		}
	}
	full()
	// Two of the three fail and one succeeds: three may start, of which two are the retries.
	s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{result(a, failed(1, 1, 0), failed(2, 1, 0))}})
	s.h.DueAll(t, s.group)
	both := s.work(t, delivery.WorkRequest{DeliveryToken: uuid.New(), Retries: 10, RangeToken: uuid.New(), MaxMessages: 10})
	if len(both.Deliveries) != 2 || both.Range == nil || both.Range.Low != 5 || both.Range.High != 6 {
		t.Fatalf("%+v, %+v", both, both.Range)
	}
	full()
	s.h.ExpireAll(t, s.group)
	// The two expired ranges have three messages; the deliveries return to run alone.
	x := s.over(t, 10).Range
	y := s.over(t, 10).Range
	if x == nil || x.Low != 3 || x.High != 5 || y == nil || y.Low != 5 || y.High != 6 {
		t.Fatalf("%+v, %+v", x, y)
	}
	if r := s.work(t, delivery.WorkRequest{LookExpired: true, DeliveryToken: uuid.New(), Retries: 1, Solo: true}); len(r.Deliveries) != 1 {
		t.Fatalf("%+v", r)
	}
	if r := s.claim(t, 10).Range; r == nil || r.High-r.Low != 1 {
		t.Fatalf("one more may start: %+v", r)
	}
	full()
	// An expired range that is larger than what may start is taken over in part.
	s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{result(x), result(y)}})
	big := s.claim(t, 10).Range
	if big == nil || big.High-big.Low != 3 {
		t.Fatalf("%+v", big)
	}
	s.h.ExpireAll(t, s.group)
	s.h.SetConfig(t, s.group, []byte(`{"v":1,"max_running":2}`), ceiling)
	if r := s.over(t, 10).Range; r == nil || r.High-r.Low != 1 {
		t.Fatalf("%+v", r) // the single one, lowest
	}
	if r := s.over(t, 10).Range; r == nil || r.Low != big.Low || r.High != big.Low+1 || !r.Again {
		t.Fatalf("%+v", r)
	}
	full()
	s.h.SetConfig(t, s.group, []byte(`{"v":1}`), ceiling)
	if r := s.over(t, 10).Range; r == nil || r.Low != big.Low+1 || r.High != big.High {
		t.Fatalf("%+v", r)
	}
}

// Under such a limit an instance gets only what it can start at once: the rest of the allowance is for others.
func onlyWhatCanStart(t *testing.T, s *site) {
	s.append(t, 20)
	if r := s.work(t, delivery.WorkRequest{RangeToken: uuid.New(), MaxMessages: 4, Free: 1}); r.Range == nil || r.Range.High != 4 {
		t.Fatalf("without a limit: %+v", r.Range)
	}
	s.h.SetConfig(t, s.group, []byte(`{"v":1,"max_running":10}`), ceiling)
	if r := s.work(t, delivery.WorkRequest{RangeToken: uuid.New(), MaxMessages: 10, Free: 2}); r.Range == nil || r.Range.Low != 4 || r.Range.High != 6 {
		t.Fatalf("%+v", r.Range)
	}
	if r := s.work(t, delivery.WorkRequest{RangeToken: uuid.New(), MaxMessages: 10, Free: -1}); r.Range != nil || !r.More {
		t.Fatalf("%+v", r)
	}
}

// The bucket holds one second's worth.
func ratePerSecond(t *testing.T, s *site) {
	s.append(t, 100)
	s.h.SetConfig(t, s.group, []byte(`{"v":1,"rate_per_second":0.01}`), ceiling)
	if r := s.claim(t, 10).Range; r == nil || r.High-r.Low != 1 {
		t.Fatalf("the first: %+v", r)
	}
	r := s.claim(t, 10)
	if r.Range != nil || !r.More || r.Limited < 90*time.Second || r.Limited > 100*time.Second {
		t.Fatalf("%+v", r)
	}
	s.pendingOf(t, 1)
	if r := s.hand(t, 5); len(r.Deliveries) != 0 || r.Limited == 0 {
		t.Fatalf("a retry beyond the rate: %+v", r)
	}
	// A higher rate fills the bucket by what has passed, to one second's worth at the most.
	s.h.SetConfig(t, s.group, []byte(`{"v":1,"rate_per_second":1000000}`), ceiling)
	handed, claimed := 0, int64(0)
	for deadline := time.Now().Add(10 * time.Second); (handed < 1 || claimed < 30) && time.Now().Before(deadline); {
		handed += len(s.hand(t, 5).Deliveries)
		if r := s.claim(t, int(30-claimed)).Range; r != nil {
			claimed += r.High - r.Low
		}
	}
	if handed != 1 || claimed != 30 {
		t.Fatalf("%d retries, %d messages", handed, claimed)
	}
	// Without a limit nothing is counted, and with one again the group begins with a full bucket.
	s.h.SetConfig(t, s.group, []byte(`{"v":1}`), ceiling)
	s.claim(t, 10)
	s.h.SetConfig(t, s.group, []byte(`{"v":1,"rate_per_second":7}`), ceiling)
	if r := s.claim(t, 30).Range; r == nil || r.High-r.Low != 7 {
		t.Fatalf("%+v", r)
	}
}

// pendingOf makes the open range that begins at low+1 end with a failure that is due.
func (s *site) pendingOf(t *testing.T, id int64) {
	t.Helper()
	st := s.state(t)
	for _, c := range st.Claims {
		if c.Low < id && id <= c.High {
			s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{{RangeRef: delivery.RangeRef{Low: c.Low, Token: c.Token}, Outcomes: []delivery.Outcome{failed(id, 1, 0)}}}})
			s.h.DueAll(t, s.group)
			return
		}
	}
	t.Fatalf("no open range holds %d", id)
}
