package manager

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
	"github.com/sqlstreams/sqlstreams/internal/schema"
	"github.com/sqlstreams/sqlstreams/internal/store"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// leases is the part of a Store that runners share.
type leases struct {
	Store
	mu   sync.Mutex
	held map[string]struct {
		holder uuid.UUID
		until  time.Time
	}
	taken int
}

func (l *leases) TakeDuty(_ context.Context, name string, holder uuid.UUID, d time.Duration) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken++
	h := l.held[name]
	if h.holder != holder && time.Now().Before(h.until) {
		return false, nil
	}
	if l.held == nil {
		l.held = map[string]struct {
			holder uuid.UUID
			until  time.Time
		}{}
	}
	h.holder, h.until = holder, time.Now().Add(d)
	l.held[name] = h
	return true, nil
}

func (l *leases) FreeDuties(_ context.Context, names []string, holder uuid.UUID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range names {
		if l.held[name].holder == holder {
			delete(l.held, name)
		}
	}
	return nil
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func TestOneRunnerHoldsADuty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{}
		var mu sync.Mutex
		passes := map[string]int{}
		duty := func(who string) []Duty {
			return []Duty{{Name: "inbox", Every: time.Second, RunOnce: func(context.Context, Store) error {
				mu.Lock()
				defer mu.Unlock()
				passes[who]++
				return nil
			}}}
		}
		a := Start(l, quiet(), duty("a"))
		time.Sleep(5 * time.Second)
		b := Start(l, quiet(), duty("b"))
		time.Sleep(10 * time.Minute)
		count := func() (int, int) {
			mu.Lock()
			defer mu.Unlock()
			return passes["a"], passes["b"]
		}
		l.mu.Lock()
		taken := l.taken
		l.mu.Unlock()
		before, other := count()
		if before < 300 || other != 0 {
			t.Errorf("%d and %d passes: want all from the holder", before, other)
		}
		if taken > before/4 {
			t.Errorf("%d attempts to take the duty for %d passes", taken, before)
		}
		a.Stop(t.Context())
		before, _ = count()
		time.Sleep(2 * time.Minute)
		b.Stop(t.Context())
		if after, other := count(); after != before || other == 0 {
			t.Errorf("after the holder's stop: %d passes, the other %d", after-before, other)
		}
	})
}

func TestFailuresAreToldOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		r := Start(&leases{}, slog.New(slog.NewTextHandler(&out, nil)), []Duty{{Name: "x", Every: time.Second, RunOnce: func(context.Context, Store) error {
			return errors.New("no luck")
		}}})
		time.Sleep(5*time.Minute + time.Second)
		r.Stop(t.Context())
		if n := strings.Count(out.String(), "SQL0204"); n < 5 || n > 6 {
			t.Errorf("told %d times in five minutes", n)
		}
	})
}

func TestStopInEveryState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := Start(&leases{}, quiet(), []Duty{{Name: "x", Every: time.Second, RunOnce: func(ctx context.Context, _ Store) error {
			<-ctx.Done()
			return ctx.Err()
		}}})
		time.Sleep(10 * time.Second) // a pass hangs
		began := time.Now()
		r.Stop(t.Context())
		if took := time.Since(began); took > time.Second {
			t.Errorf("stopped after %v", took)
		}
		Start(&leases{}, quiet(), []Duty{{Name: "y", Every: time.Second, RunOnce: func(context.Context, Store) error { return nil }}}).Stop(t.Context())
	})
}

// A stop that comes while a duty is being taken gives it back all the same.
func TestStopWhileADutyIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &slowLeases{}
		r := Start(l, quiet(), []Duty{{Name: "x", Every: time.Second, RunOnce: func(context.Context, Store) error { return nil }}})
		time.Sleep(time.Second) // the taking lasts two
		r.Stop(t.Context())
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.taken != 1 || len(l.held) != 0 {
			t.Errorf("taken %d times, still held: %v", l.taken, l.held)
		}
	})
}

// slowLeases commits late, also when nobody waits for it any more, as a server does.
type slowLeases struct{ leases }

func (l *slowLeases) TakeDuty(ctx context.Context, name string, holder uuid.UUID, d time.Duration) (bool, error) {
	done := make(chan bool, 1)
	go func() {
		time.Sleep(2 * time.Second)
		held, _ := l.leases.TakeDuty(context.Background(), name, holder, d)
		done <- held
	}()
	select {
	case held := <-done:
		return held, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// Each duty does its work on a real database, and again nothing when there is nothing to do.
func TestDutiesDoTheirWork(t *testing.T) {
	ctx := context.Background()
	db := pgtest.NewDatabase(t)
	pool := db.Pool(t)
	names, err := schema.NewNames("sqlstreams")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := schema.Up(ctx, conn, names); err != nil {
		t.Fatal(err)
	}
	conn.Release()
	s := store.New(names, pool, pool, 0, quiet())
	stream := func(name string) int {
		st, err := s.RegisterStream(ctx, name, store.KindJSON, []byte(`{"v":1}`), false, 10)
		if err != nil {
			t.Fatal(err)
		}
		return st.ID
	}
	a, gone := stream("a"), stream("gone")
	g, err := s.RegisterGroup(ctx, a, "g", []byte(`{"v":1}`), false, time.Second, 3, "beginning")
	if err != nil {
		t.Fatal(err)
	}
	put := func(stream int) {
		tx, err := pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		one := []store.Outgoing{{Payload: []byte(`1`), Version: 1}}
		for range 25 {
			if err := s.PutTx(ctx, tx, stream, store.KindJSON, one); err != nil {
				t.Fatal(err)
			}
		}
		if stream == gone {
			// The stream is deleted while the transaction is open.
			if err := s.DropStream(ctx, gone, "ann"); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
	}
	put(a)
	put(gone)
	for range 5 {
		if _, err := s.Work(ctx, &delivery.WorkRequest{Group: g.ID, Stream: a, Instance: uuid.New(), RangeToken: uuid.New(), MaxMessages: 2, MaxBytes: 1000, Margins: time.Second}); err != nil {
			t.Fatal(err)
		}
	}
	db.Exec(t, `insert into sqlstreams.producer_batch (producer, batch, created_at) select gen_random_uuid(), 1, now() - h * interval '59 minutes' from generate_series(0, 3) h`)
	db.Exec(t, `insert into sqlstreams.attempt (group_id, message_id, attempt, kind, ended_at) select 1, 1, 1, 'retry', now() - d * interval '5 days' from generate_series(3, 0, -1) d`)
	db.Exec(t, `insert into sqlstreams.instance (id, group_id, host, pid, seen_at) select gen_random_uuid(), 1, 'h', 1, now() - m * interval '4 minutes' from generate_series(0, 3) m`)
	db.Exec(t, `insert into sqlstreams.idempotency_key (stream_id, key, batch, taken_at, expires_at) select 1, 'k' || h, gen_random_uuid(), now() - interval '2 hours', now() + h * interval '1 minute' from generate_series(-2, 1) h`)
	db.Exec(t, `insert into sqlstreams.idempotency_id (stream_id, key, message_id, recorded_at) select 1, 'k' || h, 10 + h, now() - interval '1 hour' from generate_series(-2, 1) h`)
	db.Exec(t, `insert into sqlstreams.stream (name, payload_kind, config, state, updated_at) values ('half', 'json', '{}', 'deleting', now() - interval '2 minutes')`)

	// Keys 7 and -10 are nobody's, and deliveries wait; key 8 is held by a claim, key 9 by a delivery that runs; key 11 has an ordered one that waits for its retry.
	db.Exec(t, `insert into sqlstreams.delivery (group_id, message_id, state, due_at, key_hash, ordered, token, expires_at) select 1, x.id, x.state, now() + x.due * interval '1 second', x.hash, true,
		case when x.state = 'running' then gen_random_uuid() end, case when x.state = 'running' then now() + interval '1 minute' end
		from (values (101, 'waiting', 0, 7), (102, 'waiting', 0, 7), (103, 'waiting', 0, 8), (104, 'running', 0, 9), (105, 'waiting', 0, 9), (106, 'waiting', 0, -10), (107, 'pending', 60, 11), (108, 'waiting', 0, 11)) as x (id, state, due, hash)`)
	db.Exec(t, `insert into sqlstreams.claim (group_id, low, high, token, expires_at, ceiling_ms, instance, key_hashes) values (1, 90, 99, gen_random_uuid(), now() + interval '1 minute', 1, gen_random_uuid(), '{8}')`)

	announced := map[int]bool{}
	for range 2 {
		for _, duty := range Duties(func(stream int) { announced[stream] = true }) {
			if err := duty.RunOnce(ctx, s); err != nil {
				t.Errorf("%s: %v", duty.Name, err)
			}
		}
	}
	if !announced[a] || len(announced) != 1 {
		t.Errorf("announced: %v, want stream %d", announced, a)
	}
	for what, q := range map[string]struct {
		sql  string
		want int64
	}{
		"messages with ids":                          {`select count(*) from sqlstreams.log_1`, 25},
		"rows in the inbox":                          {`select count(*) from sqlstreams.inbox`, 0},
		"partitions ahead":                           {`select count(*) from sqlstreams.partition where stream_id = 1 and state = 'ahead'`, 2},
		"woken, the first of a key that is nobody's": {`select count(*) from sqlstreams.delivery where state = 'pending' and message_id in (101, 106) and due_at <= now()`, 2},
		"waiting still, with reason":                 {`select count(*) from sqlstreams.delivery where state = 'waiting' and message_id in (102, 103, 105, 108)`, 4},
		"rows of cursors":                            {`select count(*) from sqlstreams.cursor`, 1},
		"batches younger than an hour":               {`select count(*) from sqlstreams.producer_batch`, 2},
		"attempts younger than a week":               {`select count(*) from sqlstreams.attempt`, 2},
		"idempotency keys that count":                {`select count(*) from sqlstreams.idempotency_key`, 1},
		"ids under keys that count":                  {`select count(*) from sqlstreams.idempotency_id where key = 'k1'`, 1},
		"ids under keys":                             {`select count(*) from sqlstreams.idempotency_id`, 1},
		"instances seen in five minutes":             {`select count(*) from sqlstreams.instance`, 2},
		"streams that are there or being deleted":    {`select count(*) from sqlstreams.stream`, 1},
	} {
		if got := db.QueryInt(t, q.sql); got != q.want {
			t.Errorf("%s: %d, want %d", what, got, q.want)
		}
	}
}

// A pass that may take long renews its lease meanwhile, and ends when somebody else has taken it; a kick starts a pass at once.
func TestLongPassesKeepTheirLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &leases{}
		began, ended := make(chan time.Time, 10), make(chan time.Time, 10)
		r := Start(l, quiet(), []Duty{{Name: "long", Every: 24 * time.Hour, Longest: time.Hour, RunOnce: func(ctx context.Context, _ Store) error {
			began <- time.Now()
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Minute):
			}
			ended <- time.Now()
			return nil
		}}})
		start := <-began
		if took := (<-ended).Sub(start); took != 5*time.Minute {
			t.Errorf("a pass of five minutes was ended after %v", took)
		}
		synctest.Wait()
		l.mu.Lock()
		if h := l.held["long"]; h.holder != r.holder || time.Until(h.until) < lease/2 {
			t.Errorf("the lease ends in %v", time.Until(h.until))
		}
		l.mu.Unlock()
		r.Kick("long")
		r.Kick("nothing")
		start = <-began
		l.mu.Lock()
		h := l.held["long"]
		h.holder = uuid.New()
		l.held["long"] = h
		l.mu.Unlock()
		if took := (<-ended).Sub(start); took > lease/2 {
			t.Errorf("it went on for %v after the lease was lost", took)
		}
		r.Stop(t.Context())
	})
}
