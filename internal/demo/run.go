package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sqlstreams/sqlstreams"
)

const (
	// limit bounds a run, whatever happens in it.
	limit = 2 * time.Minute
	look  = 20 * time.Millisecond // how often the parent looks
)

// Run tells the whole story to o.Out. Its last line is what was lost: a number, or "unknown" if the run could not be completed.
//
// Errors: *LostError; *UsageError for options that do not fit, before anything is written; ctx's; and whatever kept the run from its end.
func Run(ctx context.Context, o Options) error {
	if err := o.check(); err != nil {
		return err
	}
	if o.ChildArgs == nil {
		o.ChildArgs = []string{"demo"}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it was not over after %s", limit))
	defer cancel()
	d := &demo{o: o, pace: newPace(o.Brief), story: newStory(o.Out, o.Color), redriven: map[string]int64{}}
	s, err := d.run(ctx)
	if err != nil {
		s = nil
		d.story.tell(say(alarm, "stopped", "the run could not be completed, so what was lost is not known"))
	} else {
		for _, row := range s.table() {
			d.story.end("", row)
		}
		err = s.verdict()
	}
	d.story.end(lastLine(s))
	return err
}

// demo is one run.
type demo struct {
	o     Options
	pace  pace
	story *story
	place *place
	till  *till
	crew  []*process // alive, as far as is known

	taking   chan error    // gets what ends the steady production
	stopTill chan struct{} // closed to end it
	redriven map[string]int64
}

// run does everything, and leaves nothing behind. A score comes without an error only.
func (d *demo) run(ctx context.Context) (s *score, err error) {
	if d.place, err = openPlace(ctx, d.story, &d.o); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.place.close()) }()
	// The steady production ends before what it uses is closed.
	ctx, cancel := context.WithCancel(ctx)
	d.taking, d.stopTill = make(chan error, 1), make(chan struct{})
	defer func() {
		cancel()
		if d.till != nil {
			<-d.taking
		}
	}()
	defer func() { err = errors.Join(err, d.stopCrew()) }()
	s, err = d.tell(ctx)
	if errors.Is(ctx.Err(), context.Canceled) {
		// Whatever an interruption made fail is no news.
		s, err = nil, ctx.Err()
	}
	return s, err
}

// tell goes through the story.
func (d *demo) tell(ctx context.Context) (*score, error) {
	if err := d.begin(ctx); err != nil {
		return nil, err
	}
	for _, chapter := range []func(context.Context) error{d.changeMind, d.killOne, d.hang, d.retry, d.refuse} {
		if err := chapter(ctx); err != nil {
			return nil, err
		}
		if err := d.rest(ctx, d.pace.Pause); err != nil {
			return nil, err
		}
	}
	if err := d.finish(ctx); err != nil {
		return nil, err
	}
	return d.count(ctx)
}

// begin declares stream and groups, starts the children and then the steady production.
func (d *demo) begin(ctx context.Context) error {
	stream, err := sqlstreams.RegisterStream[Payment](ctx, d.place.client, streamName, nil)
	if err != nil {
		return err
	}
	for _, name := range groups() {
		if _, err := stream.RegisterConsumer(ctx, name, d.pace.group(name)); err != nil {
			return err
		}
	}
	d.story.tell(
		say(plain, "installed", "stream %s with two groups; the lease of %s, from its settings:", streamName, chargeCards),
		more("%s", d.pace.formula()))
	if d.o.Sabotage == LoseOne {
		// What nobody can claim can be deleted without a race.
		if err := d.pause(ctx); err != nil {
			return err
		}
	}
	for _, name := range []string{chargeCards, chargeCards, auditPayments} {
		if _, err := d.start(name); err != nil {
			return err
		}
	}
	if err := d.until(ctx, "the instances are ready", d.allReady); err != nil {
		return err
	}
	d.story.tell(
		say(plain, "instances", "%s on %s and %s, which share the payments", chargeCards, d.crew[0], d.crew[1]),
		more("%s on %s, which gets every payment as well", auditPayments, d.crew[2]))
	till := &till{place: d.place, producer: stream.Producer(nil)}
	d.till = till
	go func() { d.taking <- till.steadily(ctx, d.stopTill, &d.pace) }()
	d.story.tell(say(plain, "payments", "%.0f a second from now on, each row of payments in one transaction with its message", d.pace.rate()))
	if d.o.Sabotage == LoseOne {
		return d.loseOne(ctx)
	}
	return d.rest(ctx, d.pace.Calm)
}

func groups() []string { return []string{chargeCards, auditPayments} }

func (d *demo) start(group string) (*process, error) {
	p, err := startProcess(d.story, orders{DSN: d.place.dsn, Schema: d.place.schema, Business: d.place.business, Group: group, Pace: d.pace}, d.o.ChildArgs)
	if err != nil {
		return nil, err
	}
	d.crew = append(d.crew, p)
	return p, nil
}

func (d *demo) allReady(context.Context) (bool, error) {
	for _, p := range d.crew {
		if _, ready := p.lastReport(); !ready {
			return false, nil
		}
	}
	return true, nil
}

// until looks again and again, until the condition holds, or a child or the steady production has failed.
func (d *demo) until(ctx context.Context, what string, condition func(context.Context) (bool, error)) error {
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		if met, err := condition(ctx); met || err != nil {
			return err
		}
		for _, p := range d.crew {
			if err := p.check(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w", what, context.Cause(ctx))
		case err := <-d.taking:
			d.taking <- err // also for whoever awaits its end
			if err != nil {
				return err
			}
		case <-tick.C:
		}
	}
}

// rest lets some time go by in which nothing special happens.
func (d *demo) rest(ctx context.Context, long time.Duration) error {
	end := time.Now().Add(long)
	return d.until(ctx, "some payments are through", func(context.Context) (bool, error) { return time.Now().After(end), nil })
}

// dismiss takes a process that was killed off the crew.
func (d *demo) dismiss(gone *process) {
	var rest []*process
	for _, p := range d.crew {
		if p != gone {
			rest = append(rest, p)
		}
	}
	d.crew = rest
}

// byPID returns a process of the crew; nil: it is not of the crew.
func (d *demo) byPID(pid int) *process {
	for _, p := range d.crew {
		if p.pid() == pid {
			return p
		}
	}
	return nil
}

// stopCrew ends every child.
func (d *demo) stopCrew() error {
	ended := make(chan error)
	for _, p := range d.crew {
		go func() { ended <- p.stop() }()
	}
	var errs []error
	for range d.crew {
		errs = append(errs, <-ended)
	}
	d.crew = nil
	return errors.Join(errs...)
}
