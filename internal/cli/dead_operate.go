package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/sqlstreams/sqlstreams"
)

// operation is a command that changes many of a group's dead letters, or of its deliveries that wait.
type operation struct {
	verb                   string
	short, long, example   string
	one, many, done, doing string // "dead letter", "dead letters", "redriven", "redriving"
	dead                   bool   // dead letters, not deliveries
	rate                   bool   // has --rate
	early                  bool   // is about deliveries that are not due yet
	question               string // what is asked before, of the number; "": nothing ever is
	asksAbove              int64  // up to this many nothing is asked
	run                    func(*sqlstreams.GroupHandle, context.Context, *sqlstreams.DeliveryFilter, *sqlstreams.OperateOptions) (int64, error)
}

// manyRedriven is how many dead letters are run again without asking: more can be a burst that the handlers' surroundings feel.
const manyRedriven = 1000

func redriving() *operation {
	return &operation{
		verb: "redrive", short: "Run dead letters again.",
		long: `Run dead letters again: at once, in the order of their ids, with all their attempts. Which ones, a filter says, or --all.

--rate spares what the handlers call. More than 1,000 are redriven only when the group's name is typed, or with --yes. Ctrl-C stops between two steps; what
was redriven until then stays so, and the same command goes on with the rest.`,
		example: `  sqlstreams dead redrive orders mailer --id 4711,4712
  sqlstreams dead redrive orders mailer --error 'smtp: # mailbox busy' --dry-run
  sqlstreams dead redrive orders mailer --all --rate 50`,
		one: "dead letter", many: "dead letters", done: "redriven", doing: "redriving", dead: true, rate: true,
		question: "This runs %s of %s again.", asksAbove: manyRedriven, run: (*sqlstreams.GroupHandle).Redrive,
	}
}

func discardingDead() *operation {
	return &operation{
		verb: "discard", short: "Remove dead letters for good.",
		long: `Remove dead letters for good, with their copies of the messages. Which ones, a filter says, or --all.

On a terminal the group's name is asked for; elsewhere --yes is needed. dead export keeps a copy.`,
		example: `  sqlstreams dead discard orders mailer --id 4711 --yes
  sqlstreams dead discard orders mailer --until 30d --dry-run
  sqlstreams dead export orders mailer --file dead.jsonl && sqlstreams dead discard orders mailer --all`,
		one: "dead letter", many: "dead letters", done: "discarded", doing: "discarding", dead: true, rate: true,
		question: "This removes %s of %s for good.", run: (*sqlstreams.GroupHandle).Discard,
	}
}

func retryingNow() *operation {
	return &operation{
		verb: "retry-now", short: "Let what waits in backoff run now.",
		long: `Let deliveries that wait for their time run now: retries in backoff, and what handlers delayed. Which ones, a filter says, or --all. Their attempts go on counting.

--since and --until are about when a delivery first failed.`,
		example: `  sqlstreams group retry-now orders mailer --all
  sqlstreams group retry-now orders mailer --contains 'connection refused' --dry-run
  sqlstreams group retry-now orders mailer --id 4711`,
		one: "delivery", many: "deliveries", done: "made due now", doing: "making due", rate: true, early: true, run: (*sqlstreams.GroupHandle).RetryNow,
	}
}

func discardingDeliveries() *operation {
	return &operation{
		verb: "discard", short: "Give up on deliveries that wait.",
		long: `Give up on deliveries that wait for their time or their key: the group never sees those messages again, and no dead letter is left. Which ones, a filter says, or --all.
What runs at that moment is left alone. (For dead letters: sqlstreams dead discard.)

On a terminal the group's name is asked for; elsewhere --yes is needed.`,
		example: `  sqlstreams group discard orders mailer --id 4711 --yes
  sqlstreams group discard orders mailer --contains 'connection refused' --dry-run`,
		one: "delivery", many: "deliveries", done: "discarded", doing: "discarding", rate: true,
		question: "This gives up on %s of %s for good.", run: (*sqlstreams.GroupHandle).DiscardDeliveries,
	}
}

func (o *operation) count(n int64) string { return plural(n, o.one, o.many) }

// operateFlags are those of an operation.
type operateFlags struct {
	filter           filterFlags
	all, yes, dryRun bool
	rate             float64
}

func newOperation(a *app, o *operation) *cobra.Command {
	var f operateFlags
	cmd := &cobra.Command{
		Use: o.verb + " STREAM GROUP", Short: o.short, Long: o.long, Example: o.example,
		Args:              args("STREAM", "GROUP"),
		ValidArgsFunction: a.completeStreamGroup,
		RunE: func(cmd *cobra.Command, given []string) error {
			filter, err := f.check(cmd)
			if err != nil {
				return err
			}
			if !f.dryRun {
				if err := a.changes(cmd); err != nil {
					return err
				}
				if o.question != "" && o.asksAbove == 0 && !f.yes && !a.env.Terminal(a.env.Stdin) {
					return usagef("%s needs --yes where nobody can be asked; --dry-run says what would go", commandName(cmd))
				}
			}
			opening, cancel := a.once(cmd)
			defer cancel()
			conn, err := a.connect(opening, openOptions{})
			if err != nil {
				return err
			}
			defer conn.close()
			r := &operating{app: a, operation: o, flags: &f, filter: filter, target: target{conn.Group(given[0], given[1]), given[0], given[1]}}
			return r.run(cmd)
		},
	}
	f.filter.add(cmd, o.dead)
	flags := cmd.Flags()
	flags.BoolVar(&f.all, "all", false, "all "+o.many)
	flags.BoolVar(&f.dryRun, "dry-run", false, "say how many, and change nothing")
	if o.question != "" {
		flags.BoolVar(&f.yes, "yes", false, "do not ask for the group's name")
	}
	if o.rate {
		flags.Float64Var(&f.rate, "rate", 0, "at most this `number` a second (default: as fast as it goes)")
	}
	return cmd
}

// check wants somebody to say what is meant: a forgotten filter must not mean everything.
func (f *operateFlags) check(cmd *cobra.Command) (*sqlstreams.DeliveryFilter, error) {
	filtered := f.filter.given(cmd)
	switch {
	case !filtered && !f.all:
		return nil, usagef("%s needs a filter (such as --id or --error), or --all", commandName(cmd))
	case filtered && f.all:
		return nil, usagef("--all and a filter exclude each other")
	case cmd.Flags().Changed("rate") && !(f.rate > 0):
		return nil, usagef("--rate is %v; it is more than 0", f.rate)
	}
	return f.filter.filter(cmd, time.Now())
}

// operating is an operation under way.
type operating struct {
	*operation
	target
	app    *app
	flags  *operateFlags
	filter *sqlstreams.DeliveryFilter
}

// operationView is the result of an operation, or of its dry run.
type operationView struct {
	Operation string `json:"operation"`
	Stream    string `json:"stream"`
	Group     string `json:"group"`
	DryRun    bool   `json:"dry_run"`
	Matched   int64  `json:"matched"` // before it began
	Changed   int64  `json:"changed"`
}

// The dry runs say what is meant, too: all kinds of dead letters, or the first of the deliveries.
type dryDeadView struct {
	operationView
	Errors []deadGroupView `json:"errors"`
}

type dryDeliveriesView struct {
	operationView
	First []deliveryView `json:"first"`
}

type deliveryView struct {
	ID       int64      `json:"id"`
	State    string     `json:"state"` // pending, waiting
	DueAt    *time.Time `json:"due_at"`
	Failures int        `json:"failures"`
	Solo     bool       `json:"solo"`
	Error    string     `json:"error"`
}

func (r *operating) run(cmd *cobra.Command) error {
	ctx, cancel := r.app.once(cmd)
	defer cancel()
	matched, err := r.operation.run(r.GroupHandle, ctx, r.filter, &sqlstreams.OperateOptions{DryRun: true})
	if err != nil {
		return err
	}
	view := operationView{Operation: r.verb, Stream: r.stream, Group: r.group, DryRun: r.flags.dryRun, Matched: matched}
	if r.flags.dryRun {
		return r.dryRun(ctx, view)
	}
	if err := r.confirm(cmd.Context(), matched); err != nil {
		return err
	}
	if view.Changed, err = r.change(cmd.Context(), matched); err != nil && view.Changed == 0 {
		return err
	} else if err != nil {
		return &failure{err: err, hint: fmt.Sprintf("%s %s; the same command goes on with the rest", plural(view.Changed, r.one+" was", r.many+" were"), r.done)}
	}
	return r.app.show(view, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s of %s %s\n", r.count(view.Changed), r.target, r.done)
		return err
	})
}

// change is not bounded by --timeout: a rate can make it as long as one likes.
func (r *operating) change(ctx context.Context, matched int64) (int64, error) {
	started := time.Now()
	bar := r.app.newProgress(matched)
	defer bar.clear()
	return r.operation.run(r.GroupHandle, ctx, r.filter, &sqlstreams.OperateOptions{Rate: r.flags.rate, Progress: func(done int64) { bar.draw(done, done, time.Since(started)) }})
}

func (r *operating) confirm(ctx context.Context, matched int64) error {
	if r.question == "" || r.flags.yes || matched <= r.asksAbove {
		return nil
	}
	if !r.app.env.Terminal(r.app.env.Stdin) {
		return usagef("%s %s needs --yes where nobody can be asked", r.doing, r.count(matched))
	}
	return r.app.askTyped(ctx, fmt.Sprintf(r.question+"\nType the group's name to go on: ", r.count(matched), r.target), r.group, "nothing is "+r.done)
}

// firstDeliveries is how many a dry run shows.
const firstDeliveries = 10

func (r *operating) dryRun(ctx context.Context, view operationView) error {
	if r.dead {
		kinds, err := r.DeadGroups(ctx, r.filter)
		if err != nil {
			return err
		}
		return r.app.show(dryDeadView{view, viewDeadGroups(kinds)}, func(w io.Writer) error {
			return r.writeDry(w, view.Matched, func() error { return r.app.writeDeadGroups(w, kinds, "") })
		})
	}
	var first []sqlstreams.PendingDelivery
	if view.Matched > 0 {
		var err error
		if first, err = r.first(ctx); err != nil {
			return err
		}
	}
	dry := dryDeliveriesView{view, []deliveryView{}}
	for _, d := range first {
		dry.First = append(dry.First, deliveryView{ID: d.ID, State: d.State, DueAt: at(d.DueAt), Failures: d.Attempt, Solo: d.Solo, Error: d.Error})
	}
	return r.app.show(dry, func(w io.Writer) error {
		return r.writeDry(w, view.Matched, func() error { return r.app.writeDeliveries(w, first, view.Matched) })
	})
}

// first returns the first deliveries that would be changed.
func (r *operating) first(ctx context.Context) (first []sqlstreams.PendingDelivery, err error) {
	now := time.Now()
	for after := int64(0); ; {
		page, err := r.Deliveries(ctx, r.filter, after, letterPage)
		if err != nil || len(page) == 0 {
			return first, err
		}
		for _, d := range page {
			if after = d.ID; r.early && (d.State != "pending" || !d.DueAt.After(now)) {
				continue
			}
			if first = append(first, d); len(first) == firstDeliveries {
				return first, nil
			}
		}
	}
}

func (r *operating) writeDry(w io.Writer, matched int64, details func() error) error {
	if _, err := fmt.Fprintf(w, "%s of %s would be %s\n", r.count(matched), r.target, r.done); err != nil || matched == 0 {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return details()
}

func (a *app) writeDeliveries(w io.Writer, first []sqlstreams.PendingDelivery, matched int64) error {
	now := time.Now()
	t := newTable("ID", "STATE", "DUE", "FAILURES", "ERROR").numbers(0, 3)
	for _, d := range first {
		t.add(number(d.ID), d.State, dueIn(d.DueAt, now), number(d.Attempt), dash(d.Error))
	}
	if err := a.writeTable(w, t, ""); err != nil {
		return err
	}
	if more := matched - int64(len(first)); more > 0 {
		_, err := fmt.Fprintf(w, "… and %s more\n", number(more))
		return err
	}
	return nil
}
