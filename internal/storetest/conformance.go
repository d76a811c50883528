package storetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

type conformanceCase struct {
	name string
	f    func(t *testing.T, s *site)
}

// Conformance is what every store must do. It does not wait for leases: the harness ends them.
func Conformance(t *testing.T, open func(t *testing.T) Harness) {
	for _, c := range slices.Concat(keyCases(), parkedCases(), []conformanceCase{
		{"fresh ids are handed out in order, up to a number", freshByCount},
		{"fresh ids are handed out up to a size, at least one", freshByBytes},
		{"a lease has the margins and the ceiling", leaseLength},
		{"what is handed out is nobody else's", disjoint},
		{"groups are apart", groupsApart},
		{"gaps are passed over", gaps},
		{"a range is recorded by its token", recordByToken},
		{"what did not succeed is written", recordOutcomes},
		{"a refused result changes nothing", refusedChangesNothing},
		{"each result is answered for itself", mixedResults},
		{"record and claim go together", recordAndClaim},
		{"an expired range is taken over whole", takeOver},
		{"a result after its lease but before a takeover stands", lateResult},
		{"takeovers count, and too many break the range up", breakUp},
		{"a stale range's expiry is excused", staleIsExcused},
		{"a range that went stale twice is taken over in parts", parts},
		{"what is surrendered is free at once and uncounted", surrender},
		{"a surrender keeps what was finished", surrenderDone},
		{"break-up passes over what was finished", breakUpSkipsDone},
		{"deliveries are handed out when due", deliveriesDue},
		{"deliveries are recorded by their tokens", deliveriesByToken},
		{"a delivery is released unstarted", release},
		{"an expired delivery runs alone from then on", deliveryExpiry},
		{"solo deliveries are handed out one by one", soloOneByOne},
		{"no more run than the group allows", maxRunning},
		{"no more is handed out than can start", onlyWhatCanStart},
		{"no more start than the group's rate allows", ratePerSecond},
		{"dead letters keep a copy", deadLetters},
		{"a paused group hands out nothing", paused},
		{"a newer config is told", config},
		{"a seek fences", seek},
		{"a deleted group is gone", gone},
		{"a lost position is told once", positionLost},
		{"tokens show what is held", held},
		{"the floor is where to look from", floor},
		{"the next expiry of another's lease is told", nextExpiry},
		{"messages are read as they were appended", reading},
		{"instances say that they live", alive},
	}) {
		t.Run(c.name, func(t *testing.T) {
			c.f(t, newSite(t, open(t)))
		})
	}
}

// site is a stream and a group under test.
type site struct {
	h             Harness
	stream, group int
	instance      uuid.UUID
}

const (
	margins = 17 * time.Second
	ceiling = 30 * time.Second
)

func newSite(t *testing.T, h Harness) *site {
	s := &site{h: h, instance: uuid.New()}
	s.stream = h.NewStream(t)
	s.group = h.NewGroup(t, s.stream, ceiling, 3)
	return s
}

func (s *site) append(t *testing.T, n int) { s.h.Append(t, s.stream, Messages(n)...) }

// work sends a request with what every request says.
func (s *site) work(t *testing.T, req delivery.WorkRequest) *delivery.WorkReply {
	t.Helper()
	req.Stream, req.Margins = s.stream, margins
	if req.Group == 0 {
		req.Group = s.group
	}
	if req.Instance == uuid.Nil {
		req.Instance = s.instance
	}
	if req.ConfigVersion == 0 {
		req.ConfigVersion = 1
	}
	if req.MaxBytes == 0 {
		req.MaxBytes = 1 << 20
	}
	if req.Free == 0 {
		req.Free = 1 << 20
	}
	if req.MaxReclaims == 0 {
		req.MaxReclaims = 3
	}
	reply, err := s.h.Store().Work(t.Context(), &req)
	if err != nil {
		t.Fatalf("work: %v", err)
	}
	return reply
}

// claim asks for a range.
func (s *site) claim(t *testing.T, n int) *delivery.WorkReply {
	t.Helper()
	return s.work(t, delivery.WorkRequest{RangeToken: uuid.New(), MaxMessages: n})
}

// mustClaim asks for a range and expects one.
func (s *site) mustClaim(t *testing.T, n int, low, high int64) *delivery.Range {
	t.Helper()
	r := s.claim(t, n).Range
	if r == nil || r.Low != low || r.High != high {
		t.Fatalf("claimed %+v, want (%d, %d]", r, low, high)
	}
	return r
}

// over looks for an expired range.
func (s *site) over(t *testing.T, partMax int) *delivery.WorkReply {
	t.Helper()
	return s.work(t, delivery.WorkRequest{RangeToken: uuid.New(), MaxMessages: 1000, TakeOver: true, RestToken: uuid.New(), PartMax: partMax})
}

func ref(r *delivery.Range) delivery.RangeRef {
	return delivery.RangeRef{Low: r.Low, Token: r.Token}
}

func result(r *delivery.Range, outcomes ...delivery.Outcome) delivery.RangeResult {
	return delivery.RangeResult{RangeRef: ref(r), Outcomes: outcomes}
}

func failed(id int64, attempt int, dueIn time.Duration) delivery.Outcome {
	return delivery.Outcome{ID: id, Kind: delivery.Failed, Attempt: attempt, DueIn: dueIn, Error: fmt.Sprintf("error of %d", id)}
}

func (s *site) state(t *testing.T) State {
	t.Helper()
	return s.h.State(t, s.group)
}

// want compares what the tables hold. Tokens are compared only where they are given.
func (s *site) want(t *testing.T, want State) {
	t.Helper()
	got := s.state(t)
	for i := range got.Claims {
		if i >= len(want.Claims) || want.Claims[i].Token == (delivery.Token{}) {
			got.Claims[i].Token = delivery.Token{}
		}
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("tables (-want +got):\n%s", diff)
	}
}

func freshByCount(t *testing.T, s *site) {
	if r := s.claim(t, 3); r.Range != nil || r.More {
		t.Errorf("an empty stream gave %+v", r)
	}
	s.append(t, 7)
	a := s.claim(t, 3)
	if a.Range == nil || a.Range.Low != 0 || a.Range.High != 3 || !a.More || a.Range.Again || a.Range.Reclaims != 0 {
		t.Errorf("%+v, range %+v", a, a.Range)
	}
	s.mustClaim(t, 3, 3, 6)
	last := s.claim(t, 3)
	if last.Range == nil || last.Range.High != 7 || last.More {
		t.Errorf("%+v, range %+v", last, last.Range)
	}
	if r := s.claim(t, 3); r.Range != nil {
		t.Errorf("beyond the head: %+v", r.Range)
	}
	if got := s.state(t).Claimed; got != 7 {
		t.Errorf("claimed %d", got)
	}
}

func freshByBytes(t *testing.T, s *site) {
	sized := func(bytes int) delivery.Message {
		payload := []byte(`"` + string(slices.Repeat([]byte("x"), bytes-2)) + `"`)
		return delivery.Message{Payload: payload}
	}
	s.h.Append(t, s.stream, sized(400), sized(400), sized(400), sized(5000), sized(100), sized(100))
	claim := func() *delivery.Range {
		return s.work(t, delivery.WorkRequest{RangeToken: uuid.New(), MaxMessages: 100, MaxBytes: 1000}).Range
	}
	var got []int64
	for r := claim(); r != nil; r = claim() {
		got = append(got, r.High)
	}
	if diff := cmp.Diff([]int64{2, 3, 4, 6}, got); diff != "" {
		t.Errorf("ranges end at %v", got)
	}
}

func leaseLength(t *testing.T, s *site) {
	s.append(t, 1)
	r := s.claim(t, 1).Range
	if r.Lease != margins+ceiling || r.Ceiling != ceiling {
		t.Errorf("lease %v with ceiling %v", r.Lease, r.Ceiling)
	}
}

func disjoint(t *testing.T, s *site) {
	s.append(t, 20)
	taken := make(map[int64]bool)
	for i := range 10 {
		req := delivery.WorkRequest{RangeToken: uuid.New(), MaxMessages: 3, TakeOver: true, RestToken: uuid.New(), PartMax: 3, LookExpired: true}
		if i%2 == 1 {
			req.Instance = uuid.New()
		}
		r := s.work(t, req).Range
		if r == nil {
			continue
		}
		for id := r.Low + 1; id <= r.High; id++ {
			if taken[id] {
				t.Errorf("%d was handed out twice", id)
			}
			taken[id] = true
		}
	}
	if len(taken) != 20 {
		t.Errorf("%d handed out", len(taken))
	}
}

func groupsApart(t *testing.T, s *site) {
	other := s.h.NewGroup(t, s.stream, ceiling, 3)
	s.append(t, 4)
	a := s.mustClaim(t, 4, 0, 4)
	b := s.work(t, delivery.WorkRequest{Group: other, RangeToken: uuid.New(), MaxMessages: 2})
	if b.Range == nil || b.Range.High != 2 {
		t.Errorf("%+v", b.Range)
	}
	s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{result(a)}})
	s.want(t, State{Claimed: 4})
	if st := s.h.State(t, other); st.Claimed != 2 || len(st.Claims) != 1 {
		t.Errorf("%+v", st)
	}
	// A token of one group means nothing in another.
	if lost := s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{result(b.Range)}}).LostRanges; len(lost) != 1 {
		t.Errorf("lost %v", lost)
	}
}

func gaps(t *testing.T, s *site) {
	s.append(t, 30)
	s.h.Remove(t, s.stream, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 30)
	var ids []int64
	for range 30 {
		r := s.claim(t, 4).Range
		if r == nil {
			break
		}
		msgs, err := s.h.Store().Read(t.Context(), s.stream, r.Low, r.High)
		if err != nil {
			t.Fatal(err)
		}
		if len(msgs) == 0 || len(msgs) > 4 {
			t.Errorf("range (%d, %d] has %d messages", r.Low, r.High, len(msgs))
		}
		for _, m := range msgs {
			ids = append(ids, m.ID)
		}
	}
	want := []int64{10, 12}
	for id := int64(14); id <= 29; id++ {
		want = append(want, id)
	}
	if diff := cmp.Diff(want, ids); diff != "" {
		t.Error(diff)
	}
}

func recordByToken(t *testing.T, s *site) {
	s.append(t, 3)
	r := s.mustClaim(t, 3, 0, 3)
	s.want(t, State{Claimed: 3, Claims: []Claim{{High: 3, Token: r.Token}}})
	if reply := s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{result(r)}}); len(reply.LostRanges) != 0 {
		t.Errorf("lost %v", reply.LostRanges)
	}
	s.want(t, State{Claimed: 3})
	// Again: the token is gone.
	if reply := s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{result(r)}}); !cmp.Equal(reply.LostRanges, []delivery.RangeRef{ref(r)}) {
		t.Errorf("lost %v", reply.LostRanges)
	}
}

func recordOutcomes(t *testing.T, s *site) {
	s.append(t, 5)
	r := s.mustClaim(t, 5, 0, 5)
	reply := s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{result(r,
		failed(2, 1, time.Hour),
		delivery.Outcome{ID: 3, Kind: delivery.Delayed, DueIn: 2 * time.Hour},
		delivery.Outcome{ID: 4, Kind: delivery.Dead, Attempt: 1, Reason: delivery.TerminalErr, Error: "never"},
	)}})
	if reply.NextDue <= 59*time.Minute || reply.NextDue > time.Hour || reply.NextSoloDue >= 0 {
		t.Errorf("next due in %v, solo in %v", reply.NextDue, reply.NextSoloDue)
	}
	got := s.state(t)
	for i := range got.Dead {
		got.Dead[i].Payload = nil
	}
	want := State{
		Claimed:    5,
		Deliveries: []Delivery{{ID: 2, Attempt: 1, Error: "error of 2"}, {ID: 3}},
		Dead:       []DeadLetter{{ID: 4, Reason: delivery.TerminalErr, Error: "never", Attempts: 1}},
		Attempts:   []AttemptRow{{ID: 2, Attempt: 1, Kind: delivery.Failed, Error: "error of 2"}, {ID: 4, Attempt: 1, Kind: delivery.Dead, Error: "never"}},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}

func refusedChangesNothing(t *testing.T, s *site) {
	s.append(t, 4)
	r := s.mustClaim(t, 4, 0, 4)
	before := s.state(t)
	wrong := *r
	wrong.Token = uuid.New()
	elsewhere := *r
	elsewhere.Low = 1
	reply := s.work(t, delivery.WorkRequest{
		Results:    []delivery.RangeResult{result(&wrong, failed(1, 1, 0), delivery.Outcome{ID: 2, Kind: delivery.Dead, Reason: delivery.TerminalErr})},
		Surrenders: []delivery.Surrender{{RangeRef: ref(&elsewhere), Prefix: 2, Done: []int64{4}, Outcomes: []delivery.Outcome{failed(1, 1, 0)}}},
		Deliveries: []delivery.DeliveryResult{{Token: uuid.New(), Outcome: failed(3, 1, 0)}, {Token: uuid.New(), Outcome: delivery.Outcome{ID: 4, Kind: delivery.Dead, Reason: delivery.TerminalErr}}},
		Stale:      []delivery.RangeRef{ref(&wrong)},
		Release:    []delivery.DeliveryRef{{ID: 1, Token: uuid.New()}},
	})
	if len(reply.LostRanges) != 2 || !cmp.Equal(reply.LostDeliveries, []int64{3, 4}) {
		t.Errorf("lost %v and %v", reply.LostRanges, reply.LostDeliveries)
	}
	if diff := cmp.Diff(before, s.state(t), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("something changed:\n%s", diff)
	}
}

func mixedResults(t *testing.T, s *site) {
	s.append(t, 6)
	a, b := s.mustClaim(t, 2, 0, 2), s.mustClaim(t, 2, 2, 4)
	unknown := delivery.Range{Low: 4, Token: uuid.New()}
	reply := s.work(t, delivery.WorkRequest{Results: []delivery.RangeResult{
		result(a, failed(1, 1, 0)), result(&unknown, failed(5, 1, 0)), result(b), result(b, failed(3, 1, 0)),
	}})
	if len(reply.LostRanges) != 2 {
		t.Errorf("lost %v", reply.LostRanges)
	}
	if st := s.state(t); len(st.Claims) != 0 || len(st.Deliveries) == 0 || st.Deliveries[0].ID != 1 {
		t.Errorf("%+v", st)
	}
}

func recordAndClaim(t *testing.T, s *site) {
	s.append(t, 4)
	r := s.mustClaim(t, 2, 0, 2)
	reply := s.work(t, delivery.WorkRequest{
		Results: []delivery.RangeResult{result(r, failed(1, 1, 0))}, RangeToken: uuid.New(), MaxMessages: 2, DeliveryToken: uuid.New(), Retries: 5,
	})
	if reply.Range == nil || reply.Range.Low != 2 || reply.Range.High != 4 {
		t.Errorf("range %+v", reply.Range)
	}
	if len(reply.Deliveries) != 1 || reply.Deliveries[0].ID != 1 || reply.Deliveries[0].Attempt != 1 {
		t.Errorf("deliveries %+v", reply.Deliveries)
	}
}

func alive(t *testing.T, s *site) {
	ctx := context.WithoutCancel(t.Context())
	for range 2 {
		if err := s.h.Store().Beat(ctx, s.group, s.instance); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		if err := s.h.Store().Leave(ctx, s.group, s.instance); err != nil {
			t.Error(err)
		}
	}
}
