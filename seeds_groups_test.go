package sqlstreams_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// The page "Consumer groups", on Postgres.

// payment is what the page's stream holds.
type payment struct {
	Card string `json:"card"`
}

// requestPayments produces so many payments, with the ids that follow.
func requestPayments(t testing.TB, stream *sqlstreams.Stream[payment], n int) {
	t.Helper()
	batch := make([]sqlstreams.Outgoing[payment], n)
	for i := range batch {
		batch[i].Payload = &payment{Card: "4242"}
	}
	if _, err := stream.Producer(nil).ProduceBatch(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
}

// pairs are options with which an instance claims two messages at a time.
func pairs(handlers int) *sqlstreams.ConsumeOptions {
	return &sqlstreams.ConsumeOptions{Handlers: handlers, BatchLimit: 2, BatchMin: 2, QueueSize: 1}
}

// id returns which message a handler has got.
func id(ctx context.Context) int64 {
	meta, _ := sqlstreams.MetaFromContext(ctx)
	return meta.ID
}

// charged is a handler that says which message it has got and waits until it may return.
type charged struct {
	entered chan int64
	leave   chan struct{}
}

func newCharged() *charged { return &charged{make(chan int64, 100), make(chan struct{})} }

func (c *charged) handle(ctx context.Context, _ *payment) error {
	c.entered <- id(ctx)
	select {
	case <-c.leave:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// gets waits for these messages, in any order.
func (c *charged) gets(t testing.TB, want ...int64) {
	t.Helper()
	var got []int64
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	for len(got) < len(want) {
		select {
		case id := <-c.entered:
			got = append(got, id)
		case <-deadline.C:
			t.Fatalf("got the messages %v, not %v", got, want)
		}
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Fatalf("got the messages %v, not %v", got, want)
	}
}

func TestInstancesShareAGroupsWorkAndGroupsShareNothing(t *testing.T) {
	var log lines
	client, db, pool := open(t, &sqlstreams.ClientConfig{Logger: log.logger()})
	ctx := t.Context()
	stream := register[payment](t, client, "payments.requested")
	chargeCards := group(t, stream, "charge-cards", nil)
	auditPayments := group(t, stream, "audit-payments", nil)
	requestPayments(t, stream, 4)

	// A claims 1–2, B claims 3–4; while the leases are valid nobody else gets them.
	elsewhere := register[payment](t, openOn(t, pool, nil), "payments.requested")
	a, b, c := newCharged(), newCharged(), newCharged()
	runA := consume(t, chargeCards, pairs(2), a.handle)
	a.gets(t, 1, 2)
	runB := consume(t, group(t, elsewhere, "charge-cards", nil), pairs(2), b.handle)
	b.gets(t, 3, 4)
	runC := consume(t, group(t, elsewhere, "charge-cards", nil), pairs(2), c.handle)
	if ranges := queryText(t, db, `select string_agg(low + 1 || '–' || high, ' ' order by low) from sqlstreams.claim`); ranges != "1–2 3–4" {
		t.Errorf("claimed: %s", ranges)
	}
	if n := db.QueryInt(t, `select count(distinct instance) from sqlstreams.claim where expires_at > clock_timestamp()`); n != 2 {
		t.Errorf("%d instances hold valid leases", n)
	}

	// The audit group reads all four for itself, and has only finished 1–2 when the others finish 1–4.
	audit := make(chan int64, 10)
	onward := make(chan struct{})
	runAudit := consume(t, auditPayments, pairs(1), func(ctx context.Context, _ *payment) error {
		audit <- id(ctx)
		if id(ctx) > 2 {
			<-onward
		}
		return nil
	})
	close(a.leave)
	close(b.leave)
	finished := func(group string) int64 {
		state, err := client.GetGroup(ctx, "payments.requested", group)
		if err != nil {
			t.Fatal(err)
		}
		return state.Committed
	}
	pgtest.Eventually(t, 10*time.Second, "charge-cards has finished 1–4 and audit-payments 1–2", func() bool {
		return finished("charge-cards") == 4 && finished("audit-payments") == 2 && len(audit) == 3
	})
	if len(c.entered) != 0 {
		t.Errorf("a third instance got the message %d", <-c.entered)
	}
	if n := db.QueryInt(t, `select count(*) from sqlstreams.log_1`); n != 4 {
		t.Errorf("%d messages are left in the stream; finishing them deletes nothing", n)
	}
	close(onward)
	pgtest.Eventually(t, 10*time.Second, "the audit group has finished, too", func() bool { return finished("audit-payments") == 4 })

	// Progress survives an instance: the next one gets only what is new.
	for _, r := range []*running{runA, runB, runC, runAudit} {
		r.stop(t)
	}
	next := newCharged()
	runNext := consume(t, group(t, stream, "charge-cards", nil), pairs(2), next.handle)
	requestPayments(t, stream, 1)
	next.gets(t, 5)
	close(next.leave)
	pgtest.Eventually(t, 10*time.Second, "5 is finished", func() bool { return finished("charge-cards") == 5 })
	runNext.stop(t)
	if len(next.entered) != 0 {
		t.Errorf("message %d ran again", <-next.entered)
	}

	// Registering again preserves the cursor. A changed starting position is reported and does not rewind.
	if again := group(t, stream, "charge-cards", &sqlstreams.ConsumerConfig{Start: sqlstreams.Beginning}); again.Outcome() != sqlstreams.Unchanged {
		t.Errorf("outcome %s", again.Outcome())
	}
	if found := log.find(t, "code", "SQL0011"); len(found) != 0 {
		t.Errorf("the same start is reported: %v", found)
	}
	moved := group(t, stream, "charge-cards", &sqlstreams.ConsumerConfig{Start: sqlstreams.Head})
	if found := log.find(t, "code", "SQL0011"); len(found) != 1 || found[0]["stored"] != "beginning" || found[0]["given"] != "head" || found[0]["group"] != "charge-cards" {
		t.Errorf("the changed start is reported as %v", found)
	}
	if finished("charge-cards") != 5 || finished("audit-payments") != 4 {
		t.Errorf("the groups stand at %d and %d", finished("charge-cards"), finished("audit-payments"))
	}
	requestPayments(t, stream, 1)
	still := newCharged()
	close(still.leave)
	consume(t, moved, pairs(2), still.handle)
	still.gets(t, 6)

	// A new name is a group of its own, with its own start.
	fresh, late := newCharged(), newCharged()
	close(fresh.leave)
	close(late.leave)
	consume(t, group(t, stream, "from-the-beginning", nil), pairs(2), fresh.handle)
	consume(t, group(t, stream, "from-now-on", &sqlstreams.ConsumerConfig{Start: sqlstreams.Head}), pairs(2), late.handle)
	fresh.gets(t, 1, 2, 3, 4, 5, 6)
	requestPayments(t, stream, 1)
	late.gets(t, 7)
	fresh.gets(t, 7)
	still.gets(t, 7)
}

// The provider has charged the card, the handler has returned, and the instance dies before that is recorded: the charge is repeated, after the lease, by another instance.
func TestACrashBetweenHandlerAndRecordRunsTheMessageAgain(t *testing.T) {
	client, db, _ := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{Timeout: time.Second}})
	produceAll(t, stream, "quick: charge a card", "and another")
	doomed := spawn(t, "consume", db.DSN)
	ran := []string{doomed.expect(t, "running"), doomed.expect(t, "running")}
	doomed.kill(t)
	if slices.Sort(ran); !slices.Equal(ran, []string{"and another", "quick: charge a card"}) {
		t.Fatalf("ran: %q", ran)
	}
	var expires time.Time
	if err := db.Conn(t).QueryRow(t.Context(), `select expires_at from sqlstreams.claim where low = 0 and high = 2`).Scan(&expires); err != nil {
		t.Fatal(err)
	}
	type run struct {
		meta sqlstreams.Meta
		user string
		at   time.Time
	}
	runs := make(chan run, 10)
	consume(t, instance, shortLease(), func(ctx context.Context, email *WelcomeEmail) error {
		meta, _ := sqlstreams.MetaFromContext(ctx)
		runs <- run{meta, email.UserID, time.Now()}
		return nil
	})
	for range 2 {
		select {
		case r := <-runs:
			if !r.meta.Redelivered || r.meta.Attempt != 1 {
				t.Errorf("%s: %+v", r.user, r.meta)
			}
			if r.at.Before(expires) {
				t.Errorf("%s ran again %v before the lease of the instance that died had ended", r.user, expires.Sub(r.at))
			}
		case <-time.NewTimer(20 * time.Second).C:
			t.Fatal("what the dead instance had is not taken over")
		}
	}
	pgtest.Eventually(t, 10*time.Second, "it is recorded", func() bool { return db.QueryInt(t, `select count(*) from sqlstreams.claim`) == 0 })
	// The crash is no failure of the message.
	if n := db.QueryInt(t, `select (select count(*) from sqlstreams.attempt) + (select count(*) from sqlstreams.delivery)`); n != 0 || len(runs) != 0 {
		t.Errorf("%d attempts or deliveries, %d further runs", n, len(runs))
	}
}

// The page "Consumer leases", with a tenth of its times: the third of four messages has too little lease left to start. It is left to the lease's end and reported; then another
// instance gets all four, those that had run included.
func TestAMessageThatIsTooLateToStartIsLeftToTheNextHolder(t *testing.T) {
	var log lines
	db := pgtest.NewDatabase(t)
	client := openOn(t, db.Pool(t), &sqlstreams.ClientConfig{Logger: log.logger(), DisableManager: true})
	stream := register[payment](t, client, "payments.requested")
	// 1.5 + 3 + 0.1 + 0.2 = 4.8 s of lease, 3.3 s of it needed to start.
	options := sqlstreams.ConsumeOptions{Handlers: 1, BatchLimit: 4, BatchMin: 4, QueueMargin: 1500 * time.Millisecond, TimeoutGrace: 100 * time.Millisecond, RecordMargin: 200 * time.Millisecond}
	config := &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{Timeout: 3 * time.Second}}
	a := group(t, stream, "charge-cards", config)
	requestPayments(t, stream, 4)
	started := make(chan int64, 10)
	r := consume(t, a, &options, func(ctx context.Context, _ *payment) error {
		started <- id(ctx)
		pause(time.Second)
		return nil
	})
	pgtest.Eventually(t, 20*time.Second, "the rest of the range is left", func() bool { return len(log.find(t, "code", "SQL0105")) == 1 })
	if line := log.find(t, "code", "SQL0105")[0]; line["msg"] != "queued message has insufficient lease time" || line["message"] != 3.0 || line["range"] != "1-4" || line["level"] != "WARN" ||
		line["needed"] != float64(3300*time.Millisecond) || line["remaining"].(float64) >= 3.3e9 || line["remaining"].(float64) < 2e9 {
		t.Errorf("reported as %v", line)
	}
	if len(started) != 2 || <-started != 1 || <-started != 2 {
		t.Error("not exactly the messages 1 and 2 were started")
	}
	var expires time.Time
	if err := db.Conn(t).QueryRow(t.Context(), `select expires_at from sqlstreams.claim where low = 0 and high = 4`).Scan(&expires); err != nil {
		t.Fatal(err)
	}
	// A still owns the range: another instance waits for its end.
	b := newCharged()
	close(b.leave)
	consume(t, group(t, register[payment](t, openOn(t, db.Pool(t), &sqlstreams.ClientConfig{DisableManager: true}), "payments.requested"), "charge-cards", nil), &options,
		func(ctx context.Context, p *payment) error {
			if early := time.Until(expires); early > 0 {
				t.Errorf("message %d was taken %v before the lease had ended", id(ctx), early)
			}
			return b.handle(ctx, p)
		})
	pgtest.Eventually(t, 10*time.Second, "the other instance looks for work", func() bool { return db.QueryInt(t, `select count(*) from sqlstreams.instance`) == 2 })
	if n := db.QueryInt(t, `select count(*) from sqlstreams.claim where stale = 1 and excused and reclaims = 0`); n != 1 {
		t.Errorf("the claim: %s", content(t, db, "claim"))
	}
	// A hands back what it owns when it stops, so it stops only when the lease has ended.
	pgtest.Eventually(t, 20*time.Second, "the lease has ended", func() bool { return time.Until(expires) < 0 })
	pgtest.Eventually(t, 20*time.Second, "all four are finished", func() bool {
		return db.QueryInt(t, `select count(*) from sqlstreams.claim`) == 0 && len(b.entered)+len(started) >= 4
	})
	r.stop(t)
	again := map[int64]int{}
	for range len(b.entered) {
		again[<-b.entered]++
	}
	for range len(started) { // A may have been quicker to take its own range back
		again[<-started]++
	}
	if fmt.Sprint(again) != "map[1:1 2:1 3:1 4:1]" {
		t.Errorf("run after the lease: %v", again)
	}
}
