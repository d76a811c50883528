package sqlstreams_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// once fails for good unless it is told otherwise.
func once() *sqlstreams.ConsumerConfig {
	return &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{MaxAttempts: 1}}
}

// A dead letter's way: listed by what it died of, shown with its attempts, redriven, handled; another is discarded.
func TestDeadLettersAreListedRedrivenAndDiscarded(t *testing.T) {
	client, db, _ := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", once())
	for i := range 6 {
		if _, err := stream.Producer(nil).Produce(t.Context(), &WelcomeEmail{UserID: fmt.Sprint(i)}, &sqlstreams.ProduceOptions{Key: fmt.Sprint("k", i%2), Headers: map[string]string{"n": fmt.Sprint(i)}}); err != nil {
			t.Fatal(err)
		}
	}
	mended := make(chan struct{})
	var seen tally
	consume(t, instance, nil, func(ctx context.Context, m *WelcomeEmail) error {
		meta, _ := sqlstreams.MetaFromContext(ctx)
		select {
		case <-mended:
			if meta.Attempt != 1 {
				return fmt.Errorf("attempt %d after a redrive", meta.Attempt)
			}
			seen.add(m.UserID)
			return nil
		default:
		}
		if m.UserID == "5" {
			return sqlstreams.Terminal(errors.New("no such user"))
		}
		return fmt.Errorf("order %s refused by host %d", m.UserID, 7)
	})
	g := client.Group("s", "g")
	status := func() *sqlstreams.GroupStatus {
		t.Helper()
		s, err := g.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	pgtest.Eventually(t, 20*time.Second, "six are dead", func() bool { return status().Dead == 6 })

	groups, err := g.DeadGroups(t.Context(), nil)
	if err != nil || len(groups) != 2 || groups[0].Error != "order # refused by host #" || groups[0].Count != 5 || groups[0].Reason != "exhausted" || groups[0].FirstID != 1 || groups[0].LastID != 5 ||
		groups[1].Error != "no such user" || groups[1].Reason != "terminal" || groups[1].Example != 6 {
		t.Fatalf("%+v, %v", groups, err)
	}
	for _, c := range []struct {
		filter *sqlstreams.DeliveryFilter
		want   string
	}{
		{nil, "[1 2 3 4 5 6]"},
		{&sqlstreams.DeliveryFilter{Error: groups[0].Error}, "[1 2 3 4 5]"},
		{&sqlstreams.DeliveryFilter{Error: "order 3 refused by host 7"}, "[1 2 3 4 5]"},
		{&sqlstreams.DeliveryFilter{Contains: "order 3"}, "[4]"},
		{&sqlstreams.DeliveryFilter{Reason: "terminal"}, "[6]"},
		{&sqlstreams.DeliveryFilter{Key: "k1"}, "[2 4 6]"},
		{&sqlstreams.DeliveryFilter{IDs: []int64{9, 2, 6}}, "[2 6]"},
		{&sqlstreams.DeliveryFilter{IDs: []int64{}}, "[]"},
		{&sqlstreams.DeliveryFilter{IDs: []int64{1, 2}, Key: "k1"}, "[2]"},
		{&sqlstreams.DeliveryFilter{Before: time.Now().Add(-time.Hour)}, "[]"},
		{&sqlstreams.DeliveryFilter{After: time.Now().Add(-time.Hour)}, "[1 2 3 4 5 6]"},
	} {
		letters, err := g.DeadLetters(t.Context(), c.filter, 0, 100)
		ids := []int64{}
		for _, l := range letters {
			ids = append(ids, l.ID)
		}
		if err != nil || fmt.Sprint(ids) != c.want {
			t.Errorf("%+v: %v, %v, want %s", c.filter, ids, err, c.want)
		}
		if n, err := g.Redrive(t.Context(), c.filter, &sqlstreams.OperateOptions{DryRun: true}); err != nil || n != int64(len(ids)) {
			t.Errorf("%+v: a dry run says %d, %v, want %d", c.filter, n, err, len(ids))
		}
	}
	if page, err := g.DeadLetters(t.Context(), nil, 2, 3); err != nil || len(page) != 3 || page[0].ID != 3 {
		t.Errorf("a page: %+v, %v", page, err)
	}
	letter, attempts, err := g.GetDeadLetter(t.Context(), 4)
	if err != nil || letter == nil || string(letter.Payload) != `{"user_id":"3"}` || letter.Key != "k1" || letter.Headers["n"] != "3" || letter.Attempts != 1 || letter.Error != "order 3 refused by host 7" ||
		len(attempts) != 1 || attempts[0].Kind != "dead" || attempts[0].Error != letter.Error || attempts[0].EndedAt.IsZero() {
		t.Fatalf("%+v, %+v, %v", letter, attempts, err)
	}
	if letter, attempts, err := g.GetDeadLetter(t.Context(), 77); letter != nil || attempts != nil || err != nil {
		t.Errorf("%+v, %+v, %v", letter, attempts, err)
	}

	if n, err := g.Discard(t.Context(), &sqlstreams.DeliveryFilter{Reason: "terminal"}, &sqlstreams.OperateOptions{Actor: "ann"}); err != nil || n != 1 {
		t.Fatalf("discarded %d, %v", n, err)
	}
	close(mended)
	db.Exec(t, `delete from sqlstreams.log_1`) // the copies are enough
	var last int64
	if n, err := g.Redrive(t.Context(), nil, &sqlstreams.OperateOptions{Actor: "ann", Progress: func(n int64) { last = n }}); err != nil || n != 5 || last != 5 {
		t.Fatalf("redriven %d, %v, progress %d", n, err, last)
	}
	pgtest.Eventually(t, 20*time.Second, "five ran again", func() bool { return seen.distinct() == 5 })
	pgtest.Eventually(t, 20*time.Second, "nothing is left", func() bool { s := status(); return s.Dead+s.Pending+s.Running == 0 })
	if seen.total() != 5 {
		t.Errorf("%d runs", seen.total())
	}
	if n := db.QueryInt(t, `select count(*) from sqlstreams.operator_action where actor = 'ann' and finished_at is not null and object = 'group "g" of stream "s"'
		and (action = 'discard' and affected = 1 and detail->>'reason' = 'terminal' or action = 'redrive' and affected = 5)`); n != 2 {
		t.Errorf("%d of two operations are on record", n)
	}
}

// What waits for its retry runs at once when an operator says so, or never.
func TestRetryNow(t *testing.T) {
	client, _, _ := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{BaseDelay: time.Hour, MaxDelay: time.Hour}})
	var seen tally
	consume(t, instance, nil, func(_ context.Context, m *WelcomeEmail) error {
		if seen.add(m.UserID) == 1 {
			return errors.New("not yet: " + m.UserID)
		}
		return nil
	})
	for _, name := range []string{"a", "b", "c"} {
		if _, err := stream.Producer(nil).Produce(t.Context(), &WelcomeEmail{UserID: name}, &sqlstreams.ProduceOptions{Key: "key of " + name}); err != nil {
			t.Fatal(err)
		}
	}
	g := client.Group("s", "g")
	var s *sqlstreams.GroupStatus
	pgtest.Eventually(t, 20*time.Second, "three wait", func() bool {
		var err error
		s, err = g.Status(t.Context())
		return err == nil && s.Pending == 3 && s.OpenClaims == 0
	})
	if len(s.Reasons) != 1 || s.Reasons[0].Blocking || s.Reasons[0].Remedy != "sqlstreams group retry-now s g --all" {
		t.Errorf("%+v", s.Reasons)
	}
	waiting, err := g.Deliveries(t.Context(), &sqlstreams.DeliveryFilter{Contains: "yet: b", Key: "key of b"}, 0, 10)
	if err != nil || len(waiting) != 1 || waiting[0].Key != "key of b" || waiting[0].State != "pending" || waiting[0].Attempt != 1 || waiting[0].Error != "not yet: b" || time.Until(waiting[0].DueAt) < 50*time.Minute {
		t.Fatalf("%+v, %v", waiting, err)
	}
	if n, err := g.DiscardDeliveries(t.Context(), &sqlstreams.DeliveryFilter{IDs: []int64{waiting[0].ID}}, nil); err != nil || n != 1 {
		t.Fatalf("%d, %v", n, err)
	}
	if n, err := g.RetryNow(t.Context(), nil, nil); err != nil || n != 2 {
		t.Fatalf("%d, %v", n, err)
	}
	pgtest.Eventually(t, 10*time.Second, "two ran again", func() bool {
		s, err := g.Status(t.Context())
		return err == nil && seen.count("a") == 2 && seen.count("c") == 2 && s.Pending+s.Running == 0
	})
	if seen.count("b") != 1 {
		t.Error("what was discarded ran again")
	}
}

// A paused group claims nothing, says so, and goes on when it is resumed.
func TestPauseAndResume(t *testing.T) {
	client, db, _ := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", nil)
	g := client.Group("s", "g")
	for range 2 {
		if err := g.Pause(t.Context(), &sqlstreams.OperateOptions{Actor: "bob"}); err != nil {
			t.Fatal(err)
		}
	}
	var seen tally
	consume(t, instance, nil, func(_ context.Context, m *WelcomeEmail) error { seen.add(m.UserID); return nil })
	produceAll(t, stream, "a")
	pgtest.Eventually(t, 10*time.Second, "it looked", func() bool { return !instance.Health().LastWork.IsZero() })
	s, err := g.Status(t.Context())
	if err != nil || !s.Paused || s.Backlog != 1 || seen.total() != 0 || len(s.Reasons) == 0 || !s.Reasons[0].Blocking || s.Reasons[0].Remedy != "sqlstreams group resume s g" {
		t.Fatalf("%+v, %v", s, err)
	}
	if err := g.Resume(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, 10*time.Second, "it goes on", func() bool { return seen.total() == 1 })
	if n := db.QueryInt(t, `select count(*) from sqlstreams.operator_action`); n != 2 {
		t.Errorf("%d operations on record, want one pause and one resume", n)
	}
}

// Case 22: a hundred thousand dead letters of three kinds are counted in well under a second, and a part is redriven at 500 a second while new messages flow.
func TestManyDeadLetters(t *testing.T) {
	client, db, _ := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", once())
	const dead = 100_000
	db.Exec(t, `insert into sqlstreams.dead_letter (group_id, message_id, reason, error, attempts, produced_at, appended_at, schema_version, payload)
		select 1, n, 'exhausted', (array['order % refused', 'host % is down', 'no stock'])[1 + n % 3], 10, now(), now(), 1, json_build_object('user_id', 'dead ' || n) from generate_series(1, $1) n`, dead)
	db.Exec(t, `update sqlstreams.stream set first_id = $1 + 1`, dead)
	g := client.Group("s", "g")
	began := time.Now()
	groups, err := g.DeadGroups(t.Context(), nil)
	if took := time.Since(began); err != nil || len(groups) != 3 || groups[0].Count+groups[1].Count+groups[2].Count != dead || took > bound(time.Second) {
		t.Fatalf("%+v, %v after %v", groups, err, took)
	}
	t.Logf("counted in %v", time.Since(began))
	began = time.Now()
	if page, err := g.DeadLetters(t.Context(), &sqlstreams.DeliveryFilter{Error: "no stock"}, dead/2, 100); err != nil || len(page) != 100 || page[0].ID <= dead/2 || time.Since(began) > bound(time.Second) {
		t.Fatalf("a page of %d, %v after %v", len(page), err, time.Since(began))
	}
	var old, fresh tally
	consume(t, instance, nil, func(_ context.Context, m *WelcomeEmail) error {
		if strings.HasPrefix(m.UserID, "dead ") {
			old.add(m.UserID)
		} else {
			fresh.add(m.UserID)
		}
		return nil
	})
	produced := make(chan int, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			if _, err := stream.Producer(nil).Produce(t.Context(), &WelcomeEmail{UserID: fmt.Sprint("new ", n)}, nil); err != nil {
				t.Errorf("produce: %v", err)
				break
			}
		}
		produced <- n
	}()
	ids := make([]int64, 1000)
	for i := range ids {
		ids[i] = int64(1 + 97*i)
	}
	began = time.Now()
	n, err := g.Redrive(t.Context(), &sqlstreams.DeliveryFilter{IDs: ids}, &sqlstreams.OperateOptions{Rate: 500})
	took := time.Since(began)
	cancel()
	if err != nil || n != 1000 || took < 1800*time.Millisecond || took > bound(4*time.Second) {
		t.Errorf("redriven %d in %v, %v", n, took, err)
	}
	want := <-produced
	pgtest.Eventually(t, 30*time.Second, "all have run", func() bool { return old.distinct() == 1000 && fresh.distinct() == want })
	if old.total() != 1000 {
		t.Errorf("%d runs of 1,000 redriven messages", old.total())
	}
	if left := db.QueryInt(t, `select count(*) from sqlstreams.dead_letter`); left != dead-1000 {
		t.Errorf("%d dead letters are left", left)
	}
}

// A deletion is on record with what it took away, whoever finishes it.
func TestDeletionIsOnRecord(t *testing.T) {
	client, db, _ := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	group(t, stream, "g", nil)
	produceAll(t, stream, "a", "b")
	if err := client.Stream("s").Delete(t.Context(), &sqlstreams.OperateOptions{Actor: "ann"}); err != nil {
		t.Fatal(err)
	}
	if n := db.QueryInt(t, `select count(*) from sqlstreams.operator_action where actor = 'ann' and action = 'delete' and object = 'stream "s"' and finished_at is not null
		and detail->>'head' = '2' and detail->>'groups' = '1' and detail->>'dead' = '0'`); n != 1 {
		t.Errorf("%d records", n)
	}
}

func TestOperationsRefuseBadInput(t *testing.T) {
	client, _, _ := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	group(t, stream, "g", nil)
	g := client.Group("s", "g")
	for name, c := range map[string]struct {
		call func() error
		want error
	}{
		"negative rate": {func() error {
			_, err := g.Redrive(t.Context(), nil, &sqlstreams.OperateOptions{Rate: -1})
			return err
		}, sqlstreams.ErrInvalidOption},
		"unknown reason": {func() error {
			_, err := g.Discard(t.Context(), &sqlstreams.DeliveryFilter{Reason: "bored"}, nil)
			return err
		}, sqlstreams.ErrInvalidOption},
		"reason of a delivery": {func() error {
			_, err := g.RetryNow(t.Context(), &sqlstreams.DeliveryFilter{Reason: "terminal"}, nil)
			return err
		}, sqlstreams.ErrInvalidOption},
		"NUL": {func() error {
			_, err := g.DeadGroups(t.Context(), &sqlstreams.DeliveryFilter{Error: "a\x00"})
			return err
		}, sqlstreams.ErrInvalidOption},
		"no UTF-8": {func() error {
			_, err := g.DeadGroups(t.Context(), &sqlstreams.DeliveryFilter{Key: "a\xff"})
			return err
		}, sqlstreams.ErrInvalidOption},
		"limit":      {func() error { _, err := g.DeadLetters(t.Context(), nil, 0, 0); return err }, sqlstreams.ErrInvalidOption},
		"no group":   {func() error { _, err := client.Group("s", "x").Status(t.Context()); return err }, sqlstreams.ErrGroupNotFound},
		"no stream":  {func() error { _, err := client.Group("x", "g").Redrive(t.Context(), nil, nil); return err }, sqlstreams.ErrStreamNotFound},
		"bad name":   {func() error { return client.Group("s", "Not A Name").Pause(t.Context(), nil) }, sqlstreams.ErrInvalidName},
		"bad stream": {func() error { _, err := client.Stream("").Read(t.Context(), 0, 1); return err }, sqlstreams.ErrInvalidName},
		"bad page":   {func() error { _, err := client.Stream("s").Read(t.Context(), 0, 100_000); return err }, sqlstreams.ErrInvalidOption},
		"no JSON": {func() error {
			text := []byte(`{"a":`)
			_, err := client.Stream("s").ProduceBatch(t.Context(), []sqlstreams.Outgoing[[]byte]{{Payload: &text}})
			return err
		}, sqlstreams.ErrInvalidMessage},
	} {
		if err := c.call(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.Redrive(ctx, nil, nil); err == nil {
		t.Error("a redrive under a context that has ended")
	}
}

// bound is three times what a quiet machine needs at the most: tests run beside each other.
func bound(d time.Duration) time.Duration { return 3 * d }
