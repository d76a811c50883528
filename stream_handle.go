package sqlstreams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/store"
)

// StreamHandle is a stream by its name, for tools that do not know its type: what it holds, reading it, producing and consuming payloads as they are stored. It is safe for concurrent use.
type StreamHandle struct {
	client *Client
	name   string
	object string

	mu   sync.Mutex
	core *stream // once it was looked up
}

// Stream returns a handle on a stream. It asks nothing: that the stream does not exist is said by the first call that needs it (ErrStreamNotFound).
func (c *Client) Stream(name string) *StreamHandle {
	return &StreamHandle{client: c, name: name, object: "stream " + strconv.Quote(name)}
}

// Message is one message as a reader of the stream sees it.
type Message struct {
	ID            int64
	Key           string // "": none
	RoutingKey    string // "": none
	SchemaVersion int
	Headers       map[string]string
	Payload       []byte // as stored; nil: none (a tombstone; or redacted)
	ProducedAt    time.Time
	AppendedAt    time.Time
	ScheduledAt   time.Time // zero: not scheduled
	Redacted      bool
}

// StreamStatus is a stream as an operator sees it.
type StreamStatus struct {
	StreamInfo
	Head        int64     // newest id; FirstID - 1: it holds nothing
	HeadAt      time.Time // when the newest message was appended; zero: none is there
	OldestAt    time.Time // likewise the oldest
	Retained    int64     // ids from FirstID to Head: at most so many messages are there
	Bytes       int64     // on disk, indexes included
	Partitions  int
	Inbox       int64     // messages that wait for their id, counted to 10,000
	InboxOldest time.Time // when the first of them was produced; zero: none waits
	Groups      int
}

// Status returns how the stream stands. It looks at the size of each partition: for a person, not for a hot path.
func (s *StreamHandle) Status(ctx context.Context) (*StreamStatus, error) {
	row, err := s.row(ctx, "look at")
	if err != nil {
		return nil, err
	}
	st, err := s.client.store.StreamStatus(ctx, row.ID)
	if err != nil {
		return nil, renamed(err, s.object)
	}
	oldest, err := s.client.store.Page(ctx, row.ID, row.FirstID-1, 1)
	if err != nil {
		return nil, renamed(err, s.object)
	}
	status := &StreamStatus{StreamInfo: streamInfo(row), Head: st.Head, HeadAt: instant(st.HeadAt), Retained: st.Head - row.FirstID + 1, Bytes: st.Bytes,
		Partitions: st.Partitions, Inbox: st.Inbox, InboxOldest: instant(st.InboxOldest), Groups: st.Groups}
	if len(oldest) > 0 {
		status.OldestAt = oldest[0].AppendedAt
	}
	return status, nil
}

func instant(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// MaxRead is the most messages that one Read returns.
const MaxRead = 10_000

// Read returns the messages with ids above after, ascending: at most limit (1 to MaxRead), and about 8 MiB of payload, but one message at least. None: there is nothing above after now. It is
// a look at the stream, which moves no group.
func (s *StreamHandle) Read(ctx context.Context, after int64, limit int) ([]Message, error) {
	if limit < 1 || limit > MaxRead {
		return nil, invalid(diag.InvalidOption, "read", s.object, fmt.Sprintf("limit is %d, allowed are 1 to %d", limit, MaxRead))
	}
	row, err := s.row(ctx, "read")
	if err != nil {
		return nil, err
	}
	page, err := s.client.store.Page(ctx, row.ID, max(after, row.FirstID-1), limit)
	if err != nil {
		return nil, renamed(err, s.object)
	}
	all := make([]Message, 0, len(page))
	for i := range page {
		all = append(all, message(&page[i]))
	}
	return all, nil
}

// Get returns one message, or nil if the stream does not hold it (any more, or yet).
func (s *StreamHandle) Get(ctx context.Context, id int64) (*Message, error) {
	row, err := s.row(ctx, "read")
	if err != nil || id < row.FirstID {
		return nil, err
	}
	found, err := s.client.store.Read(ctx, row.ID, id-1, id)
	if err != nil || len(found) == 0 {
		return nil, renamed(err, s.object)
	}
	m := message(&found[0])
	return &m, nil
}

func message(m *delivery.Message) Message {
	out := Message{ID: m.ID, Key: m.Key, RoutingKey: m.RoutingKey, SchemaVersion: m.SchemaVersion, Payload: m.Payload, ProducedAt: m.ProducedAt, AppendedAt: m.AppendedAt,
		ScheduledAt: m.ScheduledAt, Redacted: m.Redacted}
	if len(m.Headers) > 0 {
		// Headers were written by this library; if a person's hand altered them there are none to show.
		_ = json.Unmarshal(m.Headers, &out.Headers)
	}
	return out
}

// ProduceBatch appends payloads as they are, all or none of them: JSON texts on a JSON stream (anything else is ErrInvalidMessage), a codec's bytes on another. Otherwise it is Producer.ProduceBatch.
func (s *StreamHandle) ProduceBatch(ctx context.Context, batch []Outgoing[[]byte]) ([]Produced, error) {
	core, err := s.open(ctx, "produce to")
	if err != nil {
		return nil, err
	}
	p := Producer[[]byte]{core: core, version: 1}
	produced, err := p.ProduceBatch(ctx, batch)
	if diag.CodeOf(err) == diag.StreamNotFound {
		s.forget()
	}
	return produced, err
}

// Sequence gives ids to the messages of the stream that are committed and wait in the inbox, in steps, until none is left or somebody else is at it; it returns how many it gave. Consumers and upkeep do the same all
// the time: it is for tools that want to see now what was produced in a transaction, or under an idempotency key, where nobody consumes.
func (s *StreamHandle) Sequence(ctx context.Context) (int64, error) {
	row, err := s.row(ctx, "sequence")
	if err != nil {
		return 0, err
	}
	for total := int64(0); ; {
		reply, err := s.client.store.Drain(ctx, row.ID, sequenceStep)
		total += int64(reply.Moved)
		if reply.Moved > 0 {
			s.client.announce(row.ID, true)
		}
		if err != nil || reply.Busy || !reply.More {
			return total, renamed(err, s.object)
		}
	}
}

// sequenceStep is how many messages get their ids in one transaction: the stream is held for some tens of milliseconds.
const sequenceStep = 1000

// Consumer declares a consumer group as RegisterConsumer does, and returns an instance whose handlers get payloads as they are stored, of any schema version.
func (s *StreamHandle) Consumer(ctx context.Context, group string, config *ConsumerConfig) (*Consumer[[]byte], error) {
	s.forget() // it may have been deleted and made again under this name
	core, err := s.open(ctx, "consume")
	if err != nil {
		return nil, err
	}
	c, err := core.registerConsumer(ctx, group, config)
	if err != nil {
		return nil, err
	}
	return &Consumer[[]byte]{core: c}, nil
}

// Delete is Client.DeleteStream. Of opts only Actor counts.
func (s *StreamHandle) Delete(ctx context.Context, opts *OperateOptions) error {
	row, err := s.row(ctx, "delete")
	if err != nil {
		return err
	}
	if err := s.client.store.DropStream(ctx, row.ID, opts.actor()); err != nil {
		return renamed(err, s.object)
	}
	s.client.announce(row.ID, true)
	return nil
}

func (s *StreamHandle) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.core = nil
}

func (s *StreamHandle) row(ctx context.Context, op string) (*store.Stream, error) {
	return s.client.streamRow(ctx, op, s.name)
}

func (c *Client) streamRow(ctx context.Context, op, name string) (*store.Stream, error) {
	if err := checkName(op, "stream", name); err != nil {
		return nil, err
	}
	return c.store.GetStream(ctx, name)
}

// open looks the stream up once.
func (s *StreamHandle) open(ctx context.Context, op string) (*stream, error) {
	s.mu.Lock()
	core := s.core
	s.mu.Unlock()
	if core != nil {
		return core, nil
	}
	row, err := s.row(ctx, op)
	if err != nil {
		return nil, err
	}
	core = &stream{client: s.client, id: row.ID, name: s.name, object: s.object, kind: row.Kind, codec: verbatim{json: row.Kind == store.KindJSON}, verbatim: true, outcome: Unchanged}
	if err := json.Unmarshal(row.Config, &core.limits); err != nil {
		return nil, &diag.Error{Code: diag.SchemaNewer, Op: op, Object: s.object, Err: err}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.core = core
	return core, nil
}

// verbatim takes and gives payloads as they are stored.
type verbatim struct{ json bool }

func (v verbatim) Marshal(p any) ([]byte, error) {
	data, err := Raw{}.Marshal(p)
	if err == nil && v.json && !json.Valid(data) {
		return nil, errors.New("it is not JSON")
	}
	return data, err
}

func (verbatim) Unmarshal(data []byte, p any) error { return Raw{}.Unmarshal(data, p) }
