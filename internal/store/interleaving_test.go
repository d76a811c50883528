package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
	"github.com/sqlstreams/sqlstreams/internal/schema"
)

// Histories: random interleavings over real connections of begin, produce, commit, roll back, append, drain, claim and kill on one stream, with the checker's question at
// the end: was everything that was committed claimed once, in an order that nobody can object to? SQLSTREAMS_HISTORIES sets how many, SQLSTREAMS_SEED the first seed.

const (
	defaultHistories = 1000
	historyWorkers   = 4
)

// manyConns gives each actor of each history a connection.
func manyConns(c *pgxpool.Config) { c.MaxConns = 6 * historyWorkers }

func setting(t testing.TB, name string, def int) int {
	text := os.Getenv(name)
	if text == "" {
		return def
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s=%q is not a number", name, text)
	}
	return n
}

func TestInterleavings(t *testing.T) {
	t.Parallel()
	in := installAs(t, pgtest.NewDatabase(t), "sqlstreams", manyConns)
	histories, first := setting(t, "SQLSTREAMS_HISTORIES", defaultHistories), setting(t, "SQLSTREAMS_SEED", 1)
	failed := runHistories(t, in, first, histories)
	for _, f := range failed {
		t.Error(f)
	}
	t.Logf("%d histories from seed %d", histories, first)
}

// Without the stream's lock the same histories must fail: else they prove nothing.
func TestInterleavingsWithoutTheLock(t *testing.T) {
	in := installAs(t, pgtest.NewDatabase(t), "sqlstreams", manyConns)
	steps, err := schema.Migrations()
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range steps {
		_, text, found := strings.Cut(step.SQL, "create procedure {schema}.append")
		if !found {
			continue
		}
		text, _, _ = strings.Cut(text, "\n$sqlstreams$;")
		broken := "create or replace procedure {schema}.append" + text + "\n$sqlstreams$;"
		broken = strings.Replace(broken, "pg_try_advisory_xact_lock({class_stream}, p_stream)", "true", 1)
		broken = strings.Replace(broken, "perform pg_advisory_xact_lock({class_stream}, p_stream);", "", 1)
		in.sql(t, broken)
		for seed := 1; seed <= 1000; seed += 20 {
			if failed := runHistories(t, in, seed, 20); len(failed) > 0 {
				t.Logf("found after at most %d histories: %s", seed+19, failed[0])
				return
			}
		}
		t.Fatal("1,000 histories without the stream's lock found nothing")
	}
	t.Fatal("no migration creates the procedure append")
}

func runHistories(t *testing.T, in *installation, first, count int) (failed []string) {
	seeds := make(chan int)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range historyWorkers {
		wg.Go(func() {
			for seed := range seeds {
				if finding := runHistory(in, seed); finding != "" {
					mu.Lock()
					failed = append(failed, fmt.Sprintf("seed %d: %s", seed, finding))
					mu.Unlock()
				}
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
		seeds <- seed
	}
	close(seeds)
	wg.Wait()
	return failed
}

// produced is one message that was committed: its business id, and when its produce was called and had returned (or its transaction had committed).
type produced struct {
	name            string
	called, settled int64
}

// history is the record that one run of a seed makes.
type history struct {
	in     *installation
	stream int
	group  int
	mu     sync.Mutex
	clock  int64 // orders calls and returns
	sure   []produced
	maybe  map[string]bool // killed in the middle: may be there or not
	err    string
	// One waits here each for a reason to look: what was found empty is not asked again until somebody has done something.
	toDrain, toClaim chan struct{}
}

// stir gives the drainer and the claimer a reason to look.
func (h *history) stir() {
	for _, c := range []chan struct{}{h.toDrain, h.toClaim} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

func (h *history) tick() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock++
	return h.clock
}

func (h *history) fail(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == "" {
		h.err = fmt.Sprintf(format, args...)
	}
}

func (h *history) committed(names []string, called int64) {
	settled := h.tick()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range names {
		h.sure = append(h.sure, produced{name: n, called: called, settled: settled})
	}
}

func runHistory(in *installation, seed int) string {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	rng := rand.New(rand.NewPCG(uint64(seed), 7))
	st, err := in.RegisterStream(ctx, fmt.Sprintf("s%d-%s", seed, uuid.NewString()[:8]), KindJSON, []byte(`{"v":1}`), false, 10+rng.IntN(40))
	if err != nil {
		return err.Error()
	}
	g, err := in.RegisterGroup(ctx, st.ID, "g", []byte(`{"v":1}`), false, time.Minute, 3, "beginning")
	if err != nil {
		return err.Error()
	}
	h := &history{in: in, stream: st.ID, group: g.ID, maybe: map[string]bool{}, toDrain: make(chan struct{}, 1), toClaim: make(chan struct{}, 1)}

	// Three producers, a drainer and a claimer, each with a script of its own; only the database orders them.
	stop := make(chan struct{})
	var producers, others sync.WaitGroup
	for p := range 3 {
		script := rand.New(rand.NewPCG(uint64(seed), uint64(100+p)))
		producers.Go(func() { h.produce(ctx, p, script) })
	}
	var claimed []delivery.Message
	others.Go(func() { h.drain(ctx, stop) })
	others.Go(func() { claimed = h.claim(ctx, stop) })
	producers.Wait()
	close(stop)
	others.Wait()
	if h.err != "" {
		return h.err
	}

	// What is left is sequenced and claimed.
	for more := true; more; {
		reply, err := in.Drain(ctx, st.ID, 1+rng.IntN(100))
		if err != nil {
			return err.Error()
		}
		more = reply.More || reply.Busy
	}
	closed := make(chan struct{})
	close(closed)
	claimed = append(claimed, h.claim(ctx, closed)...)
	if h.err != "" {
		return h.err
	}
	return h.check(claimed)
}

// produce runs a producer's script: appends, transactions that commit early or late, that roll back, that are cut off.
func (h *history) produce(ctx context.Context, p int, script *rand.Rand) {
	id, batch := uuid.New(), int64(0)
	n := 0
	names := func(k int) (list []string, out []Outgoing) {
		for range k {
			n++
			name := fmt.Sprintf("p%d-%d", p, n)
			list = append(list, name)
			out = append(out, Outgoing{Payload: []byte(`"` + name + `"`), Version: 1})
		}
		return list, out
	}
	for range 4 + script.IntN(4) {
		switch script.IntN(6) {
		case 0, 1, 2: // direct, with or without waiting for the lock, or through the inbox at once
			list, out := names(1 + script.IntN(4))
			batch++
			req := &AppendRequest{Stream: h.stream, Kind: KindJSON, Producer: id, Batch: batch, Messages: out}
			switch script.IntN(3) {
			case 0:
				req.Wait = 50 * time.Millisecond
			case 1:
				req.Wait = -time.Millisecond
			}
			called := h.tick()
			if _, err := h.in.Append(ctx, req); err != nil {
				h.fail("append: %v", err)
				return
			}
			h.committed(list, called)
			h.stir()
			if script.IntN(4) == 0 { // a repetition stores nothing
				if reply, err := h.in.Append(ctx, req); err != nil || !reply.Repeated {
					h.fail("repetition: %+v, %v", reply, err)
					return
				}
			}
		default:
			if !h.transaction(ctx, script, names) {
				return
			}
		}
	}
}

// transaction produces in one to three steps, with savepoints, and ends in one of four ways.
func (h *history) transaction(ctx context.Context, script *rand.Rand, names func(int) ([]string, []Outgoing)) bool {
	conn, err := h.in.pool.Acquire(ctx)
	if err != nil {
		h.fail("acquire: %v", err)
		return false
	}
	defer conn.Release()
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead}[script.IntN(2)]})
	if err != nil {
		h.fail("begin: %v", err)
		return false
	}
	type put struct {
		names  []string
		called int64
	}
	var puts []put
	for range 1 + script.IntN(3) {
		list, out := names(1 + script.IntN(3))
		if script.IntN(4) == 0 {
			inner, err := tx.Begin(ctx)
			if err == nil {
				err = h.in.PutTx(ctx, inner, h.stream, KindJSON, out)
			}
			if err == nil {
				err = inner.Rollback(ctx)
			}
			if err != nil {
				h.fail("savepoint: %v", err)
				return false
			}
			continue
		}
		called := h.tick()
		if err := h.in.PutTx(ctx, tx, h.stream, KindJSON, out); err != nil {
			h.fail("put: %v", err)
			return false
		}
		puts = append(puts, put{list, called})
		h.stir()
		for range script.IntN(4) { // stays open while others go on
			if _, err := tx.Exec(ctx, `select`); err != nil {
				h.fail("select: %v", err)
				return false
			}
		}
	}
	switch script.IntN(5) {
	case 0:
		err = tx.Rollback(ctx)
	case 1: // the connection is cut before the commit was sent
		err = conn.Conn().PgConn().Conn().Close()
	default:
		if err = tx.Commit(ctx); err == nil {
			for _, p := range puts {
				h.committed(p.names, p.called)
			}
			h.stir()
		}
	}
	if err != nil {
		h.fail("end of transaction: %v", err)
	}
	return err == nil
}

func (h *history) drain(ctx context.Context, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		reply, err := h.in.Drain(ctx, h.stream, 3)
		if err != nil {
			h.fail("drain: %v", err)
			return
		}
		if reply.Moved > 0 {
			h.stir()
			continue
		}
		select {
		case <-h.toDrain:
		case <-stop:
		}
	}
}

// claim takes ranges of a few messages until it is told to stop and nothing is left, and checks what each holds.
func (h *history) claim(ctx context.Context, stop <-chan struct{}) (all []delivery.Message) {
	instance := uuid.New()
	for {
		stopping := false
		select {
		case <-stop:
			stopping = true
		default:
		}
		token := uuid.New()
		reply, err := h.in.Work(ctx, &delivery.WorkRequest{Group: h.group, Stream: h.stream, Instance: instance, RangeToken: token, MaxMessages: 3, MaxBytes: 1 << 20, Margins: time.Second})
		if err != nil {
			h.fail("claim: %v", err)
			return nil
		}
		if reply.Range == nil {
			if stopping {
				return all
			}
			select {
			case <-h.toClaim:
			case <-stop:
			}
			continue
		}
		got, err := h.in.Read(ctx, h.stream, reply.Range.Low, reply.Range.High)
		if err != nil {
			h.fail("read: %v", err)
			return nil
		}
		if int64(len(got)) != reply.Range.High-reply.Range.Low {
			h.fail("range (%d, %d] holds %d messages", reply.Range.Low, reply.Range.High, len(got))
			return nil
		}
		all = append(all, got...)
		if _, err := h.in.Work(ctx, &delivery.WorkRequest{Group: h.group, Stream: h.stream, Instance: instance,
			Results: []delivery.RangeResult{{RangeRef: delivery.RangeRef{Low: reply.Range.Low, Token: token}}}}); err != nil {
			h.fail("record: %v", err)
			return nil
		}
	}
}

// check holds what was claimed against what was committed.
func (h *history) check(claimed []delivery.Message) string {
	ids := map[string]int64{}
	for i, m := range claimed {
		if m.ID != int64(i+1) {
			return fmt.Sprintf("claim %d has id %d: ids are not without gaps", i+1, m.ID)
		}
		name := strings.Trim(string(m.Payload), `"`)
		if ids[name] != 0 {
			return name + " was stored twice"
		}
		ids[name] = m.ID
	}
	for _, p := range h.sure {
		if ids[p.name] == 0 {
			return p.name + " was committed and never claimed"
		}
		h.maybe[p.name] = true
	}
	for name := range ids {
		if !h.maybe[name] {
			return name + " was never committed"
		}
	}
	// P5: settled before the other was called, so the lower id. Sorted by id, no message may have been called after one further on had settled.
	slices.SortFunc(h.sure, func(a, b produced) int { return int(ids[a.name] - ids[b.name]) })
	earliest := int64(1) << 62
	for _, p := range slices.Backward(h.sure) {
		if p.called > earliest {
			return p.name + " was called after a message with a higher id had settled"
		}
		earliest = min(earliest, p.settled)
	}
	return ""
}

// Case 8d: a prepared transaction that produced is committed after a restart, and others' messages went on meanwhile.
func TestPreparedTransactionIsDeliveredAfterRestart(t *testing.T) {
	server := pgtest.NewServer(t, serverOptions())
	in := installAs(t, pgtest.NewDatabaseOn(t, server), "sqlstreams", nil)
	ctx := context.Background()
	stream := in.stream(t, "s", 0)
	conn := in.db.Conn(t)
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.PutTx(ctx, tx, stream, KindJSON, messages(`"prepared"`)); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `prepare transaction 'p1'`); err != nil {
		t.Fatal(err)
	}
	in.append(t, stream, `"before"`)
	if err := server.Restart(ctx, pgserverFast); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, 10*time.Second, "producing after the restart", func() bool {
		_, err := in.Append(ctx, &AppendRequest{Stream: stream, Kind: KindJSON, Producer: uuid.New(), Batch: 1, Messages: messages(`"after"`)})
		if err != nil && !diag.Retryable(err) && !diag.Unknown(err) {
			t.Fatal(err)
		}
		return err == nil
	})
	if reply, err := in.Drain(ctx, stream, 10); err != nil || reply.Moved != 0 {
		t.Fatalf("%+v, %v", reply, err)
	}
	in.db.Exec(t, `commit prepared 'p1'`)
	reply, err := in.Drain(ctx, stream, 10)
	if err != nil || reply.Moved != 1 {
		t.Fatalf("%+v, %v: the prepared message is not moved", reply, err)
	}
}
