package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
)

// The parent starts this program again, with childCommand, for each consumer.
const (
	childCommand = "consume"
	// The address of the database may hold a password, which would show in the list of processes.
	childDSN = "SQLSTREAMS_DEMO_DSN"
)

// The allowances of a lease are short, so that the demo need not wait long for a dead process's work. With the defaults it would be 47.1 s.
const (
	timeout      = time.Second
	queueMargin  = time.Second
	timeoutGrace = 100 * time.Millisecond
	recordMargin = 500 * time.Millisecond
	lease        = timeout + queueMargin + timeoutGrace + recordMargin

	handlers    = 8
	stopTimeout = 15 * time.Second // what the parent waits for a child that was told to stop
)

// childFlags are what the parent tells a child.
type childFlags struct {
	group, schema, app, root string
	pause                    time.Duration
}

func (c childFlags) args() []string {
	return []string{childCommand, "-group", c.group, "-schema", c.schema, "-app", c.app, "-root", c.root, "-pause", c.pause.String()}
}

// report is a line that a child writes to its standard output for the parent.
type report struct {
	Ready       bool      `json:"ready,omitempty"`       // registered, about to consume
	Redelivered int64     `json:"redelivered,omitempty"` // a message whose range somebody else had claimed before
	At          time.Time `json:"at,omitzero"`           // when that one began
	Failed      string    `json:"failed,omitempty"`      // it consumes no more
}

// child is one process that consumes.
type child struct {
	childFlags
	app  *pgxpool.Pool // for the handlers
	own  *pgxpool.Pool // for SQLStreams
	mu   sync.Mutex
	out  *json.Encoder
	work func(ctx context.Context, file *SourceFile, content []byte) error
}

// childMain consumes until the parent closes this process's standard input. The parent's death closes it too, so no child outlives it.
func childMain(args []string) int {
	// Ctrl-C in a terminal goes to every process; what happens then is for the parent to say.
	signal.Ignore(os.Interrupt, syscall.SIGHUP)
	var c child
	flags := flag.NewFlagSet(childCommand, flag.ExitOnError)
	flags.StringVar(&c.group, "group", "", "")
	flags.StringVar(&c.schema, "schema", "", "")
	flags.StringVar(&c.childFlags.app, "app", "", "")
	flags.StringVar(&c.root, "root", "", "")
	flags.DurationVar(&c.pause, "pause", 0, "")
	_ = flags.Parse(args) // ExitOnError
	c.out = json.NewEncoder(os.Stdout)

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	failed := false
	go func() {
		defer close(done)
		if err := c.consume(ctx); err != nil {
			failed = true
			c.report(report{Failed: err.Error()})
		}
	}()
	// Whatever ends the pipe ends the child.
	_, _ = io.Copy(io.Discard, os.Stdin)
	cancel()
	<-done
	if failed {
		return exitLost
	}
	return 0
}

func (c *child) report(r report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Without a parent there is nobody to report to, and this process is about to end.
	_ = c.out.Encode(r)
}

func (c *child) consume(ctx context.Context) error {
	var err error
	if c.app, err = c.openPool(ctx, handlers); err != nil {
		return err
	}
	defer c.app.Close()
	if c.own, err = c.openPool(ctx, 2); err != nil {
		return err
	}
	defer c.own.Close()
	switch c.group {
	case countLine:
		c.work = c.countLines
	case countImport:
		c.work = c.countImports
	default:
		return fmt.Errorf("no group is called %q", c.group)
	}
	client, err := sqlstreams.NewClient(ctx, c.own, &sqlstreams.ClientConfig{Schema: c.schema, Logger: quietLogger(os.Stderr)})
	if err != nil {
		return err
	}
	defer client.Close(context.WithoutCancel(ctx))
	stream, err := sqlstreams.RegisterStream[SourceFile](ctx, client, streamName, nil)
	if err != nil {
		return err
	}
	consumer, err := stream.RegisterConsumer(ctx, c.group, &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{Timeout: timeout}})
	if err != nil {
		return err
	}
	c.report(report{Ready: true})
	return consumer.Consume(ctx, c.handle, &sqlstreams.ConsumeOptions{
		Handlers: handlers, QueueMargin: queueMargin, TimeoutGrace: timeoutGrace, RecordMargin: recordMargin,
	})
}

func (c *child) openPool(ctx context.Context, conns int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(os.Getenv(childDSN))
	if err != nil {
		return nil, err
	}
	config.MaxConns = conns
	return pgxpool.NewWithConfig(ctx, config)
}

// handle is the consumer function.
func (c *child) handle(ctx context.Context, file *SourceFile) error {
	if meta, ok := sqlstreams.MetaFromContext(ctx); ok && meta.Redelivered {
		c.report(report{Redelivered: meta.ID, At: time.Now()})
	}
	content, err := file.content(c.root)
	if err != nil {
		return err
	}
	// Counting takes no time to speak of. The pause stands for a call to something slow, so that whoever is killed surely holds work.
	if c.pause > 0 {
		pause := time.NewTimer(c.pause)
		defer pause.Stop()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-pause.C:
		}
	}
	return c.work(ctx, file, content)
}

func (c *child) countLines(ctx context.Context, file *SourceFile, content []byte) error {
	return c.store(ctx, "file_lines", "lines", file.Path, countLines(content))
}

func (c *child) countImports(ctx context.Context, file *SourceFile, content []byte) error {
	return c.store(ctx, "file_imports", "imports", file.Path, importsOf(file.Path, content))
}

// store writes a file's count. A second run of the same file finds its row and changes nothing but how often it was handled.
func (c *child) store(ctx context.Context, table, column, path string, counted any) error {
	_, err := c.app.Exec(ctx, fmt.Sprintf(`insert into %s.%s as t (path, %s, pid) values ($1, $2, $3)
		on conflict (path) do update set %[3]s = excluded.%[3]s, pid = excluded.pid, handled = t.handled + 1`, quote(c.childFlags.app), table, column),
		path, counted, os.Getpid())
	return err
}
