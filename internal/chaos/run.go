package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/ledger"
	"github.com/sqlstreams/sqlstreams/internal/pgserver"
)

const (
	streamName   = "chaos"
	databaseName = "chaos"
	ownerName    = "app"
)

// run is one run. Only the goroutine of its caller touches it, but for what mu guards.
type run struct {
	cfg    Config
	dir    string
	books  string // folder of the ledgers
	logs   string // folder of the processes' logs
	server *pgserver.Server
	dsn    string // for workers, who are no superusers
	pool   *pgxpool.Pool
	book   *ledger.Writer
	thaw   *thawer
	began  time.Time

	processes []*process
	names     map[string]int // processes so far by place
	resumes   []resume
	skipped   int
	drained   time.Duration
	took      time.Duration
	wg        sync.WaitGroup // the goroutines that wait for processes

	mu         sync.Mutex
	complaints []string
}

// resume is a frozen process and when it goes on.
type resume struct {
	at time.Time
	p  *process
}

// Run does a whole run. An error means that it could not be done; what it found is in the result.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	r, err := open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	result, err := r.whole(ctx)
	good := err == nil && result.Verdict() == ledger.Pass
	if !good {
		r.say("ledgers and logs are kept in %s", r.dir)
	}
	return result, errors.Join(err, r.close(good))
}

// open starts the server and makes the schema and the stream.
func open(ctx context.Context, cfg Config) (*run, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &run{cfg: cfg, names: map[string]int{}}
	if err := r.prepare(ctx); err != nil {
		return nil, errors.Join(err, r.close(true))
	}
	return r, nil
}

func (r *run) prepare(ctx context.Context) (err error) {
	if r.dir, err = os.MkdirTemp("", "sqlstreams-chaos-"); err != nil {
		return err
	}
	r.books, r.logs = filepath.Join(r.dir, "ledgers"), filepath.Join(r.dir, "logs")
	if err := errors.Join(os.Mkdir(r.books, 0o700), os.Mkdir(r.logs, 0o700)); err != nil {
		return err
	}
	if r.book, err = ledger.Create(r.books, ledger.Process{Name: "run", Role: "run", PID: os.Getpid()}); err != nil {
		return err
	}
	if r.thaw, err = startThawer(); err != nil {
		return err
	}
	if r.server, err = pgserver.Start(ctx, pgserver.Options{Durable: !r.cfg.Quick, Settings: r.cfg.settings}); err != nil {
		return err
	}
	admin, err := pgx.Connect(ctx, r.server.SocketDSN("postgres"))
	if err != nil {
		return err
	}
	for _, sql := range []string{"create role " + ownerName + " login", "create database " + databaseName + " owner " + ownerName} {
		if _, err := admin.Exec(ctx, sql); err != nil {
			return errors.Join(err, admin.Close(ctx))
		}
	}
	if err := admin.Close(ctx); err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(r.server.SocketDSN(databaseName))
	if err != nil {
		return err
	}
	// The server may have been restarted since a connection was used.
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return true }
	if r.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	r.dsn = fmt.Sprintf("postgres://%s@%s/%s?sslmode=disable", ownerName, r.server.Addr(), databaseName)
	return r.install(ctx)
}

// install makes schema and stream before the first process comes, so that there is something to break on purpose.
func (r *run) install(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, r.dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := sqlstreams.NewClient(ctx, pool, &sqlstreams.ClientConfig{DisableManager: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	if _, err := pool.Exec(ctx, effectTable); err != nil {
		return err
	}
	_, err = sqlstreams.RegisterStream[Payload](ctx, client, streamName, nil)
	return err
}

// close ends whatever is left, and removes the folder unless somebody will want to look at it.
func (r *run) close(remove bool) error {
	var errs []error
	for _, p := range r.processes {
		if !p.ended() {
			errs = append(errs, signal(p, sigKill))
		}
	}
	r.wg.Wait()
	if r.thaw != nil {
		errs = append(errs, r.thaw.close())
	}
	if r.pool != nil {
		r.pool.Close()
	}
	if r.server != nil {
		errs = append(errs, r.server.Close())
	}
	if remove && r.dir != "" {
		errs = append(errs, os.RemoveAll(r.dir))
	}
	return errors.Join(errs...)
}

// fail notes what the run itself sees go wrong.
func (r *run) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.complaints = append(r.complaints, err.Error())
}

func (r *run) say(format string, args ...any) {
	at := 0.0
	if !r.began.IsZero() {
		at = time.Since(r.began).Seconds()
	}
	// Who cannot be told does not matter to the run.
	_, _ = fmt.Fprintf(r.cfg.Out, "%6.2fs %s\n", at, fmt.Sprintf(format, args...))
}

// whole is the run.
func (r *run) whole(ctx context.Context) (*Result, error) {
	steps, err := r.steps()
	if err != nil {
		return nil, err
	}
	if err := r.sabotage(ctx); err != nil {
		return nil, err
	}
	if r.cfg.Trace {
		if err := r.trace(ctx); err != nil {
			return nil, err
		}
	}
	r.say("seed %d, %s mode: %d messages by %d producers, %d groups of %d processes, leases of %v (timeout %v, queue margin %v, grace %v, record margin %v)",
		r.cfg.Seed, r.cfg.Mode, r.cfg.Messages, r.cfg.Producers, r.cfg.Groups, r.cfg.Processes, leaseTime, handlerTimeout, queueMargin, timeoutGrace, recordMargin)
	r.say("schedule:")
	for _, s := range steps {
		_, _ = fmt.Fprintf(r.cfg.Out, "        %s\n", s)
	}
	if err := r.spawnConsumers(); err != nil {
		return nil, err
	}
	for slot := range r.cfg.Producers {
		if _, err := r.spawnProducer(slot); err != nil {
			return nil, err
		}
	}
	if err := r.allReady(ctx); err != nil {
		return nil, err
	}
	r.began = time.Now()
	if err := r.harm(ctx, steps); err != nil {
		return nil, err
	}
	if r.cfg.Sabotage == SabotageRow {
		if err := removeRow(ctx, r.pool, streamName); err != nil {
			return nil, err
		}
	}
	return r.finish(ctx)
}

// steps makes the schedule of the run's mode.
func (r *run) steps() ([]step, error) {
	switch r.cfg.Mode {
	case ModeKill:
		return killPlan(r.cfg.Seed, r.cfg.Duration, r.cfg.Groups), nil
	case ModeKeys:
		return keysPlan(r.cfg.Seed, r.cfg.Duration), nil
	default:
		return plan(r.cfg.Seed, r.cfg.Duration, r.cfg.Faults)
	}
}

// place counts the processes that took a place, for the name of the next one.
func (r *run) place(name string) string {
	r.names[name]++
	return fmt.Sprintf("%s.%d", name, r.names[name])
}

func (r *run) spawnConsumers() error {
	if r.cfg.Mode == ModeKeys {
		for slot := range r.cfg.Processes {
			cfg := workerConfig{Name: r.place(fmt.Sprintf("c%d", slot+1)), Role: roleConsumer, Seed: r.cfg.Seed, Groups: keysGroups(), Handlers: 5, Mood: moodKeys, Managed: true}
			if _, err := r.spawn(cfg, slot); err != nil {
				return err
			}
		}
		return nil
	}
	for group := range r.cfg.Groups {
		for slot := range r.cfg.Processes {
			name := groupName(group)
			cfg := workerConfig{Name: r.place(fmt.Sprintf("%s-%d", name, slot+1)), Role: roleConsumer, Seed: r.cfg.Seed, Handlers: 10, Mood: moodWild, Managed: true,
				Groups: []membership{{Group: name, Effects: r.cfg.Mode == ModeChaos && group == r.cfg.Groups-1}}}
			if r.cfg.Mode == ModeKill {
				cfg.Mood, cfg.Busy = moodBusy, 2*time.Millisecond
			}
			if _, err := r.spawn(cfg, slot); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *run) spawnProducer(slot int) (*process, error) {
	cfg := workerConfig{Name: r.place(fmt.Sprintf("p%d", slot+1)), Role: roleProducer, Mix: mixWild, Size: r.cfg.Size, Managed: true,
		Rate: float64(r.cfg.Messages) / r.cfg.Duration.Seconds() / float64(r.cfg.Producers)}
	// Each process produces something else.
	cfg.Seed = dice(r.cfg.Seed, cfg.Name, 0)
	if r.cfg.Mode != ModeChaos {
		cfg.Mix, cfg.Keys = mixPlain, r.cfg.Keys
		if r.cfg.Mode == ModeKeys {
			cfg.Mix = mixKeys
		}
		cfg.Quota = (r.cfg.Messages + slot) / r.cfg.Producers // together exactly Messages
	}
	return r.spawn(cfg, slot)
}

// startWithin is how long processes may take to be ready.
const startWithin = 30 * time.Second

// allReady waits for everybody who was started.
func (r *run) allReady(ctx context.Context) error {
	timer := time.NewTimer(startWithin)
	defer timer.Stop()
	for _, p := range r.processes {
		if p.killed || p.leaving {
			continue
		}
		select {
		case <-p.ready:
		case <-p.done:
			return fmt.Errorf("process %s ended before it was ready: %s\n%s", p.cfg.Name, *p.status.Load(), r.logOf(p))
		case <-timer.C:
			return fmt.Errorf("process %s was not ready within %v\n%s", p.cfg.Name, startWithin, r.logOf(p))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// logOf is the end of a process's log.
func (r *run) logOf(p *process) string {
	text, err := os.ReadFile(filepath.Join(r.logs, p.cfg.Name+".log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}

// finish ends the producers, lets the groups finish, ends the consumers and checks.
func (r *run) finish(ctx context.Context) (*Result, error) {
	for _, p := range r.processes {
		if p.stopped && !p.ended() {
			if err := r.cont(p); err != nil {
				return nil, err
			}
		}
	}
	if r.cfg.Mode != ModeChaos {
		if err := r.quotas(ctx); err != nil {
			return nil, err
		}
	}
	if err := r.end(ctx, roleProducer, 40*time.Second); err != nil {
		return nil, err
	}
	if err := r.drain(ctx); err != nil {
		return nil, err
	}
	r.took = time.Since(r.began)
	if err := r.end(ctx, roleConsumer, 20*time.Second); err != nil {
		return nil, err
	}
	r.wg.Wait()
	if err := r.scanLogs(); err != nil {
		return nil, err
	}
	if err := r.book.Close(); err != nil {
		return nil, err
	}
	snap, err := Snapshot(ctx, r.pool, "sqlstreams", streamName, "id")
	if err != nil {
		return nil, err
	}
	book, err := ledger.ReadDir(r.books)
	if err != nil {
		return nil, err
	}
	result := &Result{Skipped: r.skipped, Drained: r.drained, Took: r.took,
		Report: ledger.Check(book, snap, ledger.Settings{Timeout: handlerTimeout, Lease: leaseTime, Chaos: true})}
	if at := slices.IndexFunc(r.processes, func(p *process) bool { return len(p.cfg.withEffects()) > 0 }); at >= 0 && r.drained > 0 {
		for _, m := range r.processes[at].cfg.withEffects() {
			if result.Effects, err = r.checkEffects(ctx, m); err != nil {
				return nil, err
			}
		}
	}
	if r.cfg.Trace {
		if err := r.tell(ctx, result.Report.Findings); err != nil {
			return nil, err
		}
	}
	r.mu.Lock()
	result.Complaints = r.complaints
	r.mu.Unlock()
	return result, nil
}

// quotas waits until the producers have produced what they were told to.
func (r *run) quotas(ctx context.Context) error {
	deadline := time.Now().Add(r.cfg.DrainWithin)
	for {
		var stored int
		// Those who produce in this mode are not killed, so what is stored is what was confirmed.
		if err := r.pool.QueryRow(ctx, `select (select count(*) from sqlstreams.inbox) + (select l.head from sqlstreams.stream s, sqlstreams.head(s.id, s.first_id) l where s.name = $1)`,
			streamName).Scan(&stored); err != nil {
			return err
		}
		if stored >= r.cfg.Messages {
			return nil
		}
		if time.Now().After(deadline) {
			r.fail(fmt.Errorf("%d of %d messages were produced", stored, r.cfg.Messages))
			return nil
		}
		if !pause(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// end asks all processes of a role to end, and waits for it. One that does not is made to say what it does, and the run complains.
func (r *run) end(ctx context.Context, role string, within time.Duration) error {
	timer := time.NewTimer(within)
	defer timer.Stop()
	var asked []*process
	for _, p := range r.processes {
		if p.cfg.Role != role || p.ended() {
			continue
		}
		asked = append(asked, p)
		if !p.leaving {
			if err := p.leave(); err != nil {
				return err
			}
		}
	}
	for _, p := range asked {
		select {
		case <-p.done:
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			timer.Reset(0)
			if p.ended() {
				continue
			}
			r.fail(fmt.Errorf("process %s did not end within %v when it was asked to", p.cfg.Name, within))
			if err := signal(p, sigQuit); err != nil {
				return err
			}
			<-p.done
		}
	}
	return nil
}

// drain waits until nothing is left to be handled.
func (r *run) drain(ctx context.Context) error {
	began := time.Now()
	r.say("producers have ended; the groups may take %v to finish", r.cfg.DrainWithin)
	var left waits
	told := began
	for {
		var open int
		// What a killed producer had sent may still be on its way to being committed.
		if err := r.pool.QueryRow(ctx, `select count(*) from pg_stat_activity where usename = $1 and application_name = any ($2)`, ownerName, r.namesOf(roleProducer)).Scan(&open); err != nil {
			return err
		}
		var err error
		if left, err = progress(ctx, r.pool, streamName); err != nil {
			return err
		}
		if open == 0 && left.none() {
			r.drained = time.Since(began)
			r.say("drained after %.1f s", r.drained.Seconds())
			return nil
		}
		if time.Since(began) > r.cfg.DrainWithin {
			r.say("not drained after %v: %v", r.cfg.DrainWithin, left)
			return nil
		}
		if time.Since(told) > 5*time.Second {
			told = time.Now()
			r.say("waiting for %v", left)
		}
		if !pause(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
}

func (r *run) namesOf(role string) (names []string) {
	for _, p := range r.processes {
		if p.cfg.Role == role {
			names = append(names, p.cfg.Name)
		}
	}
	return names
}

// scanLogs looks for what must not be in the log of a process, killed or not.
func (r *run) scanLogs() error {
	for _, p := range r.processes {
		text, err := os.ReadFile(filepath.Join(r.logs, p.cfg.Name+".log"))
		if err != nil {
			return err
		}
		for _, bad := range []string{"WARNING: DATA RACE", "fatal error:", "panic: "} {
			if i := bytes.Index(text, []byte(bad)); i >= 0 {
				r.fail(fmt.Errorf("process %s says:\n%s", p.cfg.Name, bytes.ToValidUTF8(text[i:min(i+3000, len(text))], []byte("?"))))
				break
			}
		}
	}
	return nil
}

// candidates are the processes that can be harmed, in the order of their names, so that a seed chooses alike as far as it can.
func (r *run) candidates(is func(*process) bool) []*process {
	var found []*process
	for _, p := range r.processes {
		if p.works() && is(p) {
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b *process) int { return compareNames(a.cfg.Name, b.cfg.Name) })
	return found
}

func compareNames(a, b string) int { return bytes.Compare([]byte(a), []byte(b)) }
