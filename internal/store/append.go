package store

import (
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// The kinds of payload a stream can have.
const (
	KindJSON  = "json"
	KindBytes = "bytes"
)

// Outgoing is one message on its way in, checked already.
type Outgoing struct {
	Payload    []byte // nil: SQL NULL
	Version    int
	Key        string // "": none
	RoutingKey string
	Headers    []byte // nil: none
	Options    []byte // nil: none

	IdempotencyKey string // "": none

	// ExpectedVersion is the id that must be the newest of Key, or NoVersion. 0: none is expected.
	ExpectedVersion int64
}

// Separator stands between the values of a packed column, Null for a missing one. Neither can occur raw in JSON, and names and keys hold no control characters.
const (
	Separator = "\x1e"
	Null      = "\x1f"
)

// packed is a batch as it travels: one text a column.
type packed struct {
	count                               int
	payloads                            *string
	bytes                               [][]byte
	versions                            []int32
	keys, routingKeys, headers, options *string
	expected                            *string
}

func pack(kind string, batch []Outgoing) packed {
	p := packed{count: len(batch)}
	if kind == KindJSON {
		p.payloads = column(batch, true, func(o *Outgoing) []byte { return o.Payload })
	} else {
		p.bytes = make([][]byte, len(batch))
		for i := range batch {
			p.bytes[i] = batch[i].Payload
		}
	}
	for i := range batch {
		if batch[i].Version != 1 {
			p.versions = make([]int32, len(batch))
			for j := range batch {
				p.versions[j] = int32(batch[j].Version)
			}
			break
		}
	}
	p.keys = column(batch, false, func(o *Outgoing) []byte { return []byte(o.Key) })
	p.routingKeys = column(batch, false, func(o *Outgoing) []byte { return []byte(o.RoutingKey) })
	p.headers = column(batch, false, func(o *Outgoing) []byte { return o.Headers })
	p.options = column(batch, false, func(o *Outgoing) []byte { return o.Options })
	p.expected = column(batch, false, (*Outgoing).expected)
	return p
}

// column joins one column; nil if no message has a value in it, unless it must be there.
func column(batch []Outgoing, always bool, value func(*Outgoing) []byte) *string {
	total, any := 0, always
	for i := range batch {
		n := len(value(&batch[i]))
		total += n + 1
		any = any || n > 0
	}
	if !any {
		return nil
	}
	var b strings.Builder
	b.Grow(total + len(batch))
	for i := range batch {
		if i > 0 {
			b.WriteString(Separator)
		}
		if v := value(&batch[i]); len(v) > 0 {
			b.Write(v)
		} else {
			b.WriteString(Null)
		}
	}
	s := b.String()
	return &s
}

// AppendRequest is one batch, all or nothing.
type AppendRequest struct {
	Stream   int
	Kind     string
	Producer uuid.UUID
	Batch    int64         // counts per producer; the same again is the same batch
	Wait     time.Duration // for the stream's lock: 0 only tries it, negative does not want it
	Messages []Outgoing
}

// AppendReply says where a batch went.
type AppendReply struct {
	First    int64 // the first message's id; the others follow without a gap. 0: all wait in the inbox
	Moved    int   // rows of the inbox that got their ids on the way
	Repeated bool  // it had been stored before
}

// Append stores one batch durably, in a transaction of its own on the caller's pool. If the outcome is unknown it is repeated under the same (producer, batch).
func (s *Store) Append(ctx context.Context, req *AppendRequest) (AppendReply, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	const op = "produce to"
	object := "stream " + strconv.Itoa(req.Stream)
	conn, err := s.acquireProduce(ctx)
	if err != nil {
		return AppendReply{}, ClassifyNoEffect(op, object, err)
	}
	defer conn.Release()
	p := pack(req.Kind, req.Messages)
	for attempt := 0; ; attempt++ {
		now := time.Now()
		used := hintFor(conn.Conn(), s.names.Schema, req.Stream, now)
		if p.expected != nil {
			used = nil // what an expectation depends on is not looked for by a hint
		}
		var outcome string
		var first *int64
		var moved *int
		var seen, conflicts *string
		err := conn.QueryRow(ctx, s.text["append"], req.Stream, req.Kind, req.Wait.Milliseconds(), req.Producer, req.Batch, p.count,
			p.payloads, p.bytes, p.versions, p.keys, p.routingKeys, p.headers, p.options, used, p.expected).Scan(&outcome, &first, &moved, &seen, &conflicts)
		if err != nil {
			return AppendReply{}, Classify(op, object, err)
		}
		reply := AppendReply{Repeated: outcome == "repeated"}
		if first != nil {
			reply.First = *first
		}
		if moved != nil {
			reply.Moved = *moved
		}
		switch outcome {
		case "appended", "inbox", "repeated":
			keepHint(conn.Conn(), s.names.Schema, req.Stream, used, seen, now)
			return reply, nil
		case "gone":
			return reply, &diag.Error{Code: diag.StreamNotFound, Op: op, Object: object}
		case "kind":
			return reply, &diag.Error{Code: diag.DeclarationConflict, Op: op, Object: object, Detail: "the stream holds another kind of payload"}
		case "partition":
			// Producing never depends on upkeep having run: the leaf that is missing is made here, in a transaction of its own.
			if attempt >= 20 {
				return reply, &diag.Error{Code: diag.StreamBusy, Op: op, Object: object, Detail: "the batch does not fit into a new partition", Retryable: true}
			}
			if err := s.makeLeaves(ctx, conn, req.Stream, p.count+drainLimit); err != nil {
				return reply, err
			}
		case "busy":
			return reply, &diag.Error{Code: diag.StreamBusy, Op: op, Object: object, Detail: "the stream is held, or too many messages wait for their ids, to see what the newest version is", Retryable: true}
		case "conflict":
			return reply, conflict(op, object, req.Messages, text(conflicts))
		default:
			return reply, keyedOutcome(op, object, outcome)
		}
	}
}

// ForgetBatches removes the producer's confirmed batches [from, to).
func (s *Store) ForgetBatches(ctx context.Context, producer uuid.UUID, from, to int64) error {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	_, err := s.control.Exec(ctx, s.text["forget_batches"], producer, from, to)
	return Classify("forget batches of", "producer "+producer.String(), err)
}

// PutTx puts a batch into the inbox in the caller's transaction.
func (s *Store) PutTx(ctx context.Context, tx pgx.Tx, stream int, kind string, batch []Outgoing) error {
	sql, args := s.put(stream, kind, batch)
	tag, err := tx.Exec(ctx, sql, args...)
	if err != nil {
		return ClassifyNoEffect("produce to", "stream "+strconv.Itoa(stream), err)
	}
	return putResult(stream, tag.RowsAffected(), len(batch))
}

// PutSQLTx is PutTx for database/sql, with any driver that takes $1 and text.
func (s *Store) PutSQLTx(ctx context.Context, tx *sql.Tx, stream int, kind string, batch []Outgoing) error {
	sql, args := s.put(stream, kind, batch)
	result, err := tx.ExecContext(ctx, sql, args...)
	if err != nil {
		return ClassifyNoEffect("produce to", "stream "+strconv.Itoa(stream), err)
	}
	count, err := result.RowsAffected()
	if err != nil {
		return ClassifyNoEffect("produce to", "stream "+strconv.Itoa(stream), err)
	}
	return putResult(stream, count, len(batch))
}

func putResult(stream int, stored int64, wanted int) error {
	switch stored {
	case int64(wanted):
		return nil
	case 0:
		return &diag.Error{Code: diag.StreamNotFound, Op: "produce to", Object: "stream " + strconv.Itoa(stream)}
	}
	return &diag.Error{Code: diag.DatabaseError, Op: "produce to", Object: "stream " + strconv.Itoa(stream),
		Detail: fmt.Sprintf("a batch of %d messages came apart into %d; roll the transaction back", wanted, stored)}
}

// put chooses the statement. All arguments are texts and integers, so that any driver and the simple protocol can send them.
func (s *Store) put(stream int, kind string, batch []Outgoing) (string, []any) {
	if len(batch) == 1 {
		o := &batch[0]
		var payload, bytes *string
		if o.Payload != nil && kind == KindJSON {
			payload = ptr(string(o.Payload))
		} else if o.Payload != nil {
			bytes = ptr(`\x` + hex.EncodeToString(o.Payload))
		}
		return s.text["put_inbox_one"], []any{stream, o.Version, optional([]byte(o.Key)), optional([]byte(o.RoutingKey)), optional(o.Headers), optional(o.Options), payload, bytes, kind}
	}
	p := pack(kind, batch)
	var bytes, versions *string
	if p.bytes != nil {
		bytes = ptr(byteaArray(p.bytes))
	}
	if p.versions != nil {
		versions = ptr(integerArray(p.versions))
	}
	return s.text["put_inbox"], []any{stream, p.payloads, bytes, versions, p.keys, p.routingKeys, p.headers, p.options, kind}
}

func integerArray(values []int32) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, v := range values {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(int(v)))
	}
	b.WriteByte('}')
	return b.String()
}

func byteaArray(values [][]byte) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, v := range values {
		if i > 0 {
			b.WriteByte(',')
		}
		if v == nil {
			b.WriteString("NULL")
			continue
		}
		b.WriteString(`"\\x`)
		b.WriteString(hex.EncodeToString(v))
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}

func ptr(s string) *string { return &s }

func optional(v []byte) *string {
	if len(v) == 0 {
		return nil
	}
	return ptr(string(v))
}

// drainLimit is how many rows of the inbox an append moves at the most on its way.
const drainLimit = 1000

// DrainReply says what a drain did.
type DrainReply struct {
	Moved int
	More  bool  // rows are left
	Busy  bool  // somebody else holds the stream's lock: nothing was done
	Head  int64 // the newest id afterwards; 0: not known
}

// Drain gives ids to at most limit rows that wait in the stream's inbox, in a transaction of its own. The lock is only tried.
func (s *Store) Drain(ctx context.Context, stream, limit int) (DrainReply, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	const op = "sequence"
	object := "stream " + strconv.Itoa(stream)
	conn, err := s.control.Acquire(ctx)
	if err != nil {
		return DrainReply{}, ClassifyNoEffect(op, object, err)
	}
	defer conn.Release()
	now := time.Now()
	used := hintFor(conn.Conn(), s.names.Schema, stream, now)
	var reply DrainReply
	var partition bool
	var seen *string
	var head *int64
	if err := conn.QueryRow(ctx, s.text["drain"], stream, limit, used).Scan(&reply.Moved, &reply.More, &reply.Busy, &partition, &head, &seen); err != nil {
		return DrainReply{}, Classify(op, object, err)
	}
	if head != nil {
		reply.Head = *head
	}
	if !reply.Busy {
		keepHint(conn.Conn(), s.names.Schema, stream, used, seen, now)
	}
	if partition {
		if err := s.makeLeaves(ctx, conn, stream, 0); err != nil {
			return reply, err
		}
		reply.More = true
	}
	return reply, nil
}

func (s *Store) makeLeaves(ctx context.Context, q Querier, stream, room int) error {
	for attempt := 0; ; attempt++ {
		_, err := q.Exec(ctx, s.text["make_leaves"], stream, room)
		// Repeatable, so nobody needs to know whether it took effect.
		err = ClassifyNoEffect("make partitions of", "stream "+strconv.Itoa(stream), err)
		if err == nil || !diag.Retryable(err) || attempt >= 5 {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Duration(attempt+1) * 20 * time.Millisecond):
		}
	}
}

// MakeLeaves makes leaves until two are ahead of the active one.
func (s *Store) MakeLeaves(ctx context.Context, stream int) error {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	return s.makeLeaves(ctx, s.control, stream, 0)
}
