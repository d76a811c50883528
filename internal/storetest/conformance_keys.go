package storetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

func keyCases() []conformanceCase {
	return []conformanceCase{
		{"a claim holds its keys, and another's messages of them wait", claimHolds},
		{"a range that is named holds no key against the caller", namedHolds},
		{"a range of which all must wait is not opened", allWait},
		{"the group's order overrides the message's", orderOverride},
		{"what is erased holds no key", erasedHoldsNothing},
		{"a key is held by a running delivery too", runningHolds},
		{"an ordered message waits for every unresolved lower one", orderedWaitsForBackoff},
		{"an exclusive message passes one that waits for its retry", exclusiveBesideBackoff},
		{"a message that was not started waits off the main line", waitOutcome},
		{"ordered, exclusive and parallel messages of one key", mixedOrders},
		{"the higher range is taken over before the lower", higherFirst},
		{"a takeover lets go of what it does not hold any longer", takeoverReleases},
		{"a range that holds keys is split", splitKeys},
		{"a range that holds keys is broken up", breakUpKeys},
		{"a range claimed as parallel stays parallel", parallelStays},
		{"a part of a range is recorded and its keys are let go of", partial},
		{"a part is recorded twice", partialTwice},
		{"a surrendered range holds its keys until it is taken over", surrenderHolds},
		{"the lowest that may run is woken", wakeLowest},
		{"a line is handed out together", lineTogether},
		{"followers are shared out fairly", fairFollowers},
		{"a line stops at what would be overtaken", lineStops},
		{"the lease of a line ends", lineExpires},
		{"a delivery of a key is released", releaseKey},
		{"keys are freed", freedKeys},
		{"a dead letter parks its key", parks},
		{"no more of a line run than the group allows", maxRunningLine},
		{"a paused group wakes and hands out nothing", pausedWakes},
		{"tokens show which keys are held", heldKeys},
	}
}

// keyed appends messages: "-" has no key, "a" is a parallel message of key a, "a.x" an exclusive and "a.o" an ordered one.
func (s *site) keyed(t *testing.T, words string) {
	t.Helper()
	var msgs []delivery.Message
	for _, w := range strings.Fields(words) {
		m := Messages(1)[0]
		key, order, _ := strings.Cut(w, ".")
		if key != "-" {
			m.Key = key
		}
		switch order {
		case "x":
			m.Options = []byte(`{"v":1,"key_order":"exclusive"}`)
		case "o":
			m.Options = []byte(`{"v":1,"key_order":"ordered"}`)
		}
		msgs = append(msgs, m)
	}
	s.h.Append(t, s.stream, msgs...)
}

// other claims as another instance.
func (s *site) other(t *testing.T, n int) *delivery.WorkReply {
	t.Helper()
	return s.work(t, delivery.WorkRequest{Instance: uuid.New(), RangeToken: uuid.New(), MaxMessages: n})
}

// holding claims for a caller that keeps the keys of these ranges in line.
func (s *site) holding(t *testing.T, n int, holds ...delivery.Token) *delivery.Range {
	t.Helper()
	return s.work(t, delivery.WorkRequest{RangeToken: uuid.New(), MaxMessages: n, Holds: holds}).Range
}

// record records ranges, and says how many deliveries were woken.
func (s *site) record(t *testing.T, results ...delivery.RangeResult) int {
	t.Helper()
	reply := s.work(t, delivery.WorkRequest{Results: results})
	if len(reply.LostRanges) > 0 {
		t.Errorf("lost %v", reply.LostRanges)
	}
	return reply.Woken
}

// hand with followers.
func (s *site) handLine(t *testing.T, heads, followers int) []delivery.Claimed {
	t.Helper()
	return s.work(t, delivery.WorkRequest{DeliveryToken: uuid.New(), Retries: heads, Followers: followers}).Deliveries
}

// finish records deliveries as succeeded.
func (s *site) finish(t *testing.T, list ...delivery.Claimed) *delivery.WorkReply {
	t.Helper()
	var results []delivery.DeliveryResult
	for _, c := range list {
		results = append(results, done(c, delivery.Outcome{Kind: delivery.Succeeded}))
	}
	reply := s.work(t, delivery.WorkRequest{Deliveries: results})
	if len(reply.LostDeliveries) > 0 {
		t.Errorf("lost %v", reply.LostDeliveries)
	}
	return reply
}

// inKey is an outcome of a message that holds its key.
func inKey(o delivery.Outcome, key string, order delivery.KeyOrder) delivery.Outcome {
	o.Key, o.Order = key, order
	return o
}

func waits(id int64, key string, order delivery.KeyOrder) delivery.Outcome {
	return inKey(delivery.Outcome{ID: id, Kind: delivery.Waits}, key, order)
}

func dead(id int64) delivery.Outcome {
	return delivery.Outcome{ID: id, Kind: delivery.Dead, Attempt: 1, Reason: delivery.TerminalErr, Error: "never"}
}

// rows compares the deliveries: of each its id, state (p, r, w), order (x, o or nothing), and "solo" or "late".
func (s *site) rows(t *testing.T, want string) {
	t.Helper()
	var got []string
	for _, d := range s.state(t).Deliveries {
		word := fmt.Sprintf("%dp", d.ID)
		switch {
		case d.Running:
			word = fmt.Sprintf("%dr", d.ID)
		case d.Waiting:
			word = fmt.Sprintf("%dw", d.ID)
		}
		switch d.Order {
		case delivery.Exclusive:
			word += "x"
		case delivery.Ordered:
			word += "o"
		}
		if d.Solo {
			word += "-solo"
		}
		if d.OutOfOrder {
			word += "-late"
		}
		got = append(got, word)
	}
	if diff := cmp.Diff(strings.Fields(want), got); diff != "" && len(want)+len(got) > 0 {
		t.Errorf("deliveries (-want +got):\n%s", diff)
	}
}

// claims compares the open ranges: of each (low, high], how many keys it holds, and ! if it has expired.
func (s *site) claims(t *testing.T, want string) {
	t.Helper()
	var got []string
	for _, c := range s.state(t).Claims {
		word := fmt.Sprintf("%d-%d:%d", c.Low, c.High, c.Keys)
		if c.Expired {
			word += "!"
		}
		got = append(got, word)
	}
	if diff := cmp.Diff(strings.Fields(want), got); diff != "" && len(want)+len(got) > 0 {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
}

func (s *site) expect(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func claimHolds(t *testing.T, s *site) {
	s.keyed(t, "a.o b.x - a.o c b.x - a.o d.x")
	r := s.mustClaim(t, 4, 0, 4)
	if !r.Keyed || r.KeyOrder != "" || len(r.Done) != 0 {
		t.Errorf("%+v", r)
	}
	b := s.other(t, 5).Range
	if b == nil || b.Low != 4 || b.High != 9 || !b.Keyed {
		t.Fatalf("%+v", b)
	}
	s.expect(t, "what must wait is listed", b.Done, []int64{6, 8})
	s.claims(t, "0-4:2 4-9:1")
	s.rows(t, "6wx 8wo")
	s.expect(t, "marks", s.state(t).Done, []int64{6, 8})
	if got := s.hand(t, 5); len(got.Deliveries) != 0 || got.NextDue >= 0 {
		t.Errorf("waiting ones were handed out: %+v", got)
	}
	s.expect(t, "woken", s.record(t, result(r)), 2)
	s.rows(t, "6px 8po")
	got := s.hand(t, 5).Deliveries
	if len(got) != 2 || got[0].Order != delivery.Exclusive || got[1].Order != delivery.Ordered || got[0].OutOfOrder || got[0].Attempt != 0 {
		t.Errorf("%+v", got)
	}
	s.finish(t, got...)
	s.record(t, result(b))
	s.want(t, State{Claimed: 9})
}

func namedHolds(t *testing.T, s *site) {
	s.keyed(t, "a.o a.x a.o a.o b.o a.o a.o")
	x := s.mustClaim(t, 2, 0, 2)
	y := s.holding(t, 2, uuid.New(), x.Token)
	s.claims(t, "0-2:1 2-4:1")
	s.rows(t, "")
	s.expect(t, "woken", s.record(t, result(x)), 0)
	// One of the same instance that it does not name: it may not know of it.
	z := s.holding(t, 2, x.Token)
	s.expect(t, "done", z.Done, []int64{6})
	s.rows(t, "6wo")
	if r := s.holding(t, 1, y.Token, z.Token); r != nil {
		t.Errorf("before what waits: %+v", r)
	}
	s.expect(t, "woken", s.record(t, result(y)), 1)
	s.rows(t, "6po 7wo")
}

func allWait(t *testing.T, s *site) {
	s.keyed(t, "a.x b.o a.x b.o a.x -")
	r := s.mustClaim(t, 2, 0, 2)
	none := s.other(t, 3)
	if none.Range != nil || !none.More || none.Claimed != 5 {
		t.Errorf("%+v, range %+v", none, none.Range)
	}
	s.claims(t, "0-2:2")
	s.rows(t, "3wx 4wo 5wx")
	s.expect(t, "marks", len(s.state(t).Done), 0)
	if last := s.other(t, 3).Range; last == nil || last.Low != 5 || last.High != 6 || last.Keyed {
		t.Errorf("%+v", last)
	}
	s.expect(t, "woken", s.record(t, result(r)), 2)
	s.rows(t, "3px 4po 5wx")
}

func orderOverride(t *testing.T, s *site) {
	s.keyed(t, "a.x a.x a.x a.x")
	s.h.SetConfig(t, s.group, []byte(`{"v":1,"key_order":"parallel"}`), ceiling)
	if r := s.mustClaim(t, 1, 0, 1); r.Keyed || r.KeyOrder != "" {
		t.Errorf("%+v", r)
	}
	s.h.SetConfig(t, s.group, []byte(`{"v":1,"key_order":"ordered"}`), ceiling)
	if r := s.other(t, 1).Range; r == nil || !r.Keyed || r.KeyOrder != delivery.Ordered {
		t.Errorf("%+v", r)
	}
	s.keyed(t, "b")
	s.other(t, 2)
	s.rows(t, "3wo 4wo")
	if r := s.claim(t, 1).Range; r == nil || !r.Keyed || r.Low != 4 {
		t.Errorf("a key without a request: %+v", r)
	}
	s.claims(t, "0-1:0 1-2:1 4-5:1")
	s.h.SetConfig(t, s.group, []byte(`{"v":1}`), ceiling)
	s.h.Append(t, s.stream, delivery.Message{Payload: []byte(`1`), Key: "c", Options: []byte(`{"key_order":"parallel"}`)},
		delivery.Message{Payload: []byte(`1`), Key: "c", Options: []byte(`{"key_order":"alphabetical"}`)}, delivery.Message{Payload: []byte(`1`), Key: "c", Options: []byte(`{"v":1}`)},
		delivery.Message{Payload: []byte(`1`), Options: []byte(`{"key_order":"ordered"}`)})
	if r := s.claim(t, 5).Range; r == nil || r.Keyed {
		t.Errorf("%+v", r)
	}
}

func erasedHoldsNothing(t *testing.T, s *site) {
	s.keyed(t, "a.o b.o a.o b.o")
	s.h.Redact(t, s.stream, 1, 3)
	s.mustClaim(t, 2, 0, 2)
	s.claims(t, "0-2:1")
	if r := s.other(t, 2); r.Range != nil || !r.More {
		t.Errorf("an erased message needs no range: %+v", r.Range)
	}
	s.rows(t, "4wo")
}

func runningHolds(t *testing.T, s *site) {
	s.keyed(t, "a.x a.x")
	r := s.mustClaim(t, 1, 0, 1)
	s.record(t, result(r, inKey(failed(1, 1, 0), "a", delivery.Exclusive)))
	c := s.hand(t, 1).Deliveries
	if r := s.claim(t, 1); r.Range != nil {
		t.Errorf("%+v", r.Range) // of the same instance, too
	}
	s.rows(t, "1rx 2wx")
	s.expect(t, "woken", s.finish(t, c...).Woken, 1)
	s.rows(t, "2px")
}

func orderedWaitsForBackoff(t *testing.T, s *site) {
	s.keyed(t, "a.o a.o - a.o")
	r := s.mustClaim(t, 1, 0, 1)
	s.expect(t, "woken", s.record(t, result(r, inKey(failed(1, 1, time.Hour), "a", delivery.Ordered))), 0)
	b := s.claim(t, 2).Range
	s.expect(t, "done", b.Done, []int64{2})
	s.rows(t, "1po 2wo")
	s.expect(t, "woken by a record of the range", s.record(t, result(b)), 0)
	s.h.DueAll(t, s.group)
	c := s.hand(t, 1).Deliveries
	s.claim(t, 1)
	s.rows(t, "1ro 2wo 4wo")
	// It dies: dead is an end like another.
	reply := s.work(t, delivery.WorkRequest{Deliveries: []delivery.DeliveryResult{done(c[0], dead(1))}})
	s.expect(t, "woken", reply.Woken, 1)
	s.rows(t, "2po 4wo")
	if st := s.state(t); len(st.Dead) != 1 || st.Dead[0].Parks {
		t.Errorf("%+v", st.Dead)
	}
}

func exclusiveBesideBackoff(t *testing.T, s *site) {
	s.keyed(t, "a.x a.x")
	r := s.mustClaim(t, 1, 0, 1)
	s.record(t, result(r, inKey(failed(1, 1, time.Hour), "a", delivery.Exclusive)))
	b := s.mustClaim(t, 1, 1, 2)
	s.claims(t, "1-2:1")
	// The retry falls due while the other runs: back to waiting, woken by its record.
	s.h.DueAll(t, s.group)
	if got := s.hand(t, 5); len(got.Deliveries) != 0 || got.NextDue >= 0 {
		t.Errorf("%+v", got)
	}
	s.rows(t, "1wx")
	s.expect(t, "woken", s.record(t, result(b)), 1)
	s.rows(t, "1px")
}

func waitOutcome(t *testing.T, s *site) {
	s.keyed(t, "a.o a.o b.o a.o")
	r := s.mustClaim(t, 4, 0, 4)
	woken := s.record(t, result(r, inKey(failed(1, 1, time.Hour), "a", delivery.Ordered), waits(2, "a", delivery.Ordered), waits(4, "a", delivery.Ordered)))
	s.expect(t, "woken", woken, 0)
	s.rows(t, "1po 2wo 4wo")
	s.expect(t, "attempts", len(s.state(t).Attempts), 1)
	s.h.DueAll(t, s.group)
	c := s.handLine(t, 1, 5)
	s.expect(t, "handed out", ids(c), []int64{1, 2, 4})
	if c[0].Attempt != 1 || c[1].Attempt != 0 {
		t.Errorf("%+v", c)
	}
	// A follower that was not started waits again, and the failed one blocks it.
	reply := s.work(t, delivery.WorkRequest{Deliveries: []delivery.DeliveryResult{
		done(c[0], delivery.Outcome{Kind: delivery.Failed, Attempt: 2, DueIn: time.Hour}), done(c[1], delivery.Outcome{Kind: delivery.Waits}), done(c[2], delivery.Outcome{Kind: delivery.Waits}),
	}})
	s.expect(t, "woken", reply.Woken, 0)
	s.rows(t, "1po 2wo 4wo")
	s.expect(t, "attempts", len(s.state(t).Attempts), 2)
}

func mixedOrders(t *testing.T, s *site) {
	s.keyed(t, "a.o a a.x a.o a.x")
	x := s.mustClaim(t, 1, 0, 1)
	y := s.other(t, 3).Range
	s.expect(t, "done", y.Done, []int64{3, 4}) // the parallel one runs
	s.other(t, 1)
	s.rows(t, "3wx 4wo 5wx")
	// The ordered one fails: the exclusive ones do not wait for it, the ordered one does.
	s.expect(t, "woken", s.record(t, result(x, inKey(failed(1, 1, time.Hour), "a", delivery.Ordered))), 1)
	s.rows(t, "1po 3px 4wo 5wx")
	c := s.handLine(t, 5, 5)
	s.expect(t, "handed out", ids(c), []int64{3, 5})
	s.finish(t, c...)
	s.rows(t, "1po 4wo")
	s.h.DueAll(t, s.group)
	s.expect(t, "handed out", ids(s.handLine(t, 5, 5)), []int64{1, 4})
}

func higherFirst(t *testing.T, s *site) {
	s.keyed(t, "a.o b.o a.o c.o")
	x := s.mustClaim(t, 2, 0, 2)
	s.mustClaim(t, 2, 2, 4)
	s.h.ExpireAll(t, s.group)
	over := s.work(t, delivery.WorkRequest{Instance: uuid.New(), RangeToken: uuid.New(), MaxMessages: 9, TakeOver: true, RestToken: uuid.New(), PartMax: 9, Floor: 2})
	if r := over.Range; r == nil || r.Low != 2 || !r.Keyed || !r.Again {
		t.Fatalf("%+v", over.Range)
	}
	s.expect(t, "done", over.Range.Done, []int64{3})
	s.claims(t, "0-2:2! 2-4:1")
	s.rows(t, "3wo")
	// It wakes whom it had in line when its late record stands.
	s.expect(t, "woken", s.record(t, result(x)), 1)
	// The lower range of another instance, taken over meanwhile, holds as well.
	s.record(t, result(over.Range))
	s.rows(t, "3po")
}

func takeoverReleases(t *testing.T, s *site) {
	s.keyed(t, "a.o b.o a.o b.o")
	x := s.mustClaim(t, 2, 0, 2)
	s.holding(t, 2, x.Token)
	s.keyed(t, "b.o")
	s.other(t, 1)
	s.rows(t, "5wo")
	// The lower one's first message leaves the main line; the higher one, taken over alone, must set its a waiting and lets go of it.
	s.work(t, delivery.WorkRequest{Partials: []delivery.Partial{{RangeRef: ref(x), Prefix: 1, Outcomes: []delivery.Outcome{inKey(failed(1, 1, time.Hour), "a", delivery.Ordered)}, Keys: []string{"a"}}}})
	s.claims(t, "1-2:1 2-4:2")
	s.h.ExpireAll(t, s.group)
	r := s.work(t, delivery.WorkRequest{RangeToken: uuid.New(), MaxMessages: 9, TakeOver: true, RestToken: uuid.New(), PartMax: 9, Floor: 2}).Range
	s.expect(t, "done", r.Done, []int64{3, 4})
	s.claims(t, "1-2:1! 2-4:0")
	s.rows(t, "1po 3wo 4wo 5wo")
	s.expect(t, "woken", s.record(t, result(r)), 0)
	x.Low = 1
	s.expect(t, "woken", s.record(t, result(x)), 1)
	s.rows(t, "1po 3wo 4po 5wo")
}

func splitKeys(t *testing.T, s *site) {
	s.keyed(t, "a.o b.o a.o c.o")
	r := s.mustClaim(t, 4, 0, 4)
	for range 2 {
		s.work(t, delivery.WorkRequest{Stale: []delivery.RangeRef{ref(r)}})
		s.h.ExpireAll(t, s.group)
		r = s.over(t, 9).Range
	}
	if r.High != 2 || !r.Keyed {
		t.Fatalf("%+v", r)
	}
	s.claims(t, "0-2:2 2-4:3!")
	s.expect(t, "woken", s.record(t, result(r)), 0)
	rest := s.over(t, 1).Range
	if rest.High != 3 || !rest.Keyed || len(rest.Done) != 0 {
		t.Fatalf("%+v", rest)
	}
	s.claims(t, "2-3:1 3-4:3!")
}

func breakUpKeys(t *testing.T, s *site) {
	s.keyed(t, "c.o") // fails, so that the one in the range is blocked
	first := s.mustClaim(t, 1, 0, 1)
	s.keyed(t, "a.o b.x a.o - b.x c.o d.o")
	r := s.mustClaim(t, 7, 1, 8)
	s.record(t, result(first, inKey(failed(1, 1, time.Hour), "c", delivery.Ordered)))
	s.work(t, delivery.WorkRequest{Surrenders: []delivery.Surrender{{RangeRef: ref(r), Prefix: 1, Done: []int64{8}}}})
	s.over(t, 9)
	for range 3 {
		s.h.ExpireAll(t, s.group)
		s.over(t, 9)
	}
	s.keyed(t, "d.x a.x")
	s.rows(t, "1po 7wo")
	s.h.ExpireAll(t, s.group)
	reply := s.work(t, delivery.WorkRequest{RangeToken: uuid.New(), MaxMessages: 9, TakeOver: true, RestToken: uuid.New(), PartMax: 9})
	s.expect(t, "broken up", reply.BrokenUp, 5)
	s.rows(t, "1po 2po-solo 3px-solo 4wo-solo 5p-solo 6wx-solo 7wo")
	if reply.Range == nil || reply.Range.Low != 8 || len(reply.Range.Done) != 0 {
		t.Errorf("nobody holds d and a, which is due, any longer: %+v", reply.Range)
	}
	// Each key goes on alone, one by one; what is held goes back to waiting.
	if got := s.handSolo(t).Deliveries; len(got) != 0 {
		t.Errorf("a is held: %+v", got)
	}
	got := s.handSolo(t).Deliveries
	s.expect(t, "handed out", ids(got), []int64{3})
	s.expect(t, "order", got[0].Order, delivery.Exclusive)
	s.expect(t, "woken", s.finish(t, got...).Woken, 1)
	s.rows(t, "1po 2wo-solo 4wo-solo 5p-solo 6px-solo 7wo")
	s.expect(t, "woken", s.record(t, result(reply.Range)), 1)
	s.rows(t, "1po 2po-solo 4wo-solo 5p-solo 6px-solo 7wo")
}

func parallelStays(t *testing.T, s *site) {
	s.keyed(t, "a a a")
	s.mustClaim(t, 2, 0, 2)
	s.h.SetConfig(t, s.group, []byte(`{"v":1,"key_order":"ordered"}`), ceiling)
	s.h.ExpireAll(t, s.group)
	r := s.over(t, 9).Range
	if r == nil || r.Keyed {
		t.Fatalf("%+v", r)
	}
	if next := s.other(t, 1).Range; next == nil || !next.Keyed || len(next.Done) != 0 {
		t.Errorf("a parallel range holds nothing: %+v", next)
	}
	// A keyed range keeps the order with which it was claimed.
	s.h.SetConfig(t, s.group, []byte(`{"v":1}`), ceiling)
	s.h.ExpireAll(t, s.group)
	again := s.work(t, delivery.WorkRequest{RangeToken: uuid.New(), MaxMessages: 9, TakeOver: true, RestToken: uuid.New(), PartMax: 9, Floor: 2}).Range
	if again == nil || again.Low != 2 || !again.Keyed || again.KeyOrder != delivery.Ordered {
		t.Errorf("%+v", again)
	}
}
