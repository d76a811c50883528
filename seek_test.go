package sqlstreams_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// visits keeps the ids of messages in the order in which handlers started on them, and their keys.
type visits struct {
	mu   sync.Mutex
	ids  []int64
	keys []string
}

func (v *visits) see(ctx context.Context) int64 {
	meta, _ := sqlstreams.MetaFromContext(ctx)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ids, v.keys = append(v.ids, meta.ID), append(v.keys, meta.Key)
	return meta.ID
}

// take returns what was seen since the last call.
func (v *visits) take() (ids []int64, keys []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	ids, keys, v.ids, v.keys = v.ids, v.keys, nil, nil
	return ids, keys
}

// has says whether all ids from first to last were seen.
func (v *visits) has(first, last int64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	seen := map[int64]bool{}
	for _, id := range v.ids {
		seen[id] = true
	}
	for id := first; id <= last; id++ {
		if !seen[id] {
			return false
		}
	}
	return true
}

func span(first, last int64) (ids []int64) {
	for id := first; id <= last; id++ {
		ids = append(ids, id)
	}
	return ids
}

func seek(t testing.TB, client *sqlstreams.Client, to sqlstreams.Start) *sqlstreams.SeekResult {
	t.Helper()
	preview, err := client.Group("s", "g").Seek(t.Context(), to, &sqlstreams.OperateOptions{DryRun: true})
	if err != nil {
		t.Fatalf("preview of a seek to %q: %v", to, err)
	}
	got, err := client.Group("s", "g").Seek(t.Context(), to, &sqlstreams.OperateOptions{Actor: "tester"})
	if err != nil {
		t.Fatalf("seek to %q: %v", to, err)
	}
	t.Logf("seek to %q: preview %+v, result %+v", to, *preview, *got)
	return got
}

// sameAsPreview compares what a seek does with what its preview says, when nothing moves between.
func sameAsPreview(t testing.TB, client *sqlstreams.Client, to sqlstreams.Start) *sqlstreams.SeekResult {
	t.Helper()
	preview, err := client.Group("s", "g").Seek(t.Context(), to, &sqlstreams.OperateOptions{DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	got, err := client.Group("s", "g").Seek(t.Context(), to, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*sqlstreams.SeekResult{preview, got} {
		for i := range r.Claims {
			// An instance says who it is beside its first claim: that can come between.
			r.Claims[i].ExpiresIn, r.Claims[i].Host, r.Claims[i].PID, r.Claims[i].Alive = 0, "", 0, false
		}
	}
	if !reflect.DeepEqual(preview, got) {
		t.Errorf("the preview of %q says\n%+v, but done was\n%+v", to, preview, got)
	}
	return got
}

// ten is a range of ten messages for one handler.
func ten() *sqlstreams.ConsumeOptions {
	return &sqlstreams.ConsumeOptions{Handlers: 1, BatchLimit: 10, BatchMin: 10, QueueSize: 1}
}

func TestSeekBackAndForthWhileTwoInstancesRun(t *testing.T) {
	client, db, pool := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	const many = 400
	produceAll(t, stream, numbered("a", many)...)
	var seen visits
	other := register[WelcomeEmail](t, openOn(t, pool, nil), "s")
	for _, s := range []*sqlstreams.Stream[WelcomeEmail]{stream, other} {
		consume(t, group(t, s, "g", nil), &sqlstreams.ConsumeOptions{Handlers: 4}, func(ctx context.Context, _ *WelcomeEmail) error {
			seen.see(ctx)
			return nil
		})
	}
	// While they are at work: whatever lies above the target of the last seek back is seen after it, and nothing is lost.
	for _, to := range []int64{0, 150, 30, 250, 0, 399} {
		seen.take()
		got := seek(t, client, sqlstreams.StartAfter(to))
		if to < got.From {
			pgtest.Eventually(t, 30*time.Second, "what lies above the target is seen", func() bool { return seen.has(to+1, got.From) })
		}
	}
	settled(t, client, "s", "g", many)
	// Once they are idle: exactly what the seek tells, once each.
	seen.take()
	for _, to := range []int64{100, 390, 0} {
		got := sameAsPreview(t, client, sqlstreams.StartAfter(to))
		if got.From != many || got.To != to || got.Again != many-to || got.Passed != 0 || got.Clamped {
			t.Errorf("seek to %d: %+v", to, *got)
		}
		pgtest.Eventually(t, 30*time.Second, "they are seen again", func() bool { return seen.has(to+1, many) })
		settled(t, client, "s", "g", many)
		ids, _ := seen.take()
		if slices.Sort(ids); !slices.Equal(ids, span(to+1, many)) {
			t.Errorf("after a seek to %d %d messages were seen, from %d on", to, len(ids), ids[0])
		}
	}
	if n := db.QueryInt(t, `select count(*) from sqlstreams.operator_action where action = 'seek' and actor = 'tester' and finished_at is not null`); n != 6 {
		t.Errorf("%d notes", n)
	}
	if n := db.QueryInt(t, `select count(*) from sqlstreams.done`); n != 0 {
		t.Errorf("%d marks are left", n)
	}
}

// Message 1 is at work in a range of ten when the group is moved to 5: its result is refused, and what is at or below 5 runs again, as what is above it does.
func TestASeekRefusesWhatIsAtWork(t *testing.T) {
	for name, fail := range map[string]error{"success": nil, "failure": errors.New("told to fail"), "terminal": sqlstreams.Terminal(errors.New("told to die"))} {
		t.Run(name, func(t *testing.T) {
			client, _, _ := open(t, nil)
			stream := register[WelcomeEmail](t, client, "s")
			produceAll(t, stream, numbered("a", 12)...)
			var seen visits
			started, leave := make(chan struct{}), make(chan struct{})
			first := sync.OnceFunc(func() { close(started); <-leave })
			instance := group(t, stream, "g", nil)
			consume(t, instance, ten(), func(ctx context.Context, _ *WelcomeEmail) error {
				if seen.see(ctx) != 1 {
					return nil
				}
				select {
				case <-started:
					return nil
				default:
				}
				first()
				return fail
			})
			<-started
			got := sameAsPreview(t, client, sqlstreams.StartAfter(5))
			if got.From != 10 || got.To != 5 || got.Again != 5 || got.Passed != 0 || got.OpenClaims != 1 || len(got.Claims) != 1 || got.Claims[0].High != 10 || got.Claims[0].Instance == "" {
				t.Errorf("%+v", *got)
			}
			pgtest.Eventually(t, 10*time.Second, "the instance has let go of its range", func() bool { return instance.Health().LeaseLost > 0 })
			close(leave)
			s := settled(t, client, "s", "g", 12)
			ids, _ := seen.take()
			if slices.Sort(ids); !slices.Equal(ids, append([]int64{1}, span(1, 12)...)) {
				t.Errorf("seen were %v", ids)
			}
			if s.Dead+s.Pending != 0 {
				t.Errorf("the refused result left %d dead letters and %d deliveries", s.Dead, s.Pending)
			}
		})
	}
}

func TestASeekRefusesTheCommitOfConsumeTx(t *testing.T) {
	client, db, _ := open(t, nil)
	effects(t, db)
	stream := register[WelcomeEmail](t, client, "s")
	produceAll(t, stream, numbered("a", 3)...)
	started, leave := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() { close(started); <-leave })
	var seen visits
	instance := group(t, stream, "g", nil)
	consumeTx(t, instance, ten(), func(ctx context.Context, tx pgx.Tx, m *WelcomeEmail) error {
		err := effect(ctx, tx, m.UserID)
		if seen.see(ctx) == 2 {
			first()
		}
		return err
	})
	<-started
	if got := sameAsPreview(t, client, sqlstreams.Beginning); got.To != 0 || got.Again != 3 || got.OpenClaims != 1 {
		t.Errorf("%+v", *got)
	}
	pgtest.Eventually(t, 10*time.Second, "the instance has let go of its range", func() bool { return instance.Health().LeaseLost > 0 })
	close(leave)
	settled(t, client, "s", "g", 3)
	ids, _ := seen.take()
	if want := []int64{1, 1, 2, 2, 3}; !slices.Equal(slices.Sorted(slices.Values(ids)), want) {
		t.Errorf("seen were %v, not %v", ids, want)
	}
	// The first message had committed before the seek, which tells it to run again; the second had not.
	if n := queryText(t, db, `select string_agg(who || ' ' || n, ', ' order by who) from (select who, count(*) as n from effect group by who) q`); n != "a-0 2, a-1 1, a-2 1" {
		t.Errorf("effects: %s", n)
	}
}

// The instance forgets what it had queued: nothing of the range starts after the seek, and what comes later does.
func TestASeekForwardPassesOverWhatIsQueued(t *testing.T) {
	client, _, _ := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	produceAll(t, stream, numbered("a", 30)...)
	started, leave := make(chan struct{}), make(chan struct{})
	var seen visits
	instance := group(t, stream, "g", nil)
	consume(t, instance, ten(), func(ctx context.Context, _ *WelcomeEmail) error {
		if seen.see(ctx) == 1 {
			close(started)
			<-leave
		}
		return nil
	})
	<-started
	got := sameAsPreview(t, client, sqlstreams.Head)
	if got.From != 10 || got.To != 30 || got.Again != 0 || got.Passed != 30 || got.Clamped || got.OpenClaims != 1 {
		t.Errorf("%+v", *got)
	}
	pgtest.Eventually(t, 10*time.Second, "the instance has let go of its range", func() bool { h := instance.Health(); return h.LeaseLost > 0 && h.Queued == 0 })
	close(leave)
	produceAll(t, stream, "later")
	settled(t, client, "s", "g", 31)
	if ids, _ := seen.take(); !slices.Equal(ids, []int64{1, 31}) {
		t.Errorf("seen were %v", ids)
	}
}

// Dead letters and the deliveries at or below the target stay; deliveries above it go. What a letter parked runs again in order.
func TestASeekKeepsDeadLettersAndLowerRetries(t *testing.T) {
	client, db, _ := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", &sqlstreams.ConsumerConfig{KeyOrder: sqlstreams.Ordered, ParkKeyOnDeadLetter: true, Message: &sqlstreams.MessageOptions{BaseDelay: time.Hour, MaxDelay: time.Hour}})
	var batch []sqlstreams.Outgoing[WelcomeEmail]
	for i, key := range []string{"low", "p", "p", "q", "q"} {
		batch = append(batch, sqlstreams.Outgoing[WelcomeEmail]{Payload: &WelcomeEmail{UserID: fmt.Sprint(i + 1)}, Options: &sqlstreams.ProduceOptions{Key: key}})
	}
	if _, err := stream.Producer(nil).ProduceBatch(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	var seen visits
	mended := make(chan struct{})
	consume(t, instance, nil, func(ctx context.Context, _ *WelcomeEmail) error {
		id := seen.see(ctx)
		select {
		case <-mended:
			return nil
		default:
		}
		switch id {
		case 1, 4:
			return errors.New("not yet")
		case 2:
			return sqlstreams.Terminal(errors.New("never"))
		}
		return nil
	})
	pgtest.Eventually(t, 20*time.Second, "one is dead, two wait for their retry and two for their key", func() bool {
		s, err := client.Group("s", "g").Status(t.Context())
		return err == nil && s.Dead == 1 && s.Pending == 2 && s.Waiting == 2 && s.OpenClaims == 0 && s.Running == 0
	})
	seen.take()
	// Forward: nothing of it is touched.
	if got := sameAsPreview(t, client, sqlstreams.Head); got.Dropped != 0 || got.Again != 0 || got.Passed != 0 {
		t.Errorf("%+v", *got)
	}
	close(mended)
	if got := sameAsPreview(t, client, sqlstreams.StartAfter(1)); got.Dropped != 3 || got.Dead != 1 || got.Again != 4 {
		t.Errorf("%+v", *got)
	}
	pgtest.Eventually(t, 20*time.Second, "what lies above the target is seen", func() bool { return seen.has(2, 5) })
	pgtest.Eventually(t, 20*time.Second, "only the lower retry is left", func() bool {
		s, err := client.Group("s", "g").Status(t.Context())
		return err == nil && s.Dead == 1 && s.Pending == 1 && s.Waiting == 0 && s.OpenClaims == 0 && s.Running == 0
	})
	ids, keys := seen.take()
	inOrder(t, ids, keys)
	if slices.Sort(ids); !slices.Equal(ids, span(2, 5)) {
		t.Errorf("seen were %v", ids)
	}
	if n := db.QueryInt(t, `select count(*) from sqlstreams.dead_letter where message_id = 2 and parks is null`); n != 1 {
		t.Error("the dead letter is gone, or parks its key")
	}
	if n := db.QueryInt(t, `select message_id from sqlstreams.delivery`); n != 1 {
		t.Errorf("delivery %d is left", n)
	}
}

// inOrder checks that each key's messages started in the order of their ids.
func inOrder(t testing.TB, ids []int64, keys []string) {
	t.Helper()
	last := map[string]int64{}
	for i, id := range ids {
		if id <= last[keys[i]] {
			t.Errorf("message %d of key %s started after %d", id, keys[i], last[keys[i]])
		}
		last[keys[i]] = id
	}
}

func TestOrderedKeysAreInOrderAfterASeek(t *testing.T) {
	client, _, pool := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	const many = 200
	var batch []sqlstreams.Outgoing[WelcomeEmail]
	for i := range many {
		batch = append(batch, sqlstreams.Outgoing[WelcomeEmail]{Payload: &WelcomeEmail{}, Options: &sqlstreams.ProduceOptions{Key: fmt.Sprint("k", i%7)}})
	}
	if _, err := stream.Producer(nil).ProduceBatch(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	var seen visits
	config := &sqlstreams.ConsumerConfig{KeyOrder: sqlstreams.Ordered}
	for _, s := range []*sqlstreams.Stream[WelcomeEmail]{stream, register[WelcomeEmail](t, openOn(t, pool, nil), "s")} {
		consume(t, group(t, s, "g", config), &sqlstreams.ConsumeOptions{Handlers: 4, BatchLimit: 20}, func(ctx context.Context, _ *WelcomeEmail) error {
			seen.see(ctx)
			return nil
		})
	}
	for _, to := range []int64{0, 77, 150, 3} {
		pgtest.Eventually(t, 30*time.Second, "the keys' messages are seen", func() bool { return seen.has(many, many) })
		settled(t, client, "s", "g", many)
		seen.take()
		sameAsPreview(t, client, sqlstreams.StartAfter(to))
		pgtest.Eventually(t, 30*time.Second, "they are seen again", func() bool { return seen.has(to+1, many) })
		s := settled(t, client, "s", "g", many)
		if s.Waiting != 0 {
			t.Errorf("%d wait", s.Waiting)
		}
		seen.mu.Lock()
		ids, keys := slices.Clone(seen.ids), slices.Clone(seen.keys)
		seen.mu.Unlock()
		inOrder(t, ids, keys)
		if slices.Sort(ids); !slices.Equal(ids, span(to+1, many)) {
			t.Errorf("%d were seen", len(ids))
		}
	}
}

func TestPositions(t *testing.T) {
	log := &lines{}
	client, db, _ := open(t, &sqlstreams.ClientConfig{Logger: log.logger(), DisableManager: true})
	stream := register[WelcomeEmail](t, client, "s")
	produceAll(t, stream, numbered("a", 20)...)
	// As if they had come in pairs, an hour apart, with a hole at 9 to 12.
	noon := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	db.Exec(t, `update sqlstreams.log_1 l set appended_at = $1::timestamptz + (l.id - 1) / 2 * interval '1 hour'`, noon)
	db.Exec(t, `delete from sqlstreams.log_1 l where l.id between 9 and 12`)
	at := func(hours float64) sqlstreams.Start {
		return sqlstreams.StartAt(noon.Add(time.Duration(hours * float64(time.Hour))))
	}
	group(t, stream, "g", nil)
	for i, c := range []struct {
		to      sqlstreams.Start
		behind  int64
		clamped bool
	}{
		{sqlstreams.Beginning, 0, false}, {sqlstreams.Head, 20, false}, {sqlstreams.StartAfter(0), 0, false}, {sqlstreams.StartAfter(7), 7, false}, {sqlstreams.StartAfter(20), 20, false},
		{sqlstreams.StartAfter(21), 20, true}, {at(-1), 0, false}, {at(0), 0, false}, {at(0.5), 2, false}, {at(1), 2, false}, {at(3), 6, false}, {at(9), 18, false}, {at(9.5), 20, false},
		{sqlstreams.StartAt(time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)), 20, true}, {sqlstreams.StartAt(time.Time{}), 0, false},
	} {
		if got := sameAsPreview(t, client, c.to); got.To != c.behind || got.Clamped != c.clamped {
			t.Errorf("%q: behind %d, clamped %v; wanted %d, %v", c.to, got.To, got.Clamped, c.behind, c.clamped)
		}
		name := fmt.Sprint("new", i)
		group(t, stream, name, &sqlstreams.ConsumerConfig{Start: c.to})
		if s, err := client.Group("s", name).Status(t.Context()); err != nil || s.Claimed != c.behind {
			t.Errorf("a group that starts at %q stands at %d: %v", c.to, s.Claimed, err)
		}
	}
	// In the hole: the next message that is there is 13, wherever in the hole the group stands.
	if got := seek(t, client, at(4)); got.To < 8 || got.To > 12 {
		t.Errorf("behind %d", got.To)
	}
	// What is gone is not stood before.
	db.Exec(t, `update sqlstreams.stream set first_id = 6`)
	for _, to := range []sqlstreams.Start{sqlstreams.Beginning, sqlstreams.StartAfter(2), at(0), at(1)} {
		if got := seek(t, client, to); got.To != 5 || got.Clamped != (to != sqlstreams.Beginning) {
			t.Errorf("%q: %+v", to, *got)
		}
	}
	// A changed start of a group that exists is reported and not applied; the same is not.
	group(t, stream, "new3", &sqlstreams.ConsumerConfig{Start: sqlstreams.StartAfter(7)})
	if found := log.find(t, "code", "SQL0011"); len(found) != 0 {
		t.Errorf("the same start is reported: %v", found)
	}
	group(t, stream, "new3", &sqlstreams.ConsumerConfig{Start: at(3)})
	if found := log.find(t, "code", "SQL0011"); len(found) != 1 || found[0]["stored"] != "after 7" || found[0]["given"] != "at 2026-01-31T15:00:00Z" {
		t.Errorf("a changed start is reported as %v", found)
	}
	if s, err := client.Group("s", "new3").Status(t.Context()); err != nil || s.Claimed != 7 {
		t.Errorf("the group was moved to %d: %v", s.Claimed, err)
	}
}

func TestPositionsThatAreRefused(t *testing.T) {
	client, _, _ := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	group(t, stream, "g", nil)
	for _, to := range []sqlstreams.Start{"", "end", "after x", "after -1", "after 07", "at noon", sqlstreams.StartAfter(-1), sqlstreams.StartAt(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)),
		sqlstreams.StartAt(time.Date(-5, 1, 1, 0, 0, 0, 0, time.UTC)), "at 2026-01-31T12:00:00+02:00"} {
		_, err := client.Group("s", "g").Seek(t.Context(), to, nil)
		coded(t, err, sqlstreams.ErrInvalidOption, false)
		if to != "" {
			_, err = stream.RegisterConsumer(t.Context(), "g", &sqlstreams.ConsumerConfig{Start: to})
			coded(t, err, sqlstreams.ErrInvalidOption, false)
		}
	}
	_, err := client.Group("s", "g").Seek(t.Context(), sqlstreams.Head, &sqlstreams.OperateOptions{Actor: strings.Repeat("a", 201)})
	coded(t, err, sqlstreams.ErrInvalidOption, false)
	_, err = client.Group("s", "none").Seek(t.Context(), sqlstreams.Head, nil)
	coded(t, err, sqlstreams.ErrGroupNotFound, false)
	_, err = client.Group("none", "g").Seek(t.Context(), sqlstreams.Head, nil)
	coded(t, err, sqlstreams.ErrStreamNotFound, false)
}
