package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/ledger"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

func TestMain(m *testing.M) {
	// The processes of a run are processes of this binary.
	if IsWorker() {
		os.Exit(WorkerMain())
	}
	pgtest.Main(m)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// seedVariable gives the short run another seed.
const seedVariable = "SQLSTREAMS_CHAOS_SEED"

func TestAShortRunOfEveryFaultKeepsEveryPromise(t *testing.T) {
	cfg := Config{Seed: 1, Duration: 12 * time.Second, Messages: 3000, Quick: true}
	if text := os.Getenv(seedVariable); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		must(t, err)
		cfg.Seed = seed
	}
	result := runOnce(t, cfg)
	if result.Verdict() == ledger.NotDecided {
		// Now and then every fault strikes between two messages. Then nothing was tried, and another schedule is.
		cfg.Seed += 1000
		result = runOnce(t, cfg)
	}
	if result.Verdict() != ledger.Pass {
		t.Fatalf("the verdict is %s", result.Verdict())
	}
	r := result.Report
	for _, kind := range []string{ledger.Kill, ledger.Stop, ledger.Leave, ledger.TerminateConn, ledger.KillBackend, ledger.ServerImmediate} {
		if r.Faults[kind] == 0 && result.Skipped == 0 {
			t.Errorf("no fault of kind %s happened", kind)
		}
	}
	if r.RunAgain() == 0 || r.Dead() == 0 || r.RolledBack == 0 || r.Confirmed < cfg.Messages/4 {
		t.Error("the run was too tame")
	}
}

func runOnce(t *testing.T, cfg Config) *Result {
	t.Helper()
	var out bytes.Buffer
	cfg.Out = &out
	result, err := Run(t.Context(), cfg)
	t.Logf("%s", &out)
	must(t, err)
	t.Logf("%s", result)
	return result
}

func TestKillModeProducesExactlyWhatItWasToldAndLosesNothing(t *testing.T) {
	t.Parallel()
	result := runOnce(t, Config{Mode: ModeKill, Duration: 6 * time.Second, Messages: 6000, Quick: true})
	// So few kills may all strike between two messages.
	if r := result.Report; result.Verdict() == ledger.Fail || r.Counts[ledger.KindLost] != 0 || r.Stored != 6000 || r.Faults[ledger.Kill] != 4 || r.Groups[1].Handled != 6000 {
		t.Errorf("the verdict is %s", result.Verdict())
	}
}

func TestOrderedKeysStayInOrderWhileProcessesAreKilled(t *testing.T) {
	t.Parallel()
	result := runOnce(t, Config{Mode: ModeKeys, Duration: 5 * time.Second, Messages: 1500, Keys: 100, Processes: 4, Quick: true})
	r := result.Report
	// So few kills may all strike between two messages.
	if result.Verdict() == ledger.Fail || r.Stored != 1500 || r.Faults[ledger.Kill] != 5 || result.Drained == 0 {
		t.Errorf("the verdict is %s", result.Verdict())
	}
	if g := r.Groups; g[0].Keys != 100 || g[0].Keyed < 1200 || g[1].Keyed < 900 || g[0].Failures < 100 {
		t.Error("the run was too tame")
	}
	if e := result.Effects; e == nil || e.Count != r.Groups[0].Handled || e.wrong() != 0 {
		t.Errorf("%s", e)
	}
}

func TestKeysThatNobodyHoldsAreFoundOutOfOrder(t *testing.T) {
	t.Parallel()
	result := runOnce(t, Config{Mode: ModeKeys, Duration: 3 * time.Second, Messages: 1500, Keys: 20, Processes: 4, Quick: true, Sabotage: SabotageOrder})
	if r := result.Report; result.Verdict() != ledger.Fail || r.Counts[ledger.KindKeyOrder] == 0 || r.Counts[ledger.KindKeyTogether] == 0 || r.Counts[ledger.KindLost] != 0 {
		t.Errorf("the verdict is %s", result.Verdict())
	}
	if e := result.Effects; e == nil || e.Disorder == 0 || e.Twice+e.Missing+e.Dead != 0 {
		t.Errorf("%s", e)
	}
}

func TestTheRunComplainsOfWhatProcessesSay(t *testing.T) {
	for text, bad := range map[string]bool{
		"level=INFO msg=fine\n":                     false,
		"level=INFO\nWARNING: DATA RACE\nRead at\n": true,
		"panic: runtime error: x\n":                 true,
		"fatal error: all goroutines are asleep\n":  true,
	} {
		r := &run{logs: t.TempDir(), processes: []*process{{cfg: workerConfig{Name: "p"}}}}
		must(t, os.WriteFile(filepath.Join(r.logs, "p.log"), []byte(text), 0o600))
		must(t, r.scanLogs())
		if (len(r.complaints) > 0) != bad {
			t.Errorf("%q: complaints %q", text, r.complaints)
		}
		result := Result{Report: &ledger.Report{Verdict: ledger.Pass}, Complaints: r.complaints}
		if (result.Verdict() == ledger.Fail) != bad || strings.Contains(result.String(), "complaint") != bad {
			t.Errorf("%q: the verdict is %s", text, result.Verdict())
		}
	}
}

func TestASeedDecidesTheSchedule(t *testing.T) {
	text := func(seed uint64, d time.Duration, kinds []string) string {
		steps, err := plan(seed, d, kinds)
		must(t, err)
		var b strings.Builder
		last := time.Duration(-1)
		for _, s := range steps {
			if s.at <= last || s.at > d {
				t.Errorf("%v comes after %v", s, last)
			}
			last = s.at
			if (s.kind == stopConsumer || s.kind == stopProducer) && s.hold <= leaseTime {
				t.Errorf("%v is not longer than a lease", s)
			}
			fmt.Fprintln(&b, s, s.pick)
		}
		return b.String()
	}
	if text(1, time.Minute, AllFaults()) != text(1, time.Minute, AllFaults()) {
		t.Error("two schedules of one seed differ")
	}
	if text(1, time.Minute, AllFaults()) == text(2, time.Minute, AllFaults()) {
		t.Error("two seeds have one schedule")
	}
	for seed := range uint64(50) {
		short := text(seed, 12*time.Second, AllFaults())
		for _, kind := range AllFaults() {
			if !strings.Contains(short, kind) {
				t.Errorf("seed %d has no %s in 12 s", seed, kind)
			}
		}
	}
	if got := text(1, time.Minute, []string{terminate}); strings.Count(got, terminate) != strings.Count(got, "\n") {
		t.Errorf("other faults than wanted:\n%s", got)
	}
	if steps, err := plan(1, time.Minute, []string{}); err != nil || len(steps) > 0 {
		t.Errorf("faults though none was wanted: %v, %v", steps, err)
	}
	if _, err := plan(1, time.Minute, []string{"earthquake"}); err == nil {
		t.Error("a kind of fault that does not exist")
	}
	if n := len(killPlan(1, time.Minute, 2)); n != 40 {
		t.Errorf("kill mode has %d kills a minute, want 40", n)
	}
	kills, stops := 0, 0
	for _, s := range keysPlan(1, 2*time.Minute) {
		switch {
		case s.kind == killConsumer:
			kills++
		case s.kind == stopConsumer && s.hold > leaseTime:
			stops++
		}
	}
	if kills != 120 || stops != 24 {
		t.Errorf("keys mode has %d kills and %d freezes in two minutes, want 120 and 24", kills, stops)
	}
}

func TestConfigsThatMakeNoSenseAreRefused(t *testing.T) {
	for _, cfg := range []Config{{Mode: "war"}, {Sabotage: "everything"}, {Duration: -1}, {Producers: -1}, {Mode: ModeKill, Messages: -1}, {Mode: ModeKeys, Keys: -1}} {
		if _, err := Run(t.Context(), cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
	cfg, err := Config{Mode: ModeKill}.withDefaults()
	must(t, err)
	if cfg.Messages != 100_000 || cfg.Size != 1000 || cfg.Duration != time.Minute || cfg.Groups != 2 || cfg.Processes != 3 {
		t.Errorf("kill mode is %+v", cfg)
	}
	cfg, err = Config{Mode: ModeKeys}.withDefaults()
	must(t, err)
	if cfg.Keys != 10_000 || cfg.Duration != 2*time.Minute || cfg.DrainWithin != 2*time.Minute || cfg.Processes != 10 {
		t.Errorf("keys mode is %+v", cfg)
	}
	if len(Config{}.Faults) > 0 {
		t.Error("an empty config has faults")
	}
}

func TestAHandlerSeesWhetherAPayloadIsWhatWasProduced(t *testing.T) {
	for _, size := range []int{0, 1, 400, 5000} {
		p := newPayload("p1.1.7", size)
		if !p.sound() || len(p.Body) < size {
			t.Errorf("a payload of %d bytes is not sound", size)
		}
		p.Body += "x"
		if p.sound() {
			t.Error("a changed body is sound")
		}
	}
	if (&Payload{ID: "x", Size: -1}).sound() {
		t.Error("an impossible size is sound")
	}
}

func TestAnErrorSaysWhatBecameOfACall(t *testing.T) {
	for _, c := range []struct {
		err  error
		want ledger.Outcome
	}{
		{nil, ledger.Confirmed},
		{errors.New("x"), ledger.Refused},
		{fmt.Errorf("x: %w", sqlstreams.ErrOutcomeUnknown), ledger.Unknown},
		{&sqlstreams.Error{OutcomeUnknown: true}, ledger.Unknown},
		{&sqlstreams.Error{}, ledger.Refused},
	} {
		if got := outcomeOf(c.err); got != c.want {
			t.Errorf("%v means %s, want %s", c.err, got, c.want)
		}
	}
}

func TestSnapshotHoldsWhatTheTablesHold(t *testing.T) {
	db := pgtest.NewDatabase(t)
	pool := db.Pool(t)
	client, err := sqlstreams.NewClient(t.Context(), pool, &sqlstreams.ClientConfig{DisableManager: true, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	defer client.Close(t.Context())
	stream, err := sqlstreams.RegisterStream[Payload](t.Context(), client, "s", nil)
	must(t, err)
	consumer, err := stream.RegisterConsumer(t.Context(), "g", &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{MaxAttempts: 2, BaseDelay: time.Hour, MaxDelay: time.Hour}})
	must(t, err)
	producer := stream.Producer(nil)
	for i := range 3 {
		_, err := producer.Produce(t.Context(), newPayload(fmt.Sprint("m", i+1), 10), &sqlstreams.ProduceOptions{Key: "k"})
		must(t, err)
	}
	// One is handled, one fails and waits for an hour, one is dead.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := consumer.Consume(ctx, func(_ context.Context, p *Payload) error {
			switch p.ID {
			case "m2":
				return errors.New("later")
			case "m3":
				return sqlstreams.Terminal(errors.New("never"))
			}
			return nil
		}, nil); err != nil {
			t.Error(err)
		}
	})
	pgtest.Eventually(t, 20*time.Second, "the three are recorded", func() bool {
		w, err := progress(t.Context(), pool, "s")
		return err == nil && w == waits{deliveries: 1}
	})
	cancel()
	wg.Wait()
	// One waits in the inbox, and a range is open.
	must(t, func() error {
		tx, err := pool.Begin(t.Context())
		if err != nil {
			return err
		}
		if _, err := producer.ProduceTx(t.Context(), tx, newPayload("m4", 10), nil); err != nil {
			return err
		}
		return tx.Commit(t.Context())
	}())
	db.Exec(t, `insert into sqlstreams.claim (group_id, low, high, token, expires_at, ceiling_ms, instance) select id, 3, 9, gen_random_uuid(), now(), 1, gen_random_uuid() from sqlstreams.consumer_group`)
	snap, err := Snapshot(t.Context(), pool, "sqlstreams", "s", "id")
	must(t, err)
	s := snap.Streams[0]
	if s.Name != "s" || s.FirstID != 1 || len(s.Messages) != 3 || s.Messages[2] != (ledger.MessageRow{ID: 3, Message: ledger.Message{Business: "m3", Key: "k"}}) ||
		len(s.Inbox) != 1 || s.Inbox[0].Business != "m4" || s.Inbox[0].ID != 0 {
		t.Errorf("%+v", s)
	}
	g := s.Groups[0]
	if g.Name != "g" || g.Claimed != 3 || len(g.Claims) != 1 || g.Claims[0] != (ledger.Span{Low: 3, High: 9}) || len(g.Deliveries) != 1 || g.Deliveries[0] != 2 ||
		len(g.Dead) != 1 || g.Dead[0].ID != 3 || g.Dead[0].Reason == "" || g.Dead[0].DiedAt.IsZero() || len(g.Attempts) != 2 {
		t.Errorf("%+v", g)
	}
	w, err := progress(t.Context(), pool, "s")
	must(t, err)
	if w != (waits{inbox: 1, claims: 1, deliveries: 1}) || w.none() {
		t.Errorf("%v", w)
	}
	if _, err := Snapshot(t.Context(), pool, "sqlstreams", "none", "id"); err == nil {
		t.Error("a stream that does not exist has a snapshot")
	}
}
