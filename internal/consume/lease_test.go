package consume_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

// The example of the page on consumer leases, to the second.
func TestLeaseExample(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{Timeout: 30 * time.Second})
		r.append(4)
		o := consume.Options{
			Handlers: 1, BatchMin: 4, BatchLimit: 4,
			QueueMargin: 15 * time.Second, TimeoutGrace: time.Second, RecordMargin: 2 * time.Second,
		}
		d := r.diary()
		handler := func(name string, takes time.Duration) consume.Handler {
			return func(ctx context.Context, m *delivery.Message, at consume.Attempt) error {
				d.note("%s starts %d, %v left, redelivered %v", name, m.ID, time.Until(at.LeaseDeadline), at.Redelivered)
				return sleep(ctx, takes)
			}
		}
		a := r.start(o, handler("A", 10*time.Second))
		synctest.Wait()
		b := r.start(o, handler("B", time.Second))
		synctest.Wait()

		time.Sleep(20*time.Second + time.Millisecond)
		synctest.Wait()
		if got := a.Health(); got.Stale != 1 || got.Running != 0 || got.Queued != 0 {
			t.Errorf("at 20 s: %+v", got)
		}
		lines := a.logs.find("queued message has insufficient lease time")
		if len(lines) != 1 {
			t.Fatalf("SQL0105 was logged %d times", len(lines))
		}
		want := map[string]any{
			"code": "SQL0105", "suppressed": int64(0), "message": int64(3), "range": "1-4", "remaining": 28 * time.Second, "needed": 33 * time.Second,
			"stream": "payments.requested", "group": "charge-cards", "instance": lines[0].attrs["instance"],
		}
		if diff := cmp.Diff(want, lines[0].attrs); diff != "" {
			t.Error(diff)
		}
		if events := a.events.kind(consume.KindStale); len(events) != 1 || events[0].Message != 3 || events[0].Remaining != 28*time.Second || events[0].Needed != 33*time.Second {
			t.Errorf("events: %+v", events)
		}

		time.Sleep(27*time.Second + 900*time.Millisecond) // 47.9 s: the lease stands
		synctest.Wait()
		if got := len(d.all()); got != 2 {
			t.Errorf("before the expiry %d handlers were started", got)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		wantDiary := []string{
			"0s A starts 1, 48s left, redelivered false",
			"10s A starts 2, 38s left, redelivered false",
			"48.001s B starts 1, 48s left, redelivered true",
			"49.001s B starts 2, 47s left, redelivered true",
			"50.001s B starts 3, 46s left, redelivered true",
			"51.001s B starts 4, 45s left, redelivered true",
		}
		if diff := cmp.Diff(wantDiary, d.all()); diff != "" {
			t.Error(diff)
		}
		if st := r.store.State(r.group); st.Claimed != 4 || len(st.Claims) != 0 || len(st.Deliveries) != 0 {
			t.Errorf("state: %+v", st)
		}
		if got := b.Health(); got.Succeeded != 4 || got.Reclaimed != 1 {
			t.Errorf("B: %+v", got.Counts)
		}
		a.stop(t)
		b.stop(t)
	})
}
