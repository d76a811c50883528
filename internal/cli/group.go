package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

func newGroup(a *app) *cobra.Command {
	return group("group", "See where a consumer group stands and why, and operate it.",
		`See where a consumer group stands and why, pause, resume and move it, and see to what waits for a retry.

Begin with group show: it says first what keeps the group from moving, with the command that mends it.`,
		`  sqlstreams group list orders
  sqlstreams group show orders mailer
  sqlstreams group pause orders mailer
  sqlstreams group seek orders mailer --to 2026-01-31T08:00:00Z --dry-run
  sqlstreams group retry-now orders mailer --all`,
		newGroupList(a), newGroupShow(a), newGroupPause(a, true), newGroupPause(a, false), newGroupSeek(a), newOperation(a, retryingNow()), newOperation(a, discardingDeliveries()))
}

type groupLineView struct {
	Name       string  `json:"name"`
	State      string  `json:"state"`
	Paused     bool    `json:"paused"`
	Backlog    int64   `json:"backlog"`
	LagSeconds float64 `json:"lag_seconds"` // age of the oldest message that was not handed out; 0: there is none
	Pending    int64   `json:"pending"`
	Running    int64   `json:"running"`
	Waiting    int64   `json:"waiting"`
	Dead       int64   `json:"dead"`
	Instances  int     `json:"instances"`
}

func newGroupList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list STREAM",
		Aliases: []string{"ls"},
		Short:   "List a stream's consumer groups and how they stand.",
		Long: `List a stream's consumer groups and how they stand.

BACKLOG is how many messages are not handed out yet, LAG the age of the oldest of them, PENDING what waits for a retry. STATE says in two words
what group show explains. INSTANCES are those that were heard of within a minute. -o wide also shows the positions.`,
		Example: `  sqlstreams group list orders
  sqlstreams group list orders -o json | jq '.[] | select(.backlog > 1000).name'`,
		Args:              args("STREAM"),
		ValidArgsFunction: a.completeStream,
		RunE: func(cmd *cobra.Command, given []string) error {
			ctx, cancel := a.once(cmd)
			defer cancel()
			conn, err := a.connect(ctx, openOptions{})
			if err != nil {
				return err
			}
			defer conn.close()
			return a.listGroups(ctx, conn, given[0])
		},
	}
}

func (a *app) listGroups(ctx context.Context, conn *connection, stream string) error {
	all, err := conn.ListGroups(ctx, stream)
	if err != nil {
		return err
	}
	views := make([]groupLineView, 0, len(all))
	t := newTable("NAME", "STATE", "PAUSED", "BACKLOG", "LAG", "PENDING", "DEAD", "INSTANCES").numbers(3, 4, 5, 6, 7)
	if a.wide() {
		t = newTable("NAME", "STATE", "PAUSED", "BACKLOG", "LAG", "PENDING", "RUNNING", "WAITING", "DEAD", "INSTANCES", "COMMITTED", "CLAIMED", "HEAD", "CREATED").numbers(3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
	}
	for _, g := range all {
		s, err := conn.Group(stream, g.Name).Status(ctx)
		if diag.CodeOf(err) == diag.GroupNotFound {
			continue // deleted meanwhile
		} else if err != nil {
			return err
		}
		v := groupLineView{Name: g.Name, State: stateWords(s), Paused: s.Paused, Backlog: s.Backlog, LagSeconds: lag(s).Seconds(), Pending: s.Pending, Running: s.Running, Waiting: s.Waiting, Dead: s.Dead,
			Instances: living(s)}
		views = append(views, v)
		row := []string{v.Name, v.State, yesNo(v.Paused), number(v.Backlog), lagText(s), number(v.Pending), number(v.Dead), number(v.Instances)}
		if a.wide() {
			row = []string{v.Name, v.State, yesNo(v.Paused), number(v.Backlog), lagText(s), number(v.Pending), number(v.Running), number(v.Waiting), number(v.Dead), number(v.Instances),
				number(s.Committed), number(s.Claimed), number(s.Head), stamp(g.CreatedAt)}
		}
		t.add(row...)
	}
	return a.show(views, func(w io.Writer) error {
		return a.writeTable(w, t, fmt.Sprintf("stream %q has no groups; sqlstreams consume %s --group NAME%s makes one", stream, stream, a.schemaFlag()))
	})
}

// lag is the age of the oldest message that was not handed out.
func lag(s *sqlstreams.GroupStatus) time.Duration {
	if s.OldestBacklog.IsZero() {
		return 0
	}
	return max(s.Now.Sub(s.OldestBacklog), 0)
}

func lagText(s *sqlstreams.GroupStatus) string {
	if s.OldestBacklog.IsZero() {
		return "-"
	}
	return age(lag(s))
}

const (
	silence   = time.Minute      // for how long an instance may not be heard of
	heartbeat = 15 * time.Second // how often it says that it lives
)

func isLiving(s *sqlstreams.GroupStatus, i sqlstreams.InstanceInfo) bool {
	return s.Now.Sub(i.SeenAt) <= silence
}

func living(s *sqlstreams.GroupStatus) (n int) {
	for _, i := range s.Instances {
		if isLiving(s, i) {
			n++
		}
	}
	return n
}

// stateWords are short for why the group stands where it stands. Dead letters do not count: the group goes on without them.
func stateWords(s *sqlstreams.GroupStatus) string {
	if s.Paused {
		return "paused"
	}
	if len(s.Reasons) == 0 {
		return "unknown"
	}
	first := s.Reasons[0]
	switch {
	case first.Code == sqlstreams.Code(diag.StreamBusy):
		return "lock held"
	case first.Code == sqlstreams.Code(diag.InsufficientLease):
		return "stale range"
	case first.Blocking && strings.HasPrefix(first.Remedy, "sqlstreams consume "):
		return "no instance"
	case first.Blocking && strings.HasPrefix(first.Remedy, "sqlstreams dead redrive "):
		return "key parked"
	case first.Blocking && s.OpenClaims > 0:
		return "holder gone"
	case first.Blocking:
		return "inbox waits"
	case s.OpenClaims > 0 || s.Running > 0:
		return "at work"
	case s.Backlog > 0 || s.Pending > 0 && !s.NextDue.After(s.Now):
		return "work waits"
	case first.Code == sqlstreams.Code(diag.PositionLost):
		return "position lost"
	case s.Pending > 0:
		return "in backoff"
	case s.Waiting > 0:
		return "key waits"
	}
	return "caught up"
}
