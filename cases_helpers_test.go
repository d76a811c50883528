package sqlstreams_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
	"github.com/sqlstreams/sqlstreams/internal/schema"
)

// The tests run their own binary again to have processes that they can freeze and kill.
const (
	envRole = "SQLSTREAMS_TEST_ROLE"
	envDSN  = "SQLSTREAMS_TEST_DSN"
)

// roles are what such a process can do. It speaks and listens by lines on its standard output and input.
func roles() map[string]func(ctx context.Context, p *process) error {
	return map[string]func(ctx context.Context, p *process) error{
		"register": registerRole,
		"produce":  produceRole,
		"consume":  consumeRole,
	}
}

// playRole runs a role and ends the process.
func playRole(role string) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	run := roles()[role]
	err := fmt.Errorf("no such role: %s", role)
	if run != nil {
		p := &process{dsn: os.Getenv(envDSN), heard: make(chan string)}
		go p.listen()
		err = run(ctx, p)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		fmt.Println("error", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// process is a role's side of the conversation.
type process struct {
	dsn   string
	heard chan string
	mu    sync.Mutex
}

func (p *process) listen() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		p.heard <- in.Text()
	}
	os.Exit(1) // whoever started us is gone
}

func (p *process) tell(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Printf(format+"\n", args...)
}

func (p *process) await(ctx context.Context, line string) error {
	select {
	case got := <-p.heard:
		if got != line {
			return fmt.Errorf("heard %q, waited for %q", got, line)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *process) open(ctx context.Context) (*sqlstreams.Client, *pgxpool.Pool, error) {
	pool, err := pgxpool.New(ctx, p.dsn)
	if err != nil {
		return nil, nil, err
	}
	client, err := sqlstreams.NewClient(ctx, pool, &sqlstreams.ClientConfig{Logger: quiet(), DisableManager: true})
	return client, pool, err
}

// child is a process that a test started.
type child struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	done  chan struct{} // closed when its output has ended
}

// spawn starts a process, which the test's end kills.
func spawn(t testing.TB, role, dsn string) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: exec.Command(exe), lines: make(chan string, 1000), done: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), envRole+"="+role, envDSN+"="+dsn)
	var trouble bytes.Buffer
	c.cmd.Stderr = &trouble
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		c.in, err = c.cmd.StdinPipe()
	}
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.done)
		defer close(c.lines)
		in := bufio.NewScanner(out)
		for in.Scan() {
			c.lines <- in.Text()
		}
	}()
	t.Cleanup(func() {
		c.kill(t)
		_ = c.cmd.Wait() // how it ended was the test's business
		if t.Failed() && trouble.Len() > 0 {
			t.Logf("the process %q said: %s", role, trouble.String())
		}
	})
	return c
}

// kill ends the process at once and waits until what it said has been read.
func (c *child) kill(t testing.TB) {
	t.Helper()
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	for {
		select {
		case <-c.lines:
		case <-c.done:
			return
		}
	}
}

func (c *child) say(t testing.TB, line string) {
	t.Helper()
	if _, err := fmt.Fprintln(c.in, line); err != nil {
		t.Fatal(err)
	}
}

// expect waits for a line with this beginning, passing over others but errors, and returns the rest of it.
func (c *child) expect(t testing.TB, beginning string) string {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	for {
		select {
		case line, ok := <-c.lines:
			if rest, found := strings.CutPrefix(line, beginning); found && ok {
				return strings.TrimSpace(rest)
			}
			if !ok || strings.HasPrefix(line, "error") {
				t.Fatalf("waited for %q, heard %q", beginning, line)
			}
		case <-deadline.C:
			t.Fatalf("%q was not heard", beginning)
		}
	}
}

// registerRole declares a stream and a group on a database where there may be nothing yet.
func registerRole(ctx context.Context, p *process) error {
	p.tell("ready")
	if err := p.await(ctx, "go"); err != nil {
		return err
	}
	client, _, err := p.open(ctx)
	if err != nil {
		return err
	}
	stream, err := sqlstreams.RegisterStream[WelcomeEmail](ctx, client, "s", nil)
	if err != nil {
		return err
	}
	instance, err := stream.RegisterConsumer(ctx, "g", nil)
	if err != nil {
		return err
	}
	p.tell("registered %s %s", stream.Outcome(), instance.Outcome())
	client.Close(ctx)
	return nil
}

// produceRole produces in a transaction and commits it when it is told to.
func produceRole(ctx context.Context, p *process) error {
	client, pool, err := p.open(ctx)
	if err != nil {
		return err
	}
	stream, err := sqlstreams.RegisterStream[WelcomeEmail](ctx, client, "s", nil)
	if err != nil {
		return err
	}
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err := stream.Producer(nil).ProduceTx(ctx, tx, &WelcomeEmail{UserID: "frozen"}, nil); err != nil {
		return err
	}
	p.tell("holding")
	if err := p.await(ctx, "commit"); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	p.tell("committed")
	return nil
}

// consumeRole runs the group g with leases of 2.6 s. A handler says "running" and waits to be told "return" or "fail"; users whose name begins with "quick" are done at once.
func consumeRole(ctx context.Context, p *process) error {
	client, _, err := p.open(ctx)
	if err != nil {
		return err
	}
	stream, err := sqlstreams.RegisterStream[WelcomeEmail](ctx, client, "s", nil)
	if err != nil {
		return err
	}
	instance, err := stream.RegisterConsumer(ctx, "g", nil)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	waiting := map[string]chan string{}
	answer := func(user string) chan string {
		mu.Lock()
		defer mu.Unlock()
		if waiting[user] == nil {
			waiting[user] = make(chan string, 1)
		}
		return waiting[user]
	}
	go func() {
		for line := range p.heard {
			verb, user, _ := strings.Cut(line, " ")
			if verb != "health" {
				answer(user) <- verb
				continue
			}
			text, _ := json.Marshal(instance.Health())
			p.tell("health %s", text)
		}
	}()
	return instance.Consume(ctx, func(ctx context.Context, email *WelcomeEmail) error {
		p.tell("running %s", email.UserID)
		if strings.HasPrefix(email.UserID, "quick") {
			return nil
		}
		if <-answer(email.UserID) == "fail" {
			return errors.New("told to fail")
		}
		return nil
	}, shortLease())
}

// shortLease are options with which a group whose ceiling is a second has leases of 2.6 s.
func shortLease() *sqlstreams.ConsumeOptions {
	return &sqlstreams.ConsumeOptions{Handlers: 2, QueueMargin: time.Second, TimeoutGrace: 100 * time.Millisecond, RecordMargin: 500 * time.Millisecond}
}

// produceAll produces a message for each name in one batch.
func produceAll(t testing.TB, stream *sqlstreams.Stream[WelcomeEmail], names ...string) []sqlstreams.Produced {
	t.Helper()
	batch := make([]sqlstreams.Outgoing[WelcomeEmail], len(names))
	for i, name := range names {
		batch[i].Payload = &WelcomeEmail{UserID: name}
	}
	produced, err := stream.Producer(nil).ProduceBatch(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	return produced
}

// numbered returns n names.
func numbered(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return names
}

// content is what stands in control tables, for comparing.
func content(t testing.TB, db *pgtest.Database, tables ...string) string {
	t.Helper()
	var all strings.Builder
	for _, table := range tables {
		fmt.Fprintf(&all, "%s: %s\n", table, queryText(t, db, `select coalesce(string_agg(x::text, E'\n' order by x::text), '') from sqlstreams.`+table+` x`))
	}
	return all.String()
}

func queryText(t testing.TB, db *pgtest.Database, sql string, args ...any) string {
	t.Helper()
	var text string
	if err := db.Conn(t).QueryRow(t.Context(), sql, args...).Scan(&text); err != nil {
		t.Fatalf("query %s: %v", sql, err)
	}
	return text
}

// lockClass is the first key of the advisory locks of a kind in the default schema.
func lockClass(t testing.TB, kind string) int32 {
	t.Helper()
	names, err := schema.NewNames(sqlstreams.DefaultSchema)
	if err != nil {
		t.Fatal(err)
	}
	return names.Lock(kind)
}

// lines keeps what a logger writes.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewJSONHandler(l, nil)) }

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// find returns the lines in which the field has the value.
func (l *lines) find(t testing.TB, field, value string) (found []map[string]any) {
	t.Helper()
	for line := range strings.Lines(l.String()) {
		var all map[string]any
		if err := json.Unmarshal([]byte(line), &all); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if all[field] == value {
			found = append(found, all)
		}
	}
	return found
}

// quantile returns the duration below which a part of all lies.
func quantile(all []time.Duration, part float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Clone(all)
	slices.Sort(sorted)
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]
}

// pause waits for time to pass, where that is what is tested.
func pause(d time.Duration) { <-time.NewTimer(d).C }

// coded checks that err is the library's, of this condition, and says rightly whether the identical call may succeed later.
func coded(t testing.TB, err, sentinel error, retryable bool) *sqlstreams.Error {
	t.Helper()
	e, ok := errors.AsType[*sqlstreams.Error](err)
	if !ok {
		t.Fatalf("%v (%T) is no error of the library; wanted %v", err, err, sentinel)
	}
	if !errors.Is(err, sentinel) {
		t.Errorf("%v is not %v", err, sentinel)
	}
	if e.Retryable != retryable {
		t.Errorf("%v: Retryable is %v", err, e.Retryable)
	}
	if e.Code == "" || e.Op == "" {
		t.Errorf("%#v does not say what was attempted", e)
	}
	return e
}

// noChange leaves a pool's configuration as it is.
func noChange(*pgxpool.Config) {}
