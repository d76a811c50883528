package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/sqlstreams/sqlstreams"
)

func newDead(a *app) *cobra.Command {
	return group("dead", "Look at dead letters, run them again, or remove them.",
		`Look at dead letters, run them again, or remove them.

A message whose attempts have ended in a group becomes a dead letter of that group: the group goes on without it, and keeps a copy of the message however
long the stream keeps its own.`,
		`  sqlstreams dead list orders mailer
  sqlstreams dead show orders mailer 4711
  sqlstreams dead redrive orders mailer --error 'smtp: # mailbox busy' --rate 50
  sqlstreams dead discard orders mailer --id 4711,4712`,
		newDeadList(a), newDeadShow(a), newOperation(a, redriving()), newOperation(a, discardingDead()), newDeadExport(a))
}

type deadGroupView struct {
	Count       int64      `json:"count"`
	Reason      string     `json:"reason"`
	Error       string     `json:"error"` // numbers as #
	FirstID     int64      `json:"first_id"`
	LastID      int64      `json:"last_id"`
	FirstDiedAt *time.Time `json:"first_died_at"`
	LastDiedAt  *time.Time `json:"last_died_at"`
	ExampleID   int64      `json:"example_id"`
}

type letterView struct {
	ID       int64      `json:"id"`
	Key      string     `json:"key"`
	Reason   string     `json:"reason"`
	Error    string     `json:"error"`
	Attempts int        `json:"attempts"`
	DiedAt   *time.Time `json:"died_at"`
}

// listOptions are the flags of dead list.
type listOptions struct {
	filter filterFlags
	each   bool
	after  int64
	limit  int
}

func newDeadList(a *app) *cobra.Command {
	var o listOptions
	cmd := &cobra.Command{
		Use:     "list STREAM GROUP",
		Aliases: []string{"ls"},
		Short:   "Count a group's dead letters by their error, or list them.",
		Long: `Count a group's dead letters by why they died: one line for each reason and error, where errors that differ only in numbers are one (# stands for a number).
EXAMPLE is the id of the one that died last.

--each lists them one by one instead, by id, --limit at a time; --after goes on behind an id.`,
		Example: `  sqlstreams dead list orders mailer
  sqlstreams dead list orders mailer --since 2h --reason exhausted
  sqlstreams dead list orders mailer --each --contains 'mailbox busy'
  sqlstreams dead list orders mailer -o json | jq '.[0].count'`,
		Args:              args("STREAM", "GROUP"),
		ValidArgsFunction: a.completeStreamGroup,
		RunE: func(cmd *cobra.Command, given []string) error {
			if !o.each && (cmd.Flags().Changed("after") || cmd.Flags().Changed("limit")) {
				return usagef("--after and --limit need --each")
			}
			if o.limit < 1 {
				return usagef("--limit is %d; it is 1 or more", o.limit)
			}
			filter, err := o.filter.filter(cmd, time.Now())
			if err != nil {
				return err
			}
			ctx, cancel := a.once(cmd)
			defer cancel()
			conn, err := a.connect(ctx, openOptions{})
			if err != nil {
				return err
			}
			defer conn.close()
			g := target{conn.Group(given[0], given[1]), given[0], given[1]}
			if o.each {
				return a.listLetters(ctx, g, filter, o.after, o.limit)
			}
			return a.listDead(ctx, g, filter)
		},
	}
	o.filter.add(cmd, true)
	cmd.Flags().BoolVar(&o.each, "each", false, "list the dead letters one by one")
	cmd.Flags().Int64Var(&o.after, "after", 0, "with --each: only ids above this one")
	cmd.Flags().IntVar(&o.limit, "limit", 100, "with --each: how many")
	return cmd
}

// target is the group that a command is about.
type target struct {
	*sqlstreams.GroupHandle
	stream, group string
}

func (t target) String() string { return fmt.Sprintf("group %q of stream %q", t.group, t.stream) }

// command is a command line about the group.
func (t target) command(a *app, verb string) string {
	return "sqlstreams " + verb + " " + t.stream + " " + t.group + a.schemaFlag()
}

func (a *app) listDead(ctx context.Context, g target, f *sqlstreams.DeliveryFilter) error {
	groups, err := g.DeadGroups(ctx, f)
	if err != nil {
		return err
	}
	err = a.show(viewDeadGroups(groups), func(w io.Writer) error { return a.writeDeadGroups(w, groups, emptyList(f)) })
	if err == nil && len(groups) > 0 && !a.json() {
		a.complain("one of them: " + g.command(a, "dead show") + " " + number(groups[0].Example))
		a.complain("run again:   " + g.command(a, "dead redrive") + oneKind(groups, f))
	}
	return err
}

// oneKind are the flags that mean the first line of the list.
func oneKind(groups []sqlstreams.DeadGroup, f *sqlstreams.DeliveryFilter) string {
	switch text := groups[0].Error; {
	case len(groups) == 1 && f == nil:
		return " --all"
	case text == "" || printable(text) != text: // it would not be typed as it stands
		return " --id " + number(groups[0].Example)
	default:
		return " --error " + shellQuote(text)
	}
}

func emptyList(f *sqlstreams.DeliveryFilter) string {
	if f == nil {
		return "no dead letters"
	}
	return "no dead letter matches"
}

func viewDeadGroups(groups []sqlstreams.DeadGroup) []deadGroupView {
	views := make([]deadGroupView, 0, len(groups))
	for _, d := range groups {
		views = append(views, deadGroupView{Count: d.Count, Reason: d.Reason, Error: d.Error, FirstID: d.FirstID, LastID: d.LastID, FirstDiedAt: at(d.First), LastDiedAt: at(d.Last),
			ExampleID: d.Example})
	}
	return views
}

// writeDeadGroups has the error last: it is as long as it likes, and nothing is cut off, so that a line can be given to --error.
func (a *app) writeDeadGroups(w io.Writer, groups []sqlstreams.DeadGroup, empty string) error {
	now := time.Now()
	t := newTable("COUNT", "REASON", "FIRST DIED", "LAST DIED", "EXAMPLE", "ERROR").numbers(0, 4)
	if a.wide() {
		t = newTable("COUNT", "REASON", "FIRST DIED", "LAST DIED", "FIRST ID", "LAST ID", "EXAMPLE", "ERROR").numbers(0, 4, 5, 6)
	}
	for _, d := range groups {
		if a.wide() {
			t.add(number(d.Count), d.Reason, stamp(d.First), stamp(d.Last), number(d.FirstID), number(d.LastID), number(d.Example), d.Error)
			continue
		}
		t.add(number(d.Count), d.Reason, ago(d.First, now), ago(d.Last, now), number(d.Example), d.Error)
	}
	return a.writeTable(w, t, empty)
}

// letterPage is how many dead letters are read at once; a page is also bounded in bytes.
const letterPage = 1000

// eachLetter walks over at most limit dead letters in the order of their ids, and reports whether there are more. It holds one page at a time.
func eachLetter(ctx context.Context, g target, f *sqlstreams.DeliveryFilter, after int64, limit int, do func(*sqlstreams.DeadLetter) error) (more bool, err error) {
	for left := limit; ; {
		page, err := g.DeadLetters(ctx, f, after, min(left, letterPage-1)+1)
		if err != nil || len(page) == 0 {
			return false, err
		}
		for i := range page {
			if left == 0 {
				return true, nil
			}
			if err := do(&page[i]); err != nil {
				return false, err
			}
			after = page[i].ID
			left--
		}
	}
}

func (a *app) listLetters(ctx context.Context, g target, f *sqlstreams.DeliveryFilter, after int64, limit int) error {
	now := time.Now()
	views := []letterView{}
	t := newTable("ID", "DIED", "REASON", "ATTEMPTS", "KEY", "ERROR").numbers(0, 3)
	more, err := eachLetter(ctx, g, f, after, limit, func(d *sqlstreams.DeadLetter) error {
		views = append(views, letterView{ID: d.ID, Key: d.Key, Reason: d.Reason, Error: d.Error, Attempts: d.Attempts, DiedAt: at(d.DiedAt)})
		died := ago(d.DiedAt, now)
		if a.wide() {
			died = stamp(d.DiedAt)
		}
		t.add(number(d.ID), died, d.Reason, number(d.Attempts), dash(d.Key), d.Error)
		return nil
	})
	if err != nil {
		return err
	}
	if err := a.show(views, func(w io.Writer) error { return a.writeTable(w, t, emptyList(f)) }); err != nil {
		return err
	}
	if more {
		a.complain("there are more: go on with --after " + number(views[len(views)-1].ID))
	}
	return nil
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
