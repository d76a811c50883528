package store

import (
	"context"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// Read returns the messages of a range (low, high], ascending. What a range holds lies in the leaf of its last id.
func (s *Store) Read(ctx context.Context, stream int, low, high int64) ([]delivery.Message, error) {
	messages, _, err := s.inLeaf(ctx, stream, high, func(at leaf) ([]delivery.Message, error) {
		return s.read(ctx, "read_range", stream, at, strconv.FormatInt(low+1, 10), strconv.FormatInt(high, 10))
	})
	return messages, err
}

// ReadIDs returns the messages of a group's deliveries, ascending: from the log, and from the deliveries' own copies where the log no longer has them.
func (s *Store) ReadIDs(ctx context.Context, stream, group int, ids []int64) ([]delivery.Message, error) {
	ids = slices.Sorted(slices.Values(ids))
	found, err := s.readLog(ctx, stream, ids)
	if err != nil || len(found) == len(ids) {
		return found, err
	}
	copies, err := s.readCopies(ctx, group, ids)
	if err != nil {
		return nil, err
	}
	return merge(found, copies), nil
}

// readLog returns those of the given messages, ascending, that the log holds.
func (s *Store) readLog(ctx context.Context, stream int, ids []int64) ([]delivery.Message, error) {
	var found []delivery.Message
	for rest := ids; len(rest) > 0; {
		part, at, err := s.inLeaf(ctx, stream, rest[0], func(at leaf) ([]delivery.Message, error) {
			return s.read(ctx, "read_ids", stream, at, bigintArray(rest[:below(rest, at.high)]))
		})
		if err != nil {
			return nil, err
		}
		found, rest = append(found, part...), rest[max(1, below(rest, at.high)):]
	}
	return found, nil
}

// below counts the ids below limit.
func below(ids []int64, limit int64) int {
	n, _ := slices.BinarySearch(ids, limit)
	return n
}

func bigintArray(ids []int64) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, id := range ids {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatInt(id, 10))
	}
	b.WriteByte('}')
	return b.String()
}

// merge joins two ascending lists; an id in both is taken from the first.
func merge(a, b []delivery.Message) []delivery.Message {
	var all []delivery.Message
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].ID < b[0].ID:
			all, a = append(all, a[0]), a[1:]
		case len(a) == 0 || b[0].ID < a[0].ID:
			all, b = append(all, b[0]), b[1:]
		default:
			all, a, b = append(all, a[0]), a[1:], b[1:]
		}
	}
	return all
}

// read runs a statement on a leaf of a stream's log. It is parsed anew each time: there are as many texts as leaves. The rows are taken from the wire without pgx's scanning, which costs more than the handler of a small message.
func (s *Store) read(ctx context.Context, name string, stream int, at leaf, params ...string) ([]delivery.Message, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	object := "stream " + strconv.Itoa(stream)
	conn, err := s.control.Acquire(ctx)
	if err != nil {
		return nil, ClassifyNoEffect("read", object, err)
	}
	defer conn.Release()
	sql := forLeaf(s.text[name], stream, at.low)
	if conn.Conn().Config().DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol {
		return s.readSimple(ctx, conn.Conn(), sql, object, params)
	}
	values := make([][]byte, len(params))
	for i, p := range params {
		values[i] = []byte(p)
	}
	oids := []uint32{pgtype.Int8OID, pgtype.Int8OID}
	if len(params) == 1 {
		oids = []uint32{pgtype.Int8ArrayOID}
	}
	result := conn.Conn().PgConn().ExecParams(ctx, sql, values, oids, nil, []int16{1})
	var messages []delivery.Message
	var arena arena
	for result.NextRow() {
		m, ok := decode(result.Values(), &arena)
		if !ok {
			_, _ = result.Close()
			return nil, &diag.Error{Code: diag.DatabaseError, Op: "read", Object: object, Detail: "a row has another shape than expected"}
		}
		messages = append(messages, m)
	}
	if _, err := result.Close(); err != nil {
		return nil, ClassifyNoEffect("read", object, err)
	}
	return messages, nil
}

// arena copies values out of the wire buffer, many to one allocation.
type arena struct{ free []byte }

const arenaChunk = 64 << 10

func (a *arena) copy(v []byte) []byte {
	if len(v) == 0 {
		return []byte{} // not nil, which is SQL NULL
	}
	if len(v) > arenaChunk/4 {
		return append(make([]byte, 0, len(v)), v...)
	}
	if len(v) > len(a.free) {
		a.free = make([]byte, arenaChunk)
	}
	c := a.free[:len(v):len(v)]
	copy(c, v)
	a.free = a.free[len(v):]
	return c
}

// decode reads one row in binary format, in the order of the read statements' columns.
func decode(v [][]byte, a *arena) (delivery.Message, bool) {
	if len(v) != 11 || len(v[0]) != 8 || len(v[1]) != 4 || len(v[10]) != 1 {
		return delivery.Message{}, false
	}
	m := delivery.Message{
		ID:            int64(binary.BigEndian.Uint64(v[0])),
		SchemaVersion: int(int32(binary.BigEndian.Uint32(v[1]))),
		Key:           string(v[2]),
		RoutingKey:    string(v[3]),
		ProducedAt:    timestamp(v[7]),
		AppendedAt:    timestamp(v[8]),
		ScheduledAt:   timestamp(v[9]),
		Redacted:      v[10][0] == 1,
	}
	if v[4] != nil {
		m.Headers = a.copy(v[4])
	}
	if v[5] != nil {
		m.Options = a.copy(v[5])
	}
	if v[6] != nil {
		m.Payload = a.copy(v[6])
	}
	return m, true
}

// microsFrom2000 is Postgres's epoch in Unix microseconds.
const microsFrom2000 = 946684800 * 1000000

func timestamp(v []byte) time.Time {
	if len(v) != 8 {
		return time.Time{}
	}
	return time.UnixMicro(int64(binary.BigEndian.Uint64(v)) + microsFrom2000).UTC()
}

// readSimple is read where only the simple protocol may be used.
func (s *Store) readSimple(ctx context.Context, conn *pgx.Conn, sql, object string, params []string) ([]delivery.Message, error) {
	var rows pgx.Rows
	var err error
	if len(params) == 1 {
		rows, err = conn.Query(ctx, sql, params[0])
	} else {
		low, _ := strconv.ParseInt(params[0], 10, 64)
		high, _ := strconv.ParseInt(params[1], 10, 64)
		rows, err = conn.Query(ctx, sql, low, high)
	}
	if err != nil {
		return nil, ClassifyNoEffect("read", object, err)
	}
	defer rows.Close()
	var messages []delivery.Message
	for rows.Next() {
		var m delivery.Message
		var key, routing *string
		var scheduled *time.Time
		if err := rows.Scan(&m.ID, &m.SchemaVersion, &key, &routing, &m.Headers, &m.Options, &m.Payload, &m.ProducedAt, &m.AppendedAt, &scheduled, &m.Redacted); err != nil {
			return nil, ClassifyNoEffect("read", object, err)
		}
		m.Key, m.RoutingKey = text(key), text(routing)
		if scheduled != nil {
			m.ScheduledAt = *scheduled
		}
		messages = append(messages, m)
	}
	return messages, ClassifyNoEffect("read", object, rows.Err())
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func (s *Store) readCopies(ctx context.Context, group int, ids []int64) ([]delivery.Message, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	object := "deliveries of group " + strconv.Itoa(group)
	rows, err := s.control.Query(ctx, s.text["read_copies"], group, ids)
	if err != nil {
		return nil, ClassifyNoEffect("read", object, err)
	}
	defer rows.Close()
	var messages []delivery.Message
	for rows.Next() {
		var m delivery.Message
		var key, routing *string
		var payload, bytes []byte
		var scheduled *time.Time
		if err := rows.Scan(&m.ID, &m.SchemaVersion, &key, &routing, &m.Headers, &m.Options, &payload, &bytes, &m.ProducedAt, &m.AppendedAt, &scheduled); err != nil {
			return nil, ClassifyNoEffect("read", object, err)
		}
		m.Key, m.RoutingKey, m.Payload = text(key), text(routing), payload
		if payload == nil {
			m.Payload = bytes
		}
		if scheduled != nil {
			m.ScheduledAt = *scheduled
		}
		messages = append(messages, m)
	}
	return messages, ClassifyNoEffect("read", object, rows.Err())
}
