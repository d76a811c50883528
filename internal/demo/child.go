package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
)

const (
	streamName    = "payments"
	chargeCards   = "charge-cards"
	auditPayments = "audit-payments"

	// childVariable holds a child's orders. They contain the database's address, which may hold a password and would show in the list of processes.
	childVariable = "SQLSTREAMS_DEMO_CHILD"
)

// orders are what the parent tells a child.
type orders struct {
	DSN, Schema, Business, Group string
	Pace                         pace
}

// report is a line that a child writes to its standard output.
type report struct {
	Ready     bool   `json:"ready,omitempty"`     // registered, about to consume
	Failed    string `json:"failed,omitempty"`    // it consumes no more
	Abandoned int64  `json:"abandoned,omitempty"` // handlers, told at the end
}

// IsChild reports whether this process was started by a running demo: it is to call Child and nothing else.
func IsChild() bool { return os.Getenv(childVariable) != "" }

// Child consumes, as one instance of one group, until the parent closes this process's standard input or dies. An error has been told to the parent.
func Child() error {
	// Ctrl-C in a terminal goes to every process; what happens then is for the parent to say.
	signal.Ignore(os.Interrupt, syscall.SIGHUP)
	out := json.NewEncoder(os.Stdout)
	err := runChild(os.Stdin, os.Stderr, out)
	if err != nil {
		// Without a parent there is nobody to tell, and this process ends.
		_ = out.Encode(report{Failed: err.Error()})
	}
	return err
}

func runChild(stdin io.Reader, stderr io.Writer, out *json.Encoder) error {
	c := &child{told: make(chan struct{}), stuck: map[int64]bool{}}
	if err := json.Unmarshal([]byte(os.Getenv(childVariable)), &c.orders); err != nil {
		return fmt.Errorf("read %s: %w", childVariable, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // ends with standard input, so with the process at the latest
		_, _ = io.Copy(io.Discard, stdin) // whatever ends it
		close(c.told)
		cancel()
	}()
	return c.consume(ctx, slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})), out)
}

// child is one process that consumes.
type child struct {
	orders
	pool *pgxpool.Pool
	told chan struct{} // closed when it is to stop

	mu    sync.Mutex
	stuck map[int64]bool // payments that wait for stuckBank in this process
}

func (c *child) consume(ctx context.Context, logger *slog.Logger, out *json.Encoder) error {
	config, err := pgxpool.ParseConfig(c.DSN)
	if err != nil {
		return errors.New("the database's address cannot be parsed")
	}
	config.MaxConns = handlers + 1 // the one that hangs holds none, but its successor needs one
	if c.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	defer c.pool.Close()
	client, err := sqlstreams.NewClient(ctx, c.pool, &sqlstreams.ClientConfig{Schema: c.Schema, ControlConns: 2, Logger: logger})
	if err != nil {
		return err
	}
	defer client.Close(context.WithoutCancel(ctx))
	stream, err := sqlstreams.RegisterStream[Payment](ctx, client, streamName, nil)
	if err != nil {
		return err
	}
	instance, err := stream.RegisterConsumer(ctx, c.Group, c.Pace.group(c.Group))
	if err != nil {
		return err
	}
	work := c.charge
	if c.Group == auditPayments {
		work = c.audit
	}
	if err := out.Encode(report{Ready: true}); err != nil {
		return err
	}
	if err := instance.Consume(ctx, work, c.Pace.consume(c.Group)); err != nil {
		return err
	}
	return out.Encode(report{Abandoned: instance.Health().Abandoned})
}
