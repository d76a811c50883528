package reference_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
	"github.com/sqlstreams/sqlstreams/internal/reference"
	"github.com/sqlstreams/sqlstreams/internal/schema"
	"github.com/sqlstreams/sqlstreams/internal/store"
)

// lanes is how many histories are played at once. Most of them wait for a lease or a backoff.
const lanes = 24

// postgresScale is for real time: everything is over in moments but for the leases of the dead.
func postgresScale() reference.Scale {
	const ms = time.Millisecond
	return reference.Scale{
		Messages: 14, Takes: []time.Duration{0, 0, 0, ms, 4 * ms}, Delays: []time.Duration{ms, 20 * ms}, Backoffs: []time.Duration{ms, 10 * ms}, Pauses: []time.Duration{0, 2 * ms, 20 * ms}, Deaths: 70, Compacted: 20,
	}
}

// The same on real Postgres, with three instances and more whose connections are cut: the same visible outcome.
func TestHistoriesOnPostgres(t *testing.T) {
	t.Parallel()
	first, count := setting(t, "SQLSTREAMS_SEED", 1), setting(t, "SQLSTREAMS_HISTORIES", 500)
	in := install(t)
	seeds := make(chan uint64)
	var mu sync.Mutex
	var failed []uint64
	deaths := 0
	var wg sync.WaitGroup
	for range lanes {
		wg.Go(func() {
			l := &lane{in: in}
			defer l.close()
			for seed := range seeds {
				plan := reference.Draw(seed, postgresScale())
				objections, died := l.play(t.Context(), plan)
				mu.Lock()
				deaths += min(died, 1)
				for _, o := range objections {
					t.Errorf("seed %d: %s", seed, o)
				}
				if len(objections) > 0 {
					failed = append(failed, seed)
					t.Logf("play it again with SQLSTREAMS_SEED=%d SQLSTREAMS_HISTORIES=1:\n%v", seed, plan)
				}
				mu.Unlock()
			}
		})
	}
	for seed := first; seed < first+count; seed++ {
		mu.Lock()
		enough := len(failed) >= 3
		mu.Unlock()
		if enough {
			break
		}
		seeds <- uint64(seed)
	}
	close(seeds)
	wg.Wait()
	if len(failed) > 0 {
		t.Fatalf("these seeds failed: %v", failed)
	}
	if count >= 100 && deaths < count/5 {
		t.Errorf("an instance died in %d of %d histories, less than a fifth", deaths, count)
	}
	var removed int64
	if err := in.pool.QueryRow(t.Context(), in.names.Expand(`select coalesce(sum(removed), 0) from {schema}.compaction`)).Scan(&removed); err != nil || count >= 100 && removed == 0 {
		t.Errorf("compaction removed %d messages, %v", removed, err)
	}
	t.Logf("%d histories from seed %d, an instance died in %d; compaction removed %d messages", count, first, deaths, removed)
}

// installation is a database with the schema in it, and a store for whoever does not die.
type installation struct {
	*store.Store
	dsn   string
	names *schema.Names
	pool  *pgxpool.Pool

	mu      sync.Mutex
	playing map[int]*postgresStage // by group
}

func install(t *testing.T) *installation {
	db := pgtest.NewDatabase(t)
	pool := db.PoolConfig(t, func(c *pgxpool.Config) { c.MaxConns = 12 })
	names, err := schema.NewNames("sqlstreams")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := schema.Up(t.Context(), conn, names); err != nil {
		t.Fatal(err)
	}
	in := &installation{Store: store.New(names, pool, pool, 0, quiet()), dsn: db.DSN, names: names, pool: pool, playing: make(map[int]*postgresStage)}
	ctx, end := context.WithCancel(context.WithoutCancel(t.Context()))
	probed := make(chan error, 1)
	go func() { probed <- in.probe(ctx) }()
	t.Cleanup(func() {
		end()
		if err := <-probed; err != nil {
			t.Error(err)
		}
	})
	return in
}

// probe wakes who has something to do, in place of the hub.
func (in *installation) probe(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		in.mu.Lock()
		var groups []int
		for g := range in.playing {
			groups = append(groups, g)
		}
		in.mu.Unlock()
		if len(groups) == 0 {
			continue
		}
		found, err := in.Probe(context.WithoutCancel(ctx), groups)
		if err != nil {
			return err
		}
		in.mu.Lock()
		for _, f := range found {
			if s := in.playing[f.Group]; s != nil && !f.Paused && (f.Head > f.Claimed || f.Due || f.Expired) {
				s.wakeAll()
			}
		}
		in.mu.Unlock()
	}
}

// lane plays one history after another, and keeps its instances' connections.
type lane struct {
	in    *installation
	slots []*slot
}

// slot is an instance's connection.
type slot struct {
	*store.Store
	pool *pgxpool.Pool
	cord *cord
}

func (l *lane) close() {
	for _, s := range l.slots {
		s.pool.Close()
	}
}

// slot returns the n-th instance's connection, a new one if the last was cut.
func (l *lane) slot(n int) (*slot, error) {
	for len(l.slots) <= n {
		l.slots = append(l.slots, nil)
	}
	if s := l.slots[n]; s != nil && !s.cord.isCut() {
		return s, nil
	} else if s != nil {
		s.pool.Close()
	}
	c, err := pgxpool.ParseConfig(l.in.dsn)
	if err != nil {
		return nil, err
	}
	s := &slot{cord: &cord{}}
	c.MaxConns = 1
	c.ConnConfig.DialFunc = s.cord.dial
	if s.pool, err = pgxpool.NewWithConfig(context.Background(), c); err != nil {
		return nil, err
	}
	s.Store = store.New(l.in.names, s.pool, s.pool, 0, quiet())
	l.slots[n] = s
	return s, nil
}

func (l *lane) play(ctx context.Context, plan *reference.Plan) (objections []string, died int) {
	ctx, end := context.WithTimeout(ctx, 2*time.Minute)
	defer end()
	// Leases are so long that a loaded machine breaks none. Those of an instance that has died with its handlers are ended by hand; only one that is cut off and goes on working must be waited for.
	timeout, margin := 10*time.Second, 10*time.Second
	if slices.ContainsFunc(plan.Deaths, func(d reference.Death) bool { return d.Cut }) {
		timeout, margin = time.Second, 1200*time.Millisecond
	}
	s := &postgresStage{installation: l.in, lane: l, ctx: ctx}
	if err := s.open(plan, timeout); err != nil {
		return []string{err.Error()}, 0
	}
	defer s.shut()
	p := &play{
		plan: plan, told: plan, rec: reference.NewRecorder(plan, false), stage: s, timeout: timeout,
		options: consume.Options{QueueMargin: margin, TimeoutGrace: 50 * time.Millisecond, RecordMargin: margin, StopTimeout: time.Second},
	}
	return p.act(ctx), p.rec.Deaths()
}

// postgresStage is a stream and a group on Postgres.
type postgresStage struct {
	*installation
	lane          *lane
	ctx           context.Context
	stream, group int
	head          int64
	batch         int64
	producer      uuid.UUID

	mu     sync.Mutex
	wakers []*waker
	died   []string // instances
}

func (s *postgresStage) open(plan *reference.Plan, timeout time.Duration) error {
	s.producer = uuid.New()
	st, err := s.RegisterStream(s.ctx, fmt.Sprintf("s%d-%s", plan.Seed, s.producer), store.KindJSON, streamConfig(plan), false, 0)
	if err != nil {
		return err
	}
	g, err := s.RegisterGroup(s.ctx, st.ID, "g", groupConfig(plan), false, timeout, plan.MaxReclaims, "beginning")
	if err != nil {
		return err
	}
	s.stream, s.group = st.ID, g.ID
	s.installation.mu.Lock()
	s.playing[s.group] = s
	s.installation.mu.Unlock()
	return nil
}

// streamConfig is the stream's stored config, as far as it is read by statements.
func streamConfig(plan *reference.Plan) []byte {
	if !plan.Compacted() {
		return []byte(`{"v":1}`)
	}
	return []byte(`{"v":1,"keyed":true,"compacted":true,"compaction_lag_ms":0.001,"tombstone_ttl_ms":1000}`)
}

func (s *postgresStage) shut() {
	s.installation.mu.Lock()
	defer s.installation.mu.Unlock()
	delete(s.playing, s.group)
}

func (s *postgresStage) link(number int) (consume.Store, func(), error) {
	slot, err := s.lane.slot(number - 1)
	if err != nil {
		return nil, nil, err
	}
	return slot.Store, slot.cord.cut, nil
}

// waker wakes a session when it is told to.
type waker struct{ c chan struct{} }

func (w *waker) C() <-chan struct{} { return w.c }
func (w *waker) Looked(bool)        {}

func (w *waker) wake() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}

func (s *postgresStage) waker(context.Context) (consume.Waker, func()) {
	w := &waker{c: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wakers = append(s.wakers, w)
	return w, func() {}
}

func (s *postgresStage) wakeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.wakers {
		w.wake()
	}
}

func (s *postgresStage) gone(instance uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.died = append(s.died, instance.String())
}

// endLeases ends the leases of instances that have died. A call of theirs may have been on its way, so this is done again and again.
func (s *postgresStage) endLeases() error {
	s.mu.Lock()
	died := slices.Clone(s.died)
	s.mu.Unlock()
	for _, table := range []string{"claim", "delivery"} {
		sql := s.names.Expand(`update {schema}.` + table + ` set expires_at = clock_timestamp() where group_id = $1 and instance::text = any ($2) and expires_at > clock_timestamp()`)
		if len(died) == 0 {
			return nil
		}
		tag, err := s.pool.Exec(s.ctx, sql, s.group, died)
		if err != nil {
			return err
		}
		if tag.RowsAffected() > 0 {
			s.wakeAll() // else they would wait for the end that they were told
		}
	}
	return nil
}

func (s *postgresStage) ids() (stream, group int) { return s.stream, s.group }
func (s *postgresStage) strict() bool             { return false }
func (s *postgresStage) fault(string, int)        {}

func (s *postgresStage) produce(msgs []delivery.Message) (int64, error) {
	out := make([]store.Outgoing, len(msgs))
	for i, m := range msgs {
		out[i] = store.Outgoing{Payload: m.Payload, Version: 1, Key: m.Key, Options: m.Options}
	}
	s.batch++
	reply, err := s.Append(s.ctx, &store.AppendRequest{Stream: s.stream, Kind: store.KindJSON, Producer: s.producer, Batch: s.batch, Wait: time.Second, Messages: out})
	if err != nil {
		return 0, err
	}
	s.head = reply.First + int64(len(msgs)) - 1
	s.wakeAll()
	return s.head, nil
}

func (s *postgresStage) pause(paused bool) error {
	defer s.wakeAll()
	return s.SetPaused(s.ctx, s.group, paused, "test", "g")
}

func (s *postgresStage) dead() (map[int64]reference.Letter, error) {
	all := make(map[int64]reference.Letter)
	err := s.each(`select message_id, reason, attempts from {schema}.dead_letter where group_id = $1`, func(row pgx.Rows) error {
		var id int64
		var l reference.Letter
		if err := row.Scan(&id, &l.Reason, &l.Attempts); err != nil {
			return err
		}
		all[id] = l
		return nil
	})
	return all, err
}

func (s *postgresStage) operate(action string, ids []int64) error {
	op := &store.Operation{Group: s.group, Action: action, Filter: &store.Filter{IDs: ids}, Actor: "test", Object: "g"}
	for more := true; more; {
		var err error
		if _, more, err = s.Step(s.ctx, op, 500); err != nil {
			return err
		}
	}
	return nil
}

// remove compacts the stream, which knows itself what has a newer version.
func (s *postgresStage) remove([]int64) error {
	for {
		reply, err := s.Compact(s.ctx, s.stream, 100)
		if err != nil || !reply.More {
			return err
		}
	}
}

// unresolved reads all that is open in one statement, so in one moment.
func (s *postgresStage) unresolved() (waiting, open []int64, err error) {
	err = s.each(`
		select 'claim', low, high from {schema}.claim where group_id = $1
		union all select state, message_id - 1, message_id from {schema}.delivery where group_id = $1
		union all select 'fresh', max(claimed), null from {schema}.cursor where group_id = $1`, func(row pgx.Rows) error {
		var what string
		var low int64
		var high *int64
		if err := row.Scan(&what, &low, &high); err != nil {
			return err
		}
		if high == nil {
			high = &s.head
		}
		for id := low + 1; id <= *high; id++ {
			if what == "waiting" {
				waiting = append(waiting, id)
			} else {
				open = append(open, id)
			}
		}
		return nil
	})
	return waiting, open, err
}

// each runs a query about the group.
func (s *postgresStage) each(sql string, f func(pgx.Rows) error) error {
	rows, err := s.pool.Query(s.ctx, s.names.Expand(sql), s.group)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (s *postgresStage) settle(what string, holds func() (bool, error)) error {
	deadline := time.Now().Add(30 * time.Second)
	for n := 0; ; n++ {
		if n%10 == 0 {
			if err := s.endLeases(); err != nil {
				return err
			}
		}
		if ok, err := holds(); ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within half a minute: %s", what)
		}
		s.sleep(10 * time.Millisecond)
	}
}

// sleep lets time pass, where that is a part of the plan, or until the database is asked again.
func (s *postgresStage) sleep(d time.Duration) { <-time.NewTimer(d).C }
