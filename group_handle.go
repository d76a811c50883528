package sqlstreams

import (
	"context"
	"strconv"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// GroupHandle is a consumer group by its name, for those who operate it: where it stands and why it does not move, its dead letters, what waits for a retry. It is safe for concurrent use.
type GroupHandle struct {
	client        *Client
	stream, group string
	object        string
}

// Group returns a handle on a consumer group. It asks nothing: that the stream or the group does not exist is said by the call that needs it (ErrStreamNotFound, ErrGroupNotFound).
func (c *Client) Group(stream, group string) *GroupHandle {
	return &GroupHandle{client: c, stream: stream, group: group, object: "group " + strconv.Quote(group) + " of stream " + strconv.Quote(stream)}
}

// GroupInfo is a consumer group as ListGroups returns it.
type GroupInfo struct {
	Name      string
	Paused    bool
	CreatedAt time.Time
}

// ListGroups returns the consumer groups of a stream by name, or ErrStreamNotFound.
func (c *Client) ListGroups(ctx context.Context, stream string) ([]GroupInfo, error) {
	row, err := c.streamRow(ctx, "list groups of", stream)
	if err != nil {
		return nil, err
	}
	groups, err := c.store.ListGroups(ctx, row.ID)
	if err != nil {
		return nil, renamed(err, "stream "+strconv.Quote(stream))
	}
	all := make([]GroupInfo, 0, len(groups))
	for _, g := range groups {
		all = append(all, GroupInfo{Name: g.Name, Paused: g.Paused, CreatedAt: g.CreatedAt})
	}
	return all, nil
}

// OpenClaim is a range of messages under a lease.
type OpenClaim struct {
	Low, High int64  // the ids above Low up to High
	Instance  string // who holds it
	Host      string // "": the instance is gone
	PID       int
	ExpiresAt time.Time
	ExpiresIn time.Duration // negative: the lease has ended, and another instance can take the range
	Reclaims  int           // how often the range was taken over
	Stale     int           // how often its holder left it because too little of the lease remained (SQL0105)
	Alive     bool          // the instance was seen within the last minute
}

// InstanceInfo is a running instance of a group.
type InstanceInfo struct {
	ID        string
	Host      string
	PID       int
	StartedAt time.Time
	SeenAt    time.Time
}

// BlockedKey is a key for which messages of a group wait, and what they wait for.
type BlockedKey struct {
	Key     string
	First   int64 // the lowest message that waits
	Waiting int64 // how many do, counted to 10,000
	// State says what they wait for: "pending", a delivery in backoff; "running", one at work; "parked", a dead letter; "claimed", an open range; "": nothing holds the key, and upkeep wakes it within seconds.
	State string
	ID    int64         // of that delivery or dead letter; 0: neither
	Range OpenClaim     // with State "claimed"; only Low, High and ExpiresIn are set
	In    time.Duration // until the delivery is due, or its lease or the range's ends; negative: that is past
}

// GroupStatus is where a consumer group stands, and why.
type GroupStatus struct {
	Stream, Group string
	Now           time.Time // the database's clock
	Paused        bool
	FirstID       int64     // of the stream: what lies below is gone
	Head          int64     // newest id of the stream
	Claimed       int64     // the frontier handed out
	Committed     int64     // below it every message has a recorded outcome (a pending retry counts as recorded)
	Backlog       int64     // ids from Claimed to Head: messages not handed out yet, if none was removed between
	OldestBacklog time.Time // when the oldest of them was appended; zero: there is none
	Inbox         int64     // messages of the stream that are committed and wait for their id, counted to 10,000
	InboxOldest   time.Time
	Claims        []OpenClaim // the lowest 100
	OpenClaims    int64
	Pending       int64        // deliveries that wait for their time: retries, and what handlers delayed
	NextDue       time.Time    // when the first of them is due; zero: there is none
	Running       int64        // deliveries at work
	Waiting       int64        // deliveries that wait for their key
	Dead          int64        // dead letters
	Keys          []BlockedKey // for which messages wait: those of the lowest ten
	Instances     []InstanceInfo
	// Reasons say why the group does not move, or that nothing holds it; what keeps it from moving comes first.
	Reasons []Reason
}

// Idle says that nothing is left to do: every message of the stream, those in the inbox included, is handled, dead, or given up. (What a transaction that is still open has produced is not seen.)
func (s *GroupStatus) Idle() bool {
	return s.Backlog == 0 && s.Inbox == 0 && s.OpenClaims == 0 && s.Pending == 0 && s.Running == 0 && s.Waiting == 0
}

// Status returns where the group stands. It counts rows: for a person, not for a hot path.
//
// Errors: ErrStreamNotFound, ErrGroupNotFound, ErrUnreachable and other conditions of the connection.
func (g *GroupHandle) Status(ctx context.Context) (*GroupStatus, error) {
	stream, group, err := g.find(ctx, "look at")
	if err != nil {
		return nil, err
	}
	st := g.client.store
	s, err := st.GroupStatus(ctx, group)
	if err != nil {
		return nil, renamed(err, g.object)
	}
	claims, err := st.GroupClaims(ctx, group)
	if err != nil {
		return nil, renamed(err, g.object)
	}
	instances, err := st.GroupInstances(ctx, group)
	if err != nil {
		return nil, renamed(err, g.object)
	}
	holders, err := st.LockHolders(ctx, stream, group)
	if err != nil {
		return nil, renamed(err, g.object)
	}
	status := &GroupStatus{Stream: g.stream, Group: g.group, Now: s.Now, Paused: s.Paused, FirstID: s.FirstID, Head: s.Head, Claimed: s.Claimed, Committed: s.Committed,
		Backlog: max(s.Head-max(s.Claimed, s.FirstID-1), 0), Inbox: s.Inbox, InboxOldest: instant(s.InboxOldest), OpenClaims: s.Claims, Pending: s.Pending, NextDue: instant(s.NextDue),
		Running: s.Running, Waiting: s.Waiting, Dead: s.Dead}
	if status.Backlog > 0 {
		oldest, err := st.Page(ctx, stream, s.Claimed, 1)
		if err != nil {
			return nil, renamed(err, g.object)
		}
		if len(oldest) > 0 {
			status.OldestBacklog = oldest[0].AppendedAt
		}
	}
	for _, c := range claims {
		status.Claims = append(status.Claims, OpenClaim{Low: c.Low, High: c.High, Instance: c.Instance, Host: c.Host, PID: c.PID, ExpiresAt: c.ExpiresAt,
			ExpiresIn: time.Duration(c.Left * float64(time.Second)), Reclaims: c.Reclaims, Stale: c.Stale, Alive: c.Alive})
	}
	for _, i := range instances {
		status.Instances = append(status.Instances, InstanceInfo(i))
	}
	if s.Waiting > 0 {
		keys, err := st.GroupKeys(ctx, group)
		if err != nil {
			return nil, renamed(err, g.object)
		}
		for _, k := range keys {
			b := BlockedKey{Key: k.Key, First: k.First, Waiting: k.Waiting, State: k.State, ID: k.ID}
			if k.Left != nil {
				b.In = time.Duration(*k.Left * float64(time.Second))
			}
			if k.State == "claimed" {
				b.Range = OpenClaim{Low: k.Low, High: k.High, ExpiresIn: b.In}
			}
			status.Keys = append(status.Keys, b)
		}
	}
	status.Reasons = reasons(status, holders)
	return status, nil
}

// find returns the ids of stream and group.
func (g *GroupHandle) find(ctx context.Context, op string) (stream, group int, err error) {
	if err := checkName(op, "group", g.group); err != nil {
		return 0, 0, err
	}
	row, err := g.client.streamRow(ctx, op, g.stream)
	if err != nil {
		return 0, 0, err
	}
	groups, err := g.client.store.ListGroups(ctx, row.ID)
	if err != nil {
		return 0, 0, renamed(err, g.object)
	}
	for _, found := range groups {
		if found.Name == g.group {
			return row.ID, found.ID, nil
		}
	}
	return 0, 0, &diag.Error{Code: diag.GroupNotFound, Op: op, Object: g.object}
}

// Pause keeps the group from claiming anything new from the moment it returns; what is at work is finished and recorded. Of opts only Actor counts.
func (g *GroupHandle) Pause(ctx context.Context, opts *OperateOptions) error {
	return g.setPaused(ctx, true, opts)
}

// Resume lets a paused group claim again. Of opts only Actor counts.
func (g *GroupHandle) Resume(ctx context.Context, opts *OperateOptions) error {
	return g.setPaused(ctx, false, opts)
}

func (g *GroupHandle) setPaused(ctx context.Context, paused bool, opts *OperateOptions) error {
	op := "resume"
	if paused {
		op = "pause"
	}
	stream, group, err := g.find(ctx, op)
	if err != nil {
		return err
	}
	if err := g.client.store.SetPaused(ctx, group, paused, opts.actor(), g.object); err != nil {
		return renamed(err, g.object)
	}
	g.client.announce(stream, true)
	return nil
}
