package demo

import (
	"fmt"
	"io"
	"time"

	"github.com/sqlstreams/sqlstreams"
)

// LoseOne is the sabotage that deletes one message from the stream's table before any group has claimed it.
const LoseOne = "lose-one"

// Options are the choices for one run.
type Options struct {
	// DSN is the database to use, in schemas of the demo's own. Default: a disposable server, which needs PostgreSQL's programs.
	DSN string
	// Keep leaves the schemas behind. Only with a DSN, since a disposable server goes with its data.
	Keep bool
	// Sabotage breaks something, to see that it is noticed: LoseOne. Default: nothing.
	Sabotage string
	// Brief shortens all times, for tests: about ten seconds.
	Brief bool
	// Color uses the colours of a terminal. Default: plain text.
	Color bool
	// Out gets the story.
	Out io.Writer
	// ChildArgs start this program again so that it calls Child if IsChild. Default: "demo".
	ChildArgs []string
}

// UsageError says that the options do not fit together.
type UsageError struct{ Text string }

func (e *UsageError) Error() string { return e.Text }

func (o *Options) check() error {
	switch {
	case o.Sabotage != "" && o.Sabotage != LoseOne:
		return &UsageError{fmt.Sprintf("unknown sabotage %q; there is %s", o.Sabotage, LoseOne)}
	case o.Keep && o.DSN == "":
		return &UsageError{"there is nothing to keep: the disposable server goes with its data; name a database"}
	}
	return nil
}

// pace is how fast everything goes. The parent decides it and tells its children.
type pace struct {
	// What a lease of charge-cards consists of.
	Timeout, QueueMargin, TimeoutGrace, RecordMargin time.Duration
	// BaseDelay is the wait after the first failure.
	BaseDelay time.Duration
	// Work is how long an ordinary bank takes, Slow how long the slow one does.
	Work, Slow time.Duration
	// Every so often Together payments are produced in one transaction.
	Every    time.Duration
	Together int
	// Calm is how long nothing special happens at the beginning and at the end, Pause the same between what happens.
	Calm, Pause time.Duration
}

func newPace(brief bool) pace {
	p := pace{
		Timeout: 2 * time.Second, QueueMargin: 2 * time.Second, TimeoutGrace: 250 * time.Millisecond, RecordMargin: 750 * time.Millisecond,
		BaseDelay: 500 * time.Millisecond, Work: 40 * time.Millisecond, Slow: 1500 * time.Millisecond,
		Every: 200 * time.Millisecond, Together: 5, Calm: 4 * time.Second, Pause: 1500 * time.Millisecond,
	}
	if brief {
		p.Timeout, p.QueueMargin, p.RecordMargin = 800*time.Millisecond, time.Second, 450*time.Millisecond
		p.BaseDelay, p.Slow = 200*time.Millisecond, 600*time.Millisecond
		p.Calm, p.Pause = 500*time.Millisecond, 50*time.Millisecond
	}
	return p
}

// lease is how long what a process has claimed stays its own after its death, at most.
func (p *pace) lease() time.Duration {
	return p.QueueMargin + p.Timeout + p.TimeoutGrace + p.RecordMargin
}

// formula says what the lease is made of.
func (p *pace) formula() string {
	return fmt.Sprintf("%s = QueueMargin %s + Timeout %s + TimeoutGrace %s + RecordMargin %s", p.lease(), p.QueueMargin, p.Timeout, p.TimeoutGrace, p.RecordMargin)
}

// rate is how many payments are produced a second.
func (p *pace) rate() float64 { return float64(p.Together) / p.Every.Seconds() }

// group declares a group: only charge-cards is in a hurry.
func (p *pace) group(name string) *sqlstreams.ConsumerConfig {
	if name != chargeCards {
		return nil
	}
	return &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{Timeout: p.Timeout, BaseDelay: p.BaseDelay}}
}

// consume says how an instance of a group consumes.
func (p *pace) consume(name string) *sqlstreams.ConsumeOptions {
	if name != chargeCards {
		return &sqlstreams.ConsumeOptions{Handlers: handlers}
	}
	return &sqlstreams.ConsumeOptions{
		Handlers: handlers, BatchMin: batchMin, QueueMargin: p.QueueMargin, TimeoutGrace: p.TimeoutGrace, RecordMargin: p.RecordMargin,
	}
}

const (
	handlers = 4
	// batchMin lets an instance claim all messages of one transaction together, however slow a bank was just before.
	batchMin = 12
)
