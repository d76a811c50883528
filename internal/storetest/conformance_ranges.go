package storetest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

func takeOver(t *testing.T, s *site) {
	s.append(t, 6)
	a := s.mustClaim(t, 4, 0, 4)
	if r := s.over(t, 1000).Range; r == nil || r.Low != 4 {
		t.Errorf("while the lease stands: %+v", r)
	}
	s.h.ExpireAll(t, s.group)
	// Only if it is asked for.
	if r := s.claim(t, 10).Range; r != nil {
		t.Errorf("without asking: %+v", r)
	}
	reply := s.over(t, 1) // whole, however little the taker expects to start
	b := reply.Range
	if b == nil || b.Low != 0 || b.High != 4 || !b.Again || b.Reclaims != 1 || b.Stale != 0 || b.Lease != margins+ceiling || b.Token == a.Token || !reply.More {
		t.Fatalf("%+v, %+v", reply, b)
	}
	if lost := s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{result(a, failed(1, 1, 0))}}).LostRanges; len(lost) != 1 {
		t.Errorf("the older token's result was not refused: %v", lost)
	}
	if st := s.state(t); len(st.Deliveries) != 0 {
		t.Errorf("%+v", st)
	}
	if lost := s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{result(b)}}).LostRanges; len(lost) != 0 {
		t.Errorf("lost %v", lost)
	}
}

func lateResult(t *testing.T, s *site) {
	s.append(t, 2)
	r := s.mustClaim(t, 2, 0, 2)
	s.h.ExpireAll(t, s.group)
	if lost := s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{result(r, failed(2, 1, time.Hour))}}).LostRanges; len(lost) != 0 {
		t.Errorf("lost %v", lost)
	}
	if st := s.state(t); len(st.Claims) != 0 || len(st.Deliveries) != 1 {
		t.Errorf("%+v", st)
	}
}

func breakUp(t *testing.T, s *site) {
	s.append(t, 5)
	s.mustClaim(t, 3, 0, 3)
	for n := 1; n <= 3; n++ {
		s.h.ExpireAll(t, s.group)
		if r := s.over(t, 1000).Range; r == nil || r.Reclaims != n || r.High != 3 {
			t.Fatalf("takeover %d: %+v", n, r)
		}
	}
	s.h.ExpireAll(t, s.group)
	s.h.Redact(t, s.stream, 2)
	reply := s.over(t, 1000)
	if reply.BrokenUp != 2 || reply.NextSoloDue != 0 || reply.NextDue >= 0 {
		t.Errorf("%+v", reply)
	}
	// The same call goes on to fresh ids.
	if reply.Range == nil || reply.Range.Low != 3 {
		t.Errorf("range %+v", reply.Range)
	}
	st := s.state(t)
	if len(st.Claims) != 1 || st.Claims[0].Low != 3 || len(st.Deliveries) != 2 || len(st.Attempts) != 0 {
		t.Errorf("%+v", st)
	}
	for i, id := range []int64{1, 3} {
		if d := st.Deliveries[i]; d.ID != id || !d.Solo || d.Running || d.Attempt != 0 {
			t.Errorf("%+v", d)
		}
	}
}

func staleIsExcused(t *testing.T, s *site) {
	s.append(t, 4)
	r := s.mustClaim(t, 4, 0, 4)
	for range 2 { // said twice, counted once
		s.work(t, delivery.WorkRequest{Stale: []delivery.RangeRef{ref(r)}})
	}
	s.want(t, State{Claimed: 4, Claims: []Claim{{High: 4, Token: r.Token, Stale: 1, Excused: true}}})
	// It is still held, until its lease ends.
	if got := s.over(t, 1000).Range; got != nil {
		t.Errorf("%+v", got)
	}
	s.h.ExpireAll(t, s.group)
	b := s.over(t, 1).Range
	if b == nil || b.Low != 0 || b.High != 4 || b.Stale != 1 || b.Reclaims != 0 || !b.Again {
		t.Fatalf("%+v", b)
	}
	s.want(t, State{Claimed: 4, Claims: []Claim{{High: 4, Stale: 1}}})
	// The next expiry counts again.
	s.h.ExpireAll(t, s.group)
	if c := s.over(t, 1000).Range; c == nil || c.Reclaims != 1 {
		t.Errorf("%+v", c)
	}
}

func parts(t *testing.T, s *site) {
	s.append(t, 8)
	r := s.mustClaim(t, 8, 0, 8)
	for range 2 {
		s.work(t, delivery.WorkRequest{Stale: []delivery.RangeRef{ref(r)}})
		s.h.ExpireAll(t, s.group)
		if r = s.over(t, 1000).Range; r == nil {
			t.Fatal("not taken over")
		}
	}
	// The second takeover was of a range that had gone stale twice: its lower half.
	if r.Low != 0 || r.High != 4 || r.Stale != 2 || r.Reclaims != 0 {
		t.Fatalf("%+v", r)
	}
	s.want(t, State{Claimed: 8, Claims: []Claim{{High: 4, Token: r.Token, Stale: 2}, {Low: 4, High: 8, Stale: 2, Excused: true, Expired: true}}})
	// The rest: at most what the taker expects to start.
	rest := s.over(t, 1).Range
	if rest == nil || rest.Low != 4 || rest.High != 5 || rest.Stale != 2 || rest.Reclaims != 0 {
		t.Fatalf("%+v", rest)
	}
	// At least one message, whatever the taker says, and a single one is not split.
	for _, want := range []int64{6, 7, 8} {
		r := s.over(t, 0).Range
		if r == nil || r.High != want || r.Low != want-1 {
			t.Fatalf("%+v, want up to %d", r, want)
		}
		s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{result(r)}})
	}
	s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{result(r), result(rest)}})
	s.want(t, State{Claimed: 8})
}

func surrender(t *testing.T, s *site) {
	s.append(t, 4)
	r := s.mustClaim(t, 4, 0, 4)
	reply := s.work(t, delivery.WorkRequest{Surrenders: []delivery.Surrender{{RangeRef: ref(r)}}})
	if len(reply.LostRanges) != 0 {
		t.Errorf("lost %v", reply.LostRanges)
	}
	// Nobody holds it: what is still done under the old token is refused.
	if reply := s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{{RangeRef: ref(r)}}}); len(reply.LostRanges) != 1 {
		t.Errorf("a result under the surrendered token was accepted: %+v", reply)
	}
	for range 5 { // however often
		b := s.over(t, 1000).Range
		if b == nil || b.Low != 0 || b.High != 4 || b.Reclaims != 0 || b.Stale != 0 {
			t.Fatalf("%+v", b)
		}
		s.work(t, delivery.WorkRequest{Surrenders: []delivery.Surrender{{RangeRef: ref(b)}}})
	}
	// The surrendered range and its takeover can be in one call.
	b := s.over(t, 1000).Range
	c := s.work(t, delivery.WorkRequest{
		Surrenders: []delivery.Surrender{{RangeRef: ref(b), Prefix: 2}}, RangeToken: uuid.New(), MaxMessages: 10, TakeOver: true, RestToken: uuid.New(), PartMax: 10,
	}).Range
	if c == nil || c.Low != 2 || c.High != 4 {
		t.Errorf("%+v", c)
	}
}

func surrenderDone(t *testing.T, s *site) {
	s.append(t, 8)
	r := s.mustClaim(t, 8, 0, 8)
	s.work(t, delivery.WorkRequest{Surrenders: []delivery.Surrender{{
		RangeRef: ref(r), Prefix: 2, Done: []int64{4, 7}, Outcomes: []delivery.Outcome{failed(2, 1, time.Hour), failed(4, 1, time.Hour)},
	}}})
	st := s.state(t)
	if len(st.Claims) != 1 || st.Claims[0].Low != 2 || !st.Claims[0].Expired || !st.Claims[0].Excused || !cmp.Equal(st.Done, []int64{4, 7}) || len(st.Deliveries) != 2 {
		t.Errorf("%+v", st)
	}
	b := s.over(t, 1000).Range
	if b == nil || b.Low != 2 || b.High != 8 || !cmp.Equal(b.Done, []int64{4, 7}) {
		t.Fatalf("%+v", b)
	}
	// Surrendered once more: what lies below the prefix needs no mark.
	s.work(t, delivery.WorkRequest{Surrenders: []delivery.Surrender{{RangeRef: ref(b), Prefix: 5, Done: []int64{8}}}})
	if st := s.state(t); !cmp.Equal(st.Done, []int64{7, 8}) {
		t.Errorf("%+v", st)
	}
	c := s.over(t, 1000).Range
	if c == nil || c.Low != 5 || !cmp.Equal(c.Done, []int64{7, 8}) {
		t.Fatalf("%+v", c)
	}
	s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{result(c)}})
	if st := s.state(t); len(st.Done)+len(st.Claims) != 0 || len(st.Deliveries) != 2 {
		t.Errorf("%+v", st)
	}
}

func breakUpSkipsDone(t *testing.T, s *site) {
	s.append(t, 4)
	r := s.mustClaim(t, 4, 0, 4)
	s.work(t, delivery.WorkRequest{Surrenders: []delivery.Surrender{{RangeRef: ref(r), Prefix: 1, Done: []int64{3}}}})
	if r := s.over(t, 1000).Range; r == nil || r.Reclaims != 0 {
		t.Fatalf("%+v", r)
	}
	for range 3 {
		s.h.ExpireAll(t, s.group)
		s.over(t, 1000)
	}
	s.h.ExpireAll(t, s.group)
	if reply := s.over(t, 1000); reply.BrokenUp != 2 {
		t.Errorf("%+v", reply)
	}
	if st := s.state(t); len(st.Deliveries) != 2 || st.Deliveries[0].ID != 2 || st.Deliveries[1].ID != 4 || len(st.Done)+len(st.Claims) != 0 {
		t.Errorf("%+v", st)
	}
}

func floor(t *testing.T, s *site) {
	s.append(t, 6)
	a, b := s.mustClaim(t, 2, 0, 2), s.mustClaim(t, 2, 2, 4)
	if got := s.over(t, 10).Floor; got != 0 {
		t.Errorf("floor %d", got)
	}
	s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{result(a)}})
	reply := s.work(t, delivery.WorkRequest{RangeToken: uuid.New(), MaxMessages: 1, TakeOver: true, RestToken: uuid.New(), PartMax: 1})
	if reply.Floor != 2 {
		t.Errorf("floor %d", reply.Floor)
	}
	// What lies at the floor is found.
	s.h.ExpireAll(t, s.group)
	reply = s.work(t, delivery.WorkRequest{RangeToken: uuid.New(), MaxMessages: 1, TakeOver: true, RestToken: uuid.New(), PartMax: 1, Floor: reply.Floor})
	if reply.Range == nil || reply.Range.Low != b.Low {
		t.Errorf("%+v", reply.Range)
	}
}

func nextExpiry(t *testing.T, s *site) {
	s.append(t, 2)
	mine := s.mustClaim(t, 1, 0, 1)
	if got := s.over(t, 10); got.NextExpiry >= 0 {
		t.Errorf("only mine are open, and the next expiry is in %v", got.NextExpiry)
	}
	s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{result(mine)}})
	other := s.work(t, delivery.WorkRequest{Instance: uuid.New(), RangeToken: uuid.New(), MaxMessages: 1, TakeOver: true, RestToken: uuid.New(), PartMax: 1})
	if other.NextExpiry < 40*time.Second || other.NextExpiry > margins+ceiling {
		t.Errorf("another's lease ends in %v", other.NextExpiry)
	}
}

func positionLost(t *testing.T, s *site) {
	s.append(t, 10)
	s.h.Retain(t, s.stream, 6)
	reply := s.claim(t, 3)
	if reply.LostFrom != 0 || reply.LostTo != 5 || reply.Range == nil || reply.Range.Low != 5 || reply.Range.High != 8 {
		t.Errorf("%+v, range %+v", reply, reply.Range)
	}
	if reply := s.claim(t, 3); reply.LostTo != 0 {
		t.Errorf("told twice: %+v", reply)
	}
	// All of it gone: told, and nothing to hand out.
	s.append(t, 5)
	s.h.Retain(t, s.stream, 16)
	if reply := s.claim(t, 3); reply.LostFrom != 10 || reply.LostTo != 15 || reply.Range != nil {
		t.Errorf("%+v, range %+v", reply, reply.Range)
	}
	if reply := s.claim(t, 3); reply.LostTo != 0 || reply.Range != nil {
		t.Errorf("%+v, range %+v", reply, reply.Range)
	}
}

func seek(t *testing.T, s *site) {
	s.append(t, 10)
	a := s.mustClaim(t, 4, 0, 4)
	before := s.work(t, delivery.WorkRequest{}).Epoch
	s.h.Seek(t, s.group, 2)
	reply := s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{result(a)}, RangeToken: uuid.New(), MaxMessages: 3})
	if reply.Epoch <= before || len(reply.LostRanges) != 1 || reply.Range == nil || reply.Range.Low != 2 || reply.Range.High != 5 {
		t.Errorf("%+v, range %+v", reply, reply.Range)
	}
}

func paused(t *testing.T, s *site) {
	s.append(t, 4)
	r := s.mustClaim(t, 2, 0, 2)
	s.h.SetPaused(t, s.group, true)
	s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{result(r, failed(1, 1, 0))}})
	reply := s.work(t, delivery.WorkRequest{
		RangeToken: uuid.New(), MaxMessages: 2, TakeOver: true, RestToken: uuid.New(), PartMax: 2, DeliveryToken: uuid.New(), Retries: 2, LookExpired: true,
	})
	if !reply.Paused || reply.Range != nil || len(reply.Deliveries) != 0 {
		t.Errorf("%+v", reply)
	}
	if st := s.state(t); len(st.Claims) != 0 || len(st.Deliveries) != 1 || st.Claimed != 2 {
		t.Errorf("%+v", st)
	}
	s.h.SetPaused(t, s.group, false)
	if reply := s.claim(t, 2); reply.Paused || reply.Range == nil {
		t.Errorf("%+v", reply)
	}
}

func config(t *testing.T, s *site) {
	if reply := s.work(t, delivery.WorkRequest{ConfigVersion: 1}); reply.ConfigVersion != 1 || reply.Config != nil {
		t.Errorf("%+v", reply)
	}
	s.h.SetConfig(t, s.group, []byte(`{"v": 1}`), time.Minute)
	reply := s.work(t, delivery.WorkRequest{ConfigVersion: 1})
	if reply.ConfigVersion != 2 || len(reply.Config) == 0 {
		t.Errorf("%+v", reply)
	}
	if reply := s.work(t, delivery.WorkRequest{ConfigVersion: 2}); reply.Config != nil {
		t.Errorf("%+v", reply)
	}
	s.append(t, 1)
	if r := s.claim(t, 1).Range; r.Ceiling != time.Minute || r.Lease != margins+time.Minute {
		t.Errorf("%+v", r)
	}
}

func gone(t *testing.T, s *site) {
	s.append(t, 1)
	s.h.Drop(t, s.group)
	if reply := s.claim(t, 1); !reply.Gone || reply.Range != nil {
		t.Errorf("%+v", reply)
	}
}

func held(t *testing.T, s *site) {
	s.append(t, 6)
	a, b := s.mustClaim(t, 2, 0, 2), s.mustClaim(t, 2, 2, 4)
	s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{result(a, failed(1, 1, 0), failed(2, 2, 0))}, Stale: []delivery.RangeRef{ref(b)}})
	token := uuid.New()
	s.work(t, delivery.WorkRequest{DeliveryToken: token, Retries: 5})
	got, err := s.h.Store().Held(t.Context(), s.group, []delivery.Token{a.Token, b.Token, token, uuid.New()})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Ranges) != 1 || got.Ranges[0].Token != b.Token || got.Ranges[0].Low != 2 || got.Ranges[0].High != 4 || got.Ranges[0].Stale != 1 ||
		got.Ranges[0].Lease <= 0 || got.Ranges[0].Lease > margins+ceiling || got.Ranges[0].Ceiling != ceiling {
		t.Errorf("ranges: %+v", got.Ranges)
	}
	if len(got.Deliveries) != 2 || got.Deliveries[0].ID != 1 || got.Deliveries[1].Attempt != 2 || got.Deliveries[0].Token != token || got.Deliveries[0].Lease <= 0 {
		t.Errorf("deliveries: %+v", got.Deliveries)
	}
	// What has expired is held until somebody takes it over.
	s.h.ExpireAll(t, s.group)
	if got, err := s.h.Store().Held(t.Context(), s.group, []delivery.Token{b.Token}); err != nil || len(got.Ranges) != 1 || got.Ranges[0].Lease > 0 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := s.h.Store().Held(t.Context(), s.group, nil); err != nil || len(got.Ranges)+len(got.Deliveries) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
}
