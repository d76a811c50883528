package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/sqlstreams/sqlstreams"
)

type streamStatusView struct {
	streamView
	Head        int64       `json:"head"`
	HeadAt      *time.Time  `json:"head_at"`
	OldestAt    *time.Time  `json:"oldest_at"`
	Retained    int64       `json:"retained"`
	Bytes       int64       `json:"bytes"`
	Partitions  int         `json:"partitions"`
	Inbox       int64       `json:"inbox"`
	InboxOldest *time.Time  `json:"inbox_oldest_at"`
	Groups      []groupView `json:"groups"`
}

type groupView struct {
	Name      string `json:"name"`
	Paused    bool   `json:"paused"`
	Claimed   int64  `json:"claimed"`
	Committed int64  `json:"committed"`
	Backlog   int64  `json:"backlog"`
	Pending   int64  `json:"pending"`
	Dead      int64  `json:"dead"`
	Instances int64  `json:"instances"`
}

func newStreamShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show NAME",
		Short: "Show what a stream holds and how its groups stand.",
		Long: `Show what a stream holds: its ids, its size on disk, what waits in the inbox for an id, and where each of its groups stands.

"up to" is said of messages because ids below the newest may be gone one by one.`,
		Example: `  sqlstreams stream show orders
  sqlstreams stream show orders -o json | jq .head`,
		Args:              args("NAME"),
		ValidArgsFunction: a.completeStream,
		RunE: func(cmd *cobra.Command, given []string) error {
			ctx, cancel := a.once(cmd)
			defer cancel()
			conn, err := a.connect(ctx, openOptions{})
			if err != nil {
				return err
			}
			defer conn.close()
			status, groups, err := conn.lookAt(ctx, given[0])
			if err != nil {
				return err
			}
			return a.showStream(status, groups)
		},
	}
}

// countedTo is how far the library counts what waits in an inbox.
const countedTo = 10_000

// lookAt reads a stream with its groups.
func (c *connection) lookAt(ctx context.Context, name string) (*sqlstreams.StreamStatus, []groupView, error) {
	status, err := c.Stream(name).Status(ctx)
	if err != nil {
		return nil, nil, err
	}
	all, err := c.ListGroups(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	groups := make([]groupView, 0, len(all))
	for _, g := range all {
		s, err := c.GetGroup(ctx, name, g.Name)
		if err != nil {
			return nil, nil, err
		}
		groups = append(groups, groupView{Name: g.Name, Paused: s.Paused, Claimed: s.Claimed, Committed: s.Committed, Backlog: s.Backlog, Pending: s.Pending + s.Running + s.Waiting,
			Dead: s.Dead, Instances: int64(len(s.Instances))})
	}
	return status, groups, nil
}

func (a *app) showStream(s *sqlstreams.StreamStatus, groups []groupView) error {
	view := streamStatusView{streamView: viewStream(s.StreamInfo), Head: s.Head, HeadAt: at(s.HeadAt), OldestAt: at(s.OldestAt), Retained: s.Retained, Bytes: s.Bytes,
		Partitions: s.Partitions, Inbox: s.Inbox, InboxOldest: at(s.InboxOldest), Groups: groups}
	return a.show(view, func(w io.Writer) error {
		ids, messages := "none", "none"
		if s.Retained > 0 {
			ids, messages = fmt.Sprintf("%d to %d", s.FirstID, s.Head), "up to "+number(s.Retained)
		}
		inbox := number(s.Inbox)
		if s.Inbox >= countedTo {
			inbox += " or more"
		}
		if s.Inbox > 0 {
			inbox += ", the first since " + stamp(s.InboxOldest)
		}
		if err := a.fields(w, "stream", s.Name, "kind", s.Kind, "created", stamp(s.CreatedAt), "ids", ids, "messages", messages, "oldest", stamp(s.OldestAt),
			"newest", stamp(s.HeadAt), "on disk", fmt.Sprintf("%s in %s", size(s.Bytes), plural(s.Partitions, "partition", "partitions")), "inbox", inbox); err != nil {
			return err
		}
		t := newTable("GROUP", "BACKLOG", "COMMITTED", "CLAIMED", "PENDING", "DEAD", "INSTANCES", "PAUSED").numbers(1, 2, 3, 4, 5, 6)
		for _, g := range groups {
			t.add(g.Name, number(g.Backlog), number(g.Committed), number(g.Claimed), number(g.Pending), number(g.Dead), number(g.Instances), yesNo(g.Paused))
		}
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
		return a.writeTable(w, t, "no groups")
	})
}
