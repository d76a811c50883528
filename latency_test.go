package sqlstreams_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgserver"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// How soon a message is picked up at 50 a second, and what waiting costs.

// envBars asks for the bars in absolute time, which mean something only on a machine that does nothing else, without the race detector.
const envBars = "SQLSTREAMS_BARS"

func TestPickUpAtFiftyMessagesASecond(t *testing.T) {
	db := pgtest.NewDatabase(t)
	pool := db.Pool(t)
	// One client each side, as two processes have: what the producer's client knows does not reach the consumer's.
	consumer := openOn(t, db.Pool(t), nil)
	producing := openOn(t, pool, &sqlstreams.ClientConfig{DisableManager: true})
	stream := register[WelcomeEmail](t, producing, "s")
	producer := stream.Producer(nil)
	ctx := t.Context()
	var mu sync.Mutex
	began, took := map[string]time.Time{}, map[string]time.Duration{}
	consume(t, group(t, register[WelcomeEmail](t, consumer, "s"), "g", nil), nil, func(_ context.Context, m *WelcomeEmail) error {
		now := time.Now()
		mu.Lock()
		defer mu.Unlock()
		took[m.UserID] = now.Sub(began[m.UserID])
		return nil
	})
	bare := newBareListener(t, db)
	listeners(t, db, 2)
	for _, way := range []struct {
		name     string
		p50, p99 time.Duration
		produce  func(email *WelcomeEmail, sent func()) error
	}{
		{"Produce", 5 * time.Millisecond, 25 * time.Millisecond, func(email *WelcomeEmail, sent func()) error {
			sent()
			_, err := producer.Produce(ctx, email, nil)
			return err
		}},
		{"InTx", 5 * time.Millisecond, 25 * time.Millisecond, func(email *WelcomeEmail, sent func()) error {
			return producing.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
				_, err := producer.ProduceTx(ctx, tx, email, nil)
				sent() // the commit follows
				return err
			})
		}},
		{"ProduceTx", 5 * time.Millisecond, 40 * time.Millisecond, func(email *WelcomeEmail, sent func()) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				_, err := producer.ProduceTx(ctx, tx, email, nil)
				sent()
				return err
			})
		}},
	} {
		t.Run(way.name, func(t *testing.T) {
			const messages, rate = 200, 50
			measure := func(try int) (p50, p99, b50, b99 time.Duration) {
				prefix := fmt.Sprintf("%s-%d-", way.name, try)
				tick := time.NewTicker(time.Second / rate / 2)
				defer tick.Stop()
				for i := range messages {
					<-tick.C
					name := fmt.Sprint(prefix, i)
					if err := way.produce(&WelcomeEmail{UserID: name}, func() {
						mu.Lock()
						defer mu.Unlock()
						began[name] = time.Now()
					}); err != nil {
						t.Fatal(err)
					}
					<-tick.C
					bare.send(t)
				}
				var all []time.Duration
				pgtest.Eventually(t, 10*time.Second, "all are picked up", func() bool {
					mu.Lock()
					defer mu.Unlock()
					all = all[:0]
					for name, d := range took {
						if strings.HasPrefix(name, prefix) {
							all = append(all, d)
						}
					}
					return len(all) == messages
				})
				p50, p99 = quantile(all, 0.5), quantile(all, 0.99)
				b50, b99 = bare.quantiles(t, messages)
				t.Logf("p50 %v, p90 %v, p99 %v, longest %v; a bare listener p50 %v, p99 %v", p50, quantile(all, 0.9), p99, quantile(all, 1), b50, b99)
				return p50, p99, b50, b99
			}
			if os.Getenv(envBars) == "1" && !raceDetector {
				if p50, p99, _, _ := measure(0); p50 > way.p50 || p99 > way.p99 {
					t.Errorf("picked up too late: half within %v, 99 of 100 within %v; the bars are %v and %v", p50, p99, way.p50, way.p99)
				}
				return
			}
			// A machine that is busy with other things holds up everybody, and may spoil a measurement. A wake-up that gets lost now and then spoils each.
			for try := range 3 {
				p50, p99, b50, b99 := measure(try)
				if p50 <= max(25*time.Millisecond, 10*b50) && p99 <= max(150*time.Millisecond, 5*b99) {
					return
				}
			}
			t.Error("picked up too late each time")
		})
	}
}

// bareListener is the least that a program can do in place of the library: insert, notify, listen, select. It is what there is to compare with.
type bareListener struct {
	conn *pgx.Conn // inserts and notifies

	mu    sync.Mutex
	began map[int64]time.Time
	took  []time.Duration
}

func newBareListener(t *testing.T, db *pgtest.Database) *bareListener {
	t.Helper()
	db.Exec(t, `create table bare (id bigint generated always as identity primary key, payload json)`)
	b := &bareListener{conn: db.Conn(t), began: map[int64]time.Time{}}
	conn := db.Conn(t)
	ctx, cancel := context.WithCancel(context.Background())
	if _, err := conn.Exec(ctx, `listen bare`); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		last := int64(0)
		for {
			if _, err := conn.WaitForNotification(ctx); err != nil {
				return
			}
			rows, err := conn.Query(ctx, `select id from bare where id > $1 order by id`, last)
			if err != nil {
				return
			}
			var id int64
			if _, err := pgx.ForEachRow(rows, []any{&id}, func() error {
				last = id
				b.mu.Lock()
				defer b.mu.Unlock()
				b.took = append(b.took, time.Since(b.began[id]))
				return nil
			}); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return b
}

func (b *bareListener) send(t *testing.T) {
	t.Helper()
	b.mu.Lock()
	b.began[int64(len(b.began)+1)] = time.Now()
	b.mu.Unlock()
	for _, sql := range []string{`insert into bare (payload) values ('{"user_id":"u"}')`, `select pg_notify('bare', '')`} {
		if _, err := b.conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
}

// quantiles waits for n arrivals, and begins anew.
func (b *bareListener) quantiles(t *testing.T, n int) (p50, p99 time.Duration) {
	t.Helper()
	pgtest.Eventually(t, 10*time.Second, "the bare listener has all", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.took) == n
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	p50, p99 = quantile(b.took, 0.5), quantile(b.took, 0.99)
	b.took = nil
	return p50, p99
}

// What an idle consumer asks of the server, counted by the server's own log: a statement a second and a sign of life now and then; five a second however often it is told to poll.
func TestIdleConsumersAskLittle(t *testing.T) {
	var log lines
	server := pgtest.NewServer(t, pgserver.Options{Log: &log, Settings: map[string]string{"log_statement": "all"}})
	db := pgtest.NewDatabaseOn(t, server)
	const watched = 5 * time.Second
	idle := []struct {
		name    string
		config  sqlstreams.ClientConfig
		options *sqlstreams.ConsumeOptions
		most    int
	}{
		{"defaults without upkeep", sqlstreams.ClientConfig{DisableManager: true}, nil, 7},
		{"every millisecond", sqlstreams.ClientConfig{DisableManager: true}, &sqlstreams.ConsumeOptions{PollInterval: time.Millisecond}, 28},
		{"every hour", sqlstreams.ClientConfig{DisableManager: true}, &sqlstreams.ConsumeOptions{PollInterval: time.Hour}, 2},
		{"defaults with upkeep", sqlstreams.ClientConfig{}, nil, 40},
	}
	for i, c := range idle {
		pool := db.PoolConfig(t, func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["application_name"] = c.name })
		stream := register[WelcomeEmail](t, openOn(t, pool, &c.config), fmt.Sprintf("s%d", i))
		consume(t, group(t, stream, "g", nil), c.options, func(context.Context, *WelcomeEmail) error { return nil })
	}
	listeners(t, db, int64(len(idle)))
	pause(time.Second) // the first looks of upkeep
	before := len(log.String())
	pause(watched)
	text := log.String()[before:]
	for _, c := range idle {
		count := map[string]int{}
		total := 0
		for line := range strings.Lines(text) {
			if _, statement, found := strings.Cut(line, "/* sqlstreams:"); found && strings.Contains(line, "] "+c.name+" LOG:") {
				name, _, _ := strings.Cut(statement, " ")
				count[name]++
				total++
			}
		}
		t.Logf("%s: %d statements in %v: %v", c.name, total, watched, count)
		if total > c.most {
			t.Errorf("%s: %d statements in %v, more than %d", c.name, total, watched, c.most)
		}
		if c.options == nil && count["probe"] == 0 {
			t.Errorf("%s: the log shows no probe, so it shows nothing", c.name)
		}
	}
}
