package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
	"github.com/sqlstreams/sqlstreams/internal/schema"
)

// Each state in which a group can be is made for real. Then "group show" must say so first, what it gives as the remedy is done to the letter, and the state must be gone. Where it gives
// none, the state must pass by itself.
func TestEachReasonAndItsRemedy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		make   func(*patient)
		state  string // in "group list"
		reason string // a pattern of the first reason
		code   string
		remedy string // a pattern; "": none is given
		blocks bool
	}{
		{"paused", (*patient).pause, "paused", `^The group is paused\.$`, "", `^sqlstreams group resume orders mailer$`, true},
		{"no instance", (*patient).produce, "no instance", `^No instance of the group is running: `, "", `^sqlstreams consume orders --group mailer$`, true},
		{"the group's lock is held", (*patient).holdGroup, "lock held", `^The lock of the group has been held for .* by server process \d+, idle in transaction;`, "SQL0151",
			`^select pg_terminate_backend\(\d+\)$`, true},
		{"the stream's lock is held", (*patient).holdStream, "lock held", `^The lock of the stream has been held for `, "SQL0151", `^select pg_terminate_backend\(\d+\)$`, true},
		{"the holder of a range is gone", (*patient).kill, "holder gone", `^Messages 1 to 1 are under the lease of an instance that is gone \(process \d+ on .*\); it ends in `, "", "", true},
		{"a range was left", (*patient).leave, "stale range", `^\d open ranges? (was|were) left by the holder .*, first messages \d to 3;`, "SQL0105", "", true},
		{"position lost", (*patient).losePosition, "position lost", `^Messages 1 to 2 are gone from the stream; `, "SQL0101", "", false},
		{"messages without ids", (*patient).forgetInbox, "no instance", `^No instance of the group is running: `, "", `^sqlstreams consume orders --group mailer$`, true},
		{"backoff", (*patient).fail, "in backoff", `^1 message waits in backoff; the next is due in (\d+m|1h)`, "", `^sqlstreams group retry-now orders mailer --all$`, false},
		{"a parked key", (*patient).park, "key parked", `^1 message of key "k" waits behind dead letter 1, which parks the key: `, "SQL0108", `^sqlstreams dead redrive orders mailer --id 1$`, true},
		{"a key behind a retry", (*patient).blockKey, "in backoff", `^1 message of key "k" waits for message 1, which has failed or was delayed and runs again in `, "",
			`^sqlstreams group retry-now orders mailer --id 1$`, false},
		{"dead letters", (*patient).bury, "caught up", `^2 messages are dead letters; `, "SQL0108", `^sqlstreams dead list orders mailer$`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPatient(t)
			c.make(p)
			defer func() {
				if t.Failed() {
					t.Logf("at the end: %+v", p.status().Reasons)
				}
			}()
			pattern := regexp.MustCompile(c.reason)
			p.eventually("the reason comes first", func(reasons []sqlstreams.Reason) bool { return pattern.MatchString(reasons[0].Text) })
			s := p.status()
			first := s.Reasons[0]
			if !pattern.MatchString(first.Text) || first.Code != c.code || first.Blocking != c.blocks || !regexp.MustCompile(c.remedy).MatchString(first.Remedy) || (c.remedy == "") != (first.Remedy == "") {
				t.Errorf("the reason is %+v", first)
			}
			if s.State != c.state {
				t.Errorf("in two words: %q, want %q", s.State, c.state)
			}
			if text, _ := p.command("group show orders mailer"); !strings.Contains(text, first.Remedy) || c.blocks != strings.Contains(text, "\n  ! ") {
				t.Errorf("a person is shown\n%s", text)
			}
			p.apply(first.Remedy)
			p.eventually("the state is gone", func(reasons []sqlstreams.Reason) bool {
				return !slices.ContainsFunc(reasons, func(r sqlstreams.Reason) bool { return pattern.MatchString(r.Text) })
			})
			p.follow()
		})
	}
}

// patient is a group "mailer" of a stream "orders".
type patient struct {
	*testing.T
	db     *pgtest.Database
	client *sqlstreams.Client // a program beside the command line
	stream *sqlstreams.Stream[string]
	group  *sqlstreams.GroupHandle
	apply  func(remedy string)
}

func newPatient(t *testing.T) *patient {
	t.Helper()
	p := &patient{T: t, db: pgtest.NewDatabase(t)}
	p.apply = p.do
	var err error
	if p.client, err = sqlstreams.NewClient(t.Context(), p.db.Pool(t), &sqlstreams.ClientConfig{DisableManager: true, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.client.Close(context.Background()) })
	if p.stream, err = sqlstreams.RegisterStream[string](t.Context(), p.client, "orders", nil); err != nil {
		t.Fatal(err)
	}
	p.declare(nil)
	p.group = p.client.Group("orders", "mailer")
	return p
}

func (p *patient) declare(config *sqlstreams.ConsumerConfig) *sqlstreams.Consumer[string] {
	p.Helper()
	consumer, err := p.stream.RegisterConsumer(p.Context(), "mailer", config)
	if err != nil {
		p.Fatal(err)
	}
	return consumer
}

// eventually waits for what "group show" would say, without a program and its connections for each look.
func (p *patient) eventually(what string, cond func([]sqlstreams.Reason) bool) {
	p.Helper()
	pgtest.Eventually(p.T, 20*time.Second, what, func() bool {
		s, err := p.group.Status(p.Context())
		if err != nil {
			p.Fatal(err)
		}
		return cond(s.Reasons) || !wait(p.Context(), 20*time.Millisecond)
	})
}

func (p *patient) status() (s groupStatusView) {
	p.Helper()
	if err := json.Unmarshal([]byte(cli(p.T, p.db, "group", "show", "orders", "mailer", "-o", "json")), &s); err != nil {
		p.Fatal(err)
	}
	return s
}

func (p *patient) says(pattern *regexp.Regexp) bool {
	p.Helper()
	for _, r := range p.status().Reasons {
		if pattern.MatchString(r.Text) {
			return true
		}
	}
	return false
}

// command runs a line as it was printed, and returns both outputs.
func (p *patient) command(line string) (out, stderr string) {
	p.Helper()
	var o, e bytes.Buffer
	if code := run(p.Context(), strings.Fields(line), p.env(&o, &e)); code != ExitDone {
		p.Fatalf("%q: exit code %d\n%s", line, code, e.String())
	}
	return o.String(), e.String()
}

func (p *patient) env(out, stderr io.Writer) Env {
	getenv := func(name string) string { return map[string]string{"DATABASE_URL": p.db.DSN}[name] }
	return Env{Stdin: strings.NewReader(""), Stdout: out, Stderr: stderr, Getenv: getenv, Terminal: func(any) bool { return false }}
}

// do carries out a remedy as it stands; consuming would not end by itself.
func (p *patient) do(remedy string) {
	p.Helper()
	line, isCommand := strings.CutPrefix(remedy, "sqlstreams ")
	switch {
	case remedy == "":
	case !isCommand:
		p.db.Exec(p.T, remedy)
	default:
		if strings.HasPrefix(line, "consume ") {
			line += " --until caught-up"
		}
		p.command(line)
	}
}

// follow does what is said until nothing is left to do.
func (p *patient) follow() {
	p.Helper()
	p.eventually("the group has caught up", func(reasons []sqlstreams.Reason) bool {
		if len(reasons) == 1 && reasons[0].Text == "It has caught up." {
			return true
		}
		p.apply(reasons[0].Remedy)
		return false
	})
	if s := p.status(); s.State != "caught up" || s.Committed != s.Head {
		p.Errorf("in the end: %+v", s)
	}
}

func (p *patient) produce() { p.produceText("at once") }

func (p *patient) produceText(text string) { p.produceWith(text, nil) }

func (p *patient) produceWith(text string, options *sqlstreams.ProduceOptions) {
	p.Helper()
	if _, err := p.stream.Producer(nil).Produce(p.Context(), &text, options); err != nil {
		p.Fatal(err)
	}
}

// produceKey produces two messages of one key.
func (p *patient) produceKey() {
	p.Helper()
	for range 2 {
		p.produceWith("in line", &sqlstreams.ProduceOptions{Key: "k"})
	}
}

func (p *patient) pause() {
	cli(p.T, p.db, "group", "pause", "orders", "mailer")
	p.produce()
}

// hold takes a lock of the library in a session that then does nothing.
func (p *patient) hold(kind string) {
	p.Helper()
	names, err := schema.NewNames(sqlstreams.DefaultSchema)
	if err != nil {
		p.Fatal(err)
	}
	tx, err := p.db.Conn(p.T).Begin(p.Context())
	if err != nil {
		p.Fatal(err)
	}
	id := map[string]string{"stream": "select id from sqlstreams.stream", "group": "select id from sqlstreams.consumer_group"}[kind]
	if _, err := tx.Exec(p.Context(), "select pg_advisory_xact_lock($1, ("+id+"))", names.Lock(kind)); err != nil {
		p.Fatal(err)
	}
}

func (p *patient) holdGroup() {
	p.produce()
	p.hold("group")
}

func (p *patient) holdStream() {
	p.hold("stream")
	p.produceInTx()
}

func (p *patient) produceInTx() {
	p.Helper()
	producer, text := p.stream.Producer(nil), "in a transaction"
	err := p.client.InTx(p.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := producer.ProduceTx(ctx, tx, &text, nil)
		return err
	})
	if err != nil {
		p.Fatal(err)
	}
}

func (p *patient) forgetInbox() {
	p.Helper()
	p.produceInTx()
	p.db.Exec(p.T, "update sqlstreams.inbox set produced_at = produced_at - interval '1 minute'")
	if waits := regexp.MustCompile("^1 committed messages wait for their ids, the first for 1m"); !p.says(waits) {
		p.Errorf("the inbox is no reason: %+v", p.status().Reasons)
	}
	p.apply = func(remedy string) {
		p.do(remedy)
		if p.says(regexp.MustCompile("wait for their ids")) {
			p.Error("they still wait")
		}
	}
}

// live runs an instance in this process until the test's end.
func (p *patient) live(config *sqlstreams.ConsumerConfig, options *sqlstreams.ConsumeOptions, handle func(context.Context, *string) error) {
	p.Helper()
	consumer := p.declare(config)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- consumer.Consume(ctx, handle, options) }()
	p.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			p.Error(err)
		}
	})
	pgtest.Eventually(p.T, 10*time.Second, "the instance runs", func() bool { return p.db.QueryInt(p.T, "select count(*) from sqlstreams.instance") > 0 })
}

// kill leaves a range to an instance that was killed at work, while another one waits for it.
func (p *patient) kill() {
	p.Helper()
	// More than a pipe holds: the instance stays inside its handler, as nobody reads on.
	p.produceText(strings.Repeat("x", 500_000))
	short := &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{Timeout: 2 * time.Second}}
	p.declare(short)
	child := start(p.T, p.db, "consume", "orders", "--group", "mailer", "--queue-margin", "1s", "--record-margin", "1s")
	if _, err := io.ReadFull(child.out, make([]byte, 1)); err != nil {
		p.Fatal(err)
	}
	p.live(short, nil, func(context.Context, *string) error { return nil })
	pgtest.Eventually(p.T, 10*time.Second, "both run", func() bool { return p.db.QueryInt(p.T, "select count(*) from sqlstreams.instance") == 2 })
	if err := child.Process.Kill(); err != nil {
		p.Fatal(err)
	}
	_ = child.Wait() // it was killed
	// An instance is taken for gone when it was silent for a minute.
	p.db.Exec(p.T, "update sqlstreams.instance set seen_at = seen_at - interval '2 minutes' where pid = $1", child.Process.Pid)
}

// leave makes an instance leave a range whose lease does not suffice for the rest of it. It takes it back when the lease has ended.
func (p *patient) leave() {
	p.Helper()
	for range 3 {
		p.produce()
	}
	slow := make(chan struct{}, 1)
	slow <- struct{}{}
	p.live(&sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{Timeout: 2 * time.Second, BaseDelay: time.Millisecond}},
		&sqlstreams.ConsumeOptions{Handlers: 1, BatchLimit: 3, BatchMin: 3, QueueMargin: time.Second, RecordMargin: time.Second}, func(ctx context.Context, _ *string) error {
			select {
			case <-slow:
				<-ctx.Done()
				return errors.New("too slow")
			default:
				return nil
			}
		})
}

// losePosition takes away what the group has not reached, as retention does.
func (p *patient) losePosition() {
	p.produce()
	p.produce()
	p.db.Exec(p.T, "update sqlstreams.stream set first_id = 3")
	p.db.Exec(p.T, "delete from sqlstreams.log_1 where id < 3")
	p.apply = func(remedy string) { p.do("sqlstreams consume orders --group mailer") } // whoever consumes is told, and goes on
}

// fail lets a message fail once, so that it waits for an hour.
func (p *patient) fail() {
	p.Helper()
	p.failFirst(&sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{BaseDelay: time.Hour, MaxDelay: time.Hour}})
	p.produce()
}

func (p *patient) failFirst(config *sqlstreams.ConsumerConfig) {
	p.Helper()
	failed := false // one handler runs at a time
	p.live(config, &sqlstreams.ConsumeOptions{Handlers: 1}, func(context.Context, *string) error {
		if failed {
			return nil
		}
		failed = true
		return fmt.Errorf("mailbox %d busy", 1)
	})
}

// blockKey lets the first message of a key wait for an hour, and the second for it.
func (p *patient) blockKey() {
	p.Helper()
	p.failFirst(&sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{BaseDelay: time.Hour, MaxDelay: time.Hour}, KeyOrder: sqlstreams.Ordered})
	p.produceKey()
}

// park makes the first message of a key a dead letter that keeps the second waiting.
func (p *patient) park() {
	p.Helper()
	p.failFirst(&sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{MaxAttempts: 1}, KeyOrder: sqlstreams.Ordered, ParkKeyOnDeadLetter: true})
	p.produceKey()
}

// bury makes dead letters; the remedy only lists them, and the list says how they are run again.
func (p *patient) bury() {
	p.Helper()
	p.produce()
	p.produce()
	cli(p.T, p.db, "consume", "orders", "--group", "mailer", "--until", "caught-up", "--exec", "exit 65")
	p.apply = func(remedy string) {
		p.Helper()
		if !strings.HasPrefix(remedy, "sqlstreams dead list ") {
			p.do(remedy)
			return
		}
		_, stderr := p.command(strings.TrimPrefix(remedy, "sqlstreams "))
		_, again, _ := strings.Cut(stderr, "run again:")
		p.do(strings.TrimSpace(again))
	}
}
