package cli

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sqlstreams/sqlstreams"
)

type seekClaimView struct {
	Low      int64  `json:"low"`
	High     int64  `json:"high"`
	Instance string `json:"instance"`
	Host     string `json:"host"`
	PID      int    `json:"pid"`
}

type seekView struct {
	Stream     string          `json:"stream"`
	Group      string          `json:"group"`
	DryRun     bool            `json:"dry_run"`
	From       int64           `json:"from"`
	To         int64           `json:"to"`
	Clamped    bool            `json:"clamped"`
	Again      int64           `json:"again"`  // at most
	Passed     int64           `json:"passed"` // at most
	OpenClaims int64           `json:"open_claims"`
	Claims     []seekClaimView `json:"claims"` // the lowest 100
	Dropped    int64           `json:"dropped_deliveries"`
	Dead       int64           `json:"dead_letters_kept"`
}

func viewSeek(g target, dry bool, r *sqlstreams.SeekResult) seekView {
	v := seekView{Stream: g.stream, Group: g.group, DryRun: dry, From: r.From, To: r.To, Clamped: r.Clamped, Again: r.Again, Passed: r.Passed, OpenClaims: r.OpenClaims, Claims: []seekClaimView{},
		Dropped: r.Dropped, Dead: r.Dead}
	for _, c := range r.Claims {
		v.Claims = append(v.Claims, seekClaimView{Low: c.Low, High: c.High, Instance: c.Instance, Host: c.Host, PID: c.PID})
	}
	return v
}

// effects are the lines that say what a seek does beside moving the group.
func (v *seekView) effects() (lines []string) {
	if v.Clamped {
		lines = append(lines, "the position lies outside what the stream has; this is the nearest one")
	}
	if v.Again > 0 {
		lines = append(lines, "up to "+plural(v.Again, "message", "messages")+" come again")
	}
	if v.Passed > 0 {
		lines = append(lines, "up to "+plural(v.Passed, "message", "messages")+" are passed over for good")
	}
	if v.Dropped > 0 {
		lines = append(lines, plural(v.Dropped, "delivery", "deliveries")+" removed, whose messages come again")
	}
	if v.Dead > 0 {
		lines = append(lines, plural(v.Dead, "dead letter", "dead letters")+" kept, whose messages come again")
	}
	for _, c := range v.Claims {
		holder := c.Instance
		if c.Host != "" {
			holder = fmt.Sprintf("%s (process %d on %s)", c.Instance, c.PID, c.Host)
		}
		lines = append(lines, fmt.Sprintf("open range %d-%d taken from instance %s: its results are refused", c.Low+1, c.High, holder))
	}
	if more := v.OpenClaims - int64(len(v.Claims)); more > 0 {
		lines = append(lines, plural(more, "more open range", "more open ranges")+" taken from their holders")
	}
	return lines
}

func newGroupSeek(a *app) *cobra.Command {
	var to string
	var yes, dryRun bool
	cmd := &cobra.Command{
		Use:   "seek STREAM GROUP --to POSITION",
		Short: "Move a group back or forward in its stream.",
		Long: `Move a group, so that it goes on at another place in its stream. Instances need not be stopped; what they have at work is refused when it ends.

The position is beginning, head, the id behind which it goes on, a time such as 2026-01-31T08:00:00Z or 2026-01-31, or how long ago, such as 90m or 3d. A time
means the first message that got its id then or later.

Going back, every message above the position comes again, whatever became of it; dead letters stay. Going forward, what was not handed out yet or is at work in a
range is passed over; retries and dead letters stay. --dry-run says how many messages and whose ranges it is about.

On a terminal the group's name is asked for; elsewhere --yes is needed.`,
		Example: `  sqlstreams group seek orders mailer --to beginning --dry-run
  sqlstreams group seek orders mailer --to 2026-01-31T08:00:00Z
  sqlstreams group seek orders mailer --to 4711 --yes
  sqlstreams group seek orders mailer --to head --yes`,
		Args:              args("STREAM", "GROUP"),
		ValidArgsFunction: a.completeStreamGroup,
		RunE: func(cmd *cobra.Command, given []string) error {
			position, err := parsePosition(to, time.Now())
			if err != nil {
				return err
			}
			if !dryRun {
				if err := a.changes(cmd); err != nil {
					return err
				}
				if !yes && !a.env.Terminal(a.env.Stdin) {
					return usagef("%s needs --yes where nobody can be asked; --dry-run says what it would do", commandName(cmd))
				}
			}
			return a.seek(cmd, given[0], given[1], position, yes, dryRun)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&to, "to", "", "`position`: beginning, head, an id, a time, or how long ago")
	flags.BoolVar(&yes, "yes", false, "do not ask for the group's name")
	flags.BoolVar(&dryRun, "dry-run", false, "say what would be done, and change nothing")
	return cmd
}

func parsePosition(text string, now time.Time) (sqlstreams.Start, error) {
	switch start := sqlstreams.Start(text); start {
	case "":
		return "", usagef("--to is needed: beginning, head, an id, a time, or how long ago")
	case sqlstreams.Beginning, sqlstreams.Head:
		return start, nil
	}
	if id, err := strconv.ParseInt(text, 10, 64); err == nil && id >= 0 {
		return sqlstreams.StartAfter(id), nil
	}
	t, err := moment("to", text, now)
	if err != nil {
		return "", usagef("--to is %q; it is beginning, head, an id, a time such as 2026-01-31T08:00:00Z or 2026-01-31, or how long ago, such as 90m or 3d", text)
	}
	return sqlstreams.StartAt(t), nil
}

func (a *app) seek(cmd *cobra.Command, stream, name string, to sqlstreams.Start, yes, dryRun bool) error {
	ctx, cancel := a.once(cmd)
	defer cancel()
	conn, err := a.connect(ctx, openOptions{})
	if err != nil {
		return err
	}
	defer conn.close()
	g := target{conn.Group(stream, name), stream, name}
	if dryRun || !yes {
		r, err := g.Seek(ctx, to, &sqlstreams.OperateOptions{DryRun: true})
		if err != nil {
			return err
		}
		v := viewSeek(g, true, r)
		if dryRun {
			return a.showSeek(g, v)
		}
		question := fmt.Sprintf("This moves %s from %d to %d.\n", g, v.From, v.To)
		for _, line := range v.effects() {
			question += "  " + line + "\n"
		}
		if err := a.askTyped(cmd.Context(), question+"Type the group's name to go on: ", name, fmt.Sprintf("%s is not moved", g)); err != nil {
			return err
		}
	}
	// The time that somebody thought about it does not count.
	cancel()
	ctx, cancel = a.once(cmd)
	defer cancel()
	r, err := g.Seek(ctx, to, nil)
	if err != nil {
		return err
	}
	return a.showSeek(g, viewSeek(g, false, r))
}

func (a *app) showSeek(g target, v seekView) error {
	return a.show(v, func(w io.Writer) error {
		verb := "moved"
		if v.DryRun {
			verb = "would be moved"
		}
		text := fmt.Sprintf("%s %s: it goes on behind %d, it stood at %d\n", g, verb, v.To, v.From)
		for _, line := range v.effects() {
			text += "  " + printable(line) + "\n"
		}
		_, err := io.WriteString(w, text)
		return err
	})
}
