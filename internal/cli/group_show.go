package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sqlstreams/sqlstreams"
)

type reasonView struct {
	Code     string `json:"code"` // "": it has none
	Text     string `json:"text"`
	Remedy   string `json:"remedy"` // a command line or SQL; "": none
	Blocking bool   `json:"blocking"`
}

type keyView struct {
	Key       string  `json:"key"`
	First     int64   `json:"first"`      // the lowest message that waits
	Waiting   int64   `json:"waiting"`    // counted to 10,000
	State     string  `json:"state"`      // of what they wait for: pending, running, parked, claimed; "": nothing
	ID        int64   `json:"id"`         // of that delivery or dead letter; 0: neither
	Low       int64   `json:"low"`        // of the range
	High      int64   `json:"high"`       // of the range
	InSeconds float64 `json:"in_seconds"` // until it is due, or its lease ends
}

type claimView struct {
	Low              int64      `json:"low"` // the ids above low up to high
	High             int64      `json:"high"`
	Instance         string     `json:"instance"`
	Host             string     `json:"host"`
	PID              int        `json:"pid"`
	Alive            bool       `json:"alive"`
	ExpiresAt        *time.Time `json:"expires_at"`
	ExpiresInSeconds float64    `json:"expires_in_seconds"`
	Reclaims         int        `json:"reclaims"`
	Stale            int        `json:"stale"`
}

type instanceView struct {
	ID        string     `json:"id"`
	Host      string     `json:"host"`
	PID       int        `json:"pid"`
	Alive     bool       `json:"alive"`
	StartedAt *time.Time `json:"started_at"`
	SeenAt    *time.Time `json:"seen_at"`
}

type groupStatusView struct {
	Stream        string         `json:"stream"`
	Group         string         `json:"group"`
	State         string         `json:"state"`
	Reasons       []reasonView   `json:"reasons"`
	Now           *time.Time     `json:"now"`
	Paused        bool           `json:"paused"`
	FirstID       int64          `json:"first_id"`
	Head          int64          `json:"head"`
	Claimed       int64          `json:"claimed"`
	Committed     int64          `json:"committed"`
	Backlog       int64          `json:"backlog"`
	OldestBacklog *time.Time     `json:"oldest_backlog_at"`
	LagSeconds    float64        `json:"lag_seconds"`
	Inbox         int64          `json:"inbox"`
	InboxOldest   *time.Time     `json:"inbox_oldest_at"`
	Pending       int64          `json:"pending"`
	NextDue       *time.Time     `json:"next_due_at"`
	Running       int64          `json:"running"`
	Waiting       int64          `json:"waiting"`
	Dead          int64          `json:"dead"`
	OpenClaims    int64          `json:"open_claims"`
	Keys          []keyView      `json:"keys"`   // for which messages wait: those of the lowest ten
	Claims        []claimView    `json:"claims"` // the lowest 100
	Instances     []instanceView `json:"instances"`
}

func newGroupShow(a *app) *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:     "show STREAM GROUP",
		Aliases: []string{"why"},
		Short:   "Say why a group stands where it stands, and where that is.",
		Long: `Say why a group stands where it stands, then where that is: positions, what waits, open claims with their holders and deadlines, instances.

Under WHY, "!" marks what keeps messages from being handled now; below a reason stands the command, or the SQL, that mends it. CLAIMED is the frontier that was
handed out; up to COMMITTED every message has its outcome. --watch looks again every second until Ctrl-C; with -o json that is an object a line.`,
		Example: `  sqlstreams group show orders mailer
  sqlstreams group show orders mailer --watch
  sqlstreams group show orders mailer -o json | jq -r '.reasons[0].remedy'`,
		Args:              args("STREAM", "GROUP"),
		ValidArgsFunction: a.completeStreamGroup,
		RunE: func(cmd *cobra.Command, given []string) error {
			ctx, cancel := a.once(cmd)
			defer cancel()
			conn, err := a.connect(ctx, openOptions{})
			if err != nil {
				return err
			}
			defer conn.close()
			g := target{conn.Group(given[0], given[1]), given[0], given[1]}
			if watch {
				return a.watchGroup(cmd.Context(), g)
			}
			s, err := g.Status(ctx)
			if err != nil {
				return err
			}
			return a.show(a.viewStatus(s), func(w io.Writer) error { return a.writeStatus(w, s) })
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "look again every second, until Ctrl-C")
	return cmd
}

// watchEvery is how often --watch looks.
const watchEvery = time.Second

// clearScreen moves to the top and clears what is below.
const clearScreen = "\x1b[H\x1b[2J\x1b[3J"

func (a *app) watchGroup(ctx context.Context, g target) error {
	screen := !a.json() && a.outTerminal && a.env.Getenv("TERM") != "dumb"
	for first := true; ; first = false {
		looking, cancel := context.WithTimeout(ctx, a.flags.timeout)
		s, err := g.Status(looking)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (first || !retryable(err)):
			return err
		case err != nil:
			a.complain("sqlstreams: " + a.oneLine(err) + "; trying again")
		case a.json():
			err = a.line(a.env.Stdout, a.viewStatus(s))
		default:
			err = a.page(s, screen, first)
		}
		if err != nil && !retryable(err) {
			return err
		}
		if !wait(ctx, watchEvery) {
			return nil
		}
	}
}

// page writes one look in one piece, so that a screen does not flicker.
func (a *app) page(s *sqlstreams.GroupStatus, screen, first bool) error {
	var b bytes.Buffer
	switch {
	case screen:
		b.WriteString(clearScreen)
	case !first:
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "%s\n", stamp(s.Now))
	if err := a.writeStatus(&b, s); err != nil {
		return err
	}
	_, err := a.env.Stdout.Write(b.Bytes())
	return err
}

func (a *app) viewStatus(s *sqlstreams.GroupStatus) groupStatusView {
	v := groupStatusView{Stream: s.Stream, Group: s.Group, State: stateWords(s), Reasons: []reasonView{}, Now: at(s.Now), Paused: s.Paused, FirstID: s.FirstID, Head: s.Head, Claimed: s.Claimed,
		Committed: s.Committed, Backlog: s.Backlog, OldestBacklog: at(s.OldestBacklog), LagSeconds: lag(s).Seconds(), Inbox: s.Inbox, InboxOldest: at(s.InboxOldest), Pending: s.Pending,
		NextDue: at(s.NextDue), Running: s.Running, Waiting: s.Waiting, Dead: s.Dead, OpenClaims: s.OpenClaims, Keys: []keyView{}, Claims: []claimView{}, Instances: []instanceView{}}
	for _, r := range s.Reasons {
		v.Reasons = append(v.Reasons, reasonView{Code: string(r.Code), Text: r.Text, Remedy: a.remedy(r), Blocking: r.Blocking})
	}
	for _, k := range s.Keys {
		v.Keys = append(v.Keys, keyView{Key: k.Key, First: k.First, Waiting: k.Waiting, State: k.State, ID: k.ID, Low: k.Range.Low, High: k.Range.High, InSeconds: k.In.Seconds()})
	}
	for _, c := range s.Claims {
		v.Claims = append(v.Claims, claimView{Low: c.Low, High: c.High, Instance: c.Instance, Host: c.Host, PID: c.PID, Alive: c.Alive, ExpiresAt: at(c.ExpiresAt),
			ExpiresInSeconds: c.ExpiresIn.Seconds(), Reclaims: c.Reclaims, Stale: c.Stale})
	}
	for _, i := range s.Instances {
		v.Instances = append(v.Instances, instanceView{ID: i.ID, Host: i.Host, PID: i.PID, Alive: isLiving(s, i), StartedAt: at(i.StartedAt), SeenAt: at(i.SeenAt)})
	}
	return v
}

// remedy is a command line for this installation, or SQL.
func (a *app) remedy(r sqlstreams.Reason) string {
	if strings.HasPrefix(r.Remedy, "sqlstreams ") {
		return r.Remedy + a.schemaFlag()
	}
	return r.Remedy
}

func (a *app) writeStatus(w io.Writer, s *sqlstreams.GroupStatus) error {
	if _, err := fmt.Fprintf(w, "%s\n", a.styled(w, bold, fmt.Sprintf("group %q of stream %q: %s", s.Group, s.Stream, stateWords(s)))); err != nil {
		return err
	}
	if err := a.writeReasons(w, s.Reasons); err != nil {
		return err
	}
	if err := a.fields(w, statusFields(s)...); err != nil {
		return err
	}
	if len(s.Claims) > 0 {
		if err := a.writeClaims(w, s); err != nil {
			return err
		}
	}
	if len(s.Instances) == 0 {
		return nil
	}
	t := newTable("INSTANCE", "HOST", "PID", "STARTED", "HEARD OF").numbers(2)
	for _, i := range s.Instances {
		seen := ago(i.SeenAt, s.Now)
		switch silent := s.Now.Sub(i.SeenAt); {
		case !isLiving(s, i):
			seen += ", taken for gone"
		case silent > 2*heartbeat:
			seen += fmt.Sprintf(", late: it says that it lives every %s", heartbeat)
		}
		t.add(i.ID, i.Host, number(i.PID), ago(i.StartedAt, s.Now), seen)
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return a.writeTable(w, t, "")
}

func (a *app) writeReasons(w io.Writer, reasons []sqlstreams.Reason) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n", a.styled(w, bold, "why"))
	for _, r := range reasons {
		mark, text := "-", printable(r.Text)
		if r.Blocking {
			mark = a.styled(w, red, "!")
		}
		if r.Code != "" {
			text += " (" + string(r.Code) + ")"
		}
		fmt.Fprintf(&b, "  %s %s\n", mark, text)
		if r.Remedy != "" {
			fmt.Fprintf(&b, "      %s\n", printable(a.remedy(r)))
		}
	}
	_, err := fmt.Fprintln(w, b.String())
	return err
}

func statusFields(s *sqlstreams.GroupStatus) []string {
	inbox, pending, backlog := number(s.Inbox), number(s.Pending), number(s.Backlog)
	if s.Inbox > 0 && !s.InboxOldest.IsZero() {
		inbox += ", the first for " + age(s.Now.Sub(s.InboxOldest))
	}
	if s.Pending > 0 {
		pending += ", the next due " + dueIn(s.NextDue, s.Now)
	}
	if s.Backlog > 0 {
		backlog += ", the oldest " + lagText(s) + " old"
	}
	return []string{"committed", number(s.Committed), "claimed", number(s.Claimed), "head", number(s.Head), "backlog", backlog, "inbox", inbox, "pending", pending, "running", number(s.Running),
		"waiting for keys", number(s.Waiting), "dead", number(s.Dead), "open claims", number(s.OpenClaims), "instances", number(living(s))}
}

func (a *app) writeClaims(w io.Writer, s *sqlstreams.GroupStatus) error {
	t := newTable("CLAIM", "LEASE ENDS", "HOLDER", "ALIVE", "TAKEN OVER", "LEFT STALE").numbers(4, 5)
	for _, c := range s.Claims {
		ends := "ended " + age(-c.ExpiresIn) + " ago"
		if c.ExpiresIn > 0 {
			ends = "in " + age(c.ExpiresIn)
		}
		holder := c.Instance
		if c.Host != "" {
			holder = fmt.Sprintf("%s (process %d on %s)", c.Instance, c.PID, c.Host)
		}
		t.add(fmt.Sprintf("%d to %d", c.Low+1, c.High), ends, holder, yesNo(c.Alive), number(c.Reclaims), number(c.Stale))
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	if err := a.writeTable(w, t, ""); err != nil {
		return err
	}
	if more := s.OpenClaims - int64(len(s.Claims)); more > 0 {
		_, err := fmt.Fprintf(w, "… and %s more\n", number(more))
		return err
	}
	return nil
}
