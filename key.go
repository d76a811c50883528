package sqlstreams

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// NoVersion stands where a key has no version: as the ID of what Get returns then, and as the ProduceOptions.ExpectedVersion of a message that is to be the key's first.
const NoVersion = -1

// Key is one key of a keyed stream: what it holds, and what it held. It is safe for concurrent use; making one costs nothing and asks nothing.
type Key[T any] struct {
	core    *stream
	key     string
	version int // of payloads
}

// Key returns a handle on a key. Its methods need a stream that is declared Keyed (ErrNotKeyed).
func (s *Stream[T]) Key(key string) *Key[T] {
	return &Key[T]{core: s.core, key: key, version: versionOf[T]()}
}

// Version is one message of a key.
type Version[T any] struct {
	// ID is the message's id, and what ProduceOptions.ExpectedVersion takes. NoVersion: the key has no message.
	ID int64
	// Payload is nil where the key has no message, where the message is a tombstone (the key is gone), and where it was erased.
	Payload *T
	// Headers, RoutingKey and the times are those of the message.
	Headers    map[string]string
	RoutingKey string
	ProducedAt time.Time
	AppendedAt time.Time
	Redacted   bool // payload and headers were erased
}

// Get returns the newest version of the key. A key that has none is no error: the Version has no Payload, and NoVersion for its ID, so that a message produced with ExpectedVersion: v.ID follows what was read
// here in either case. What waits in the inbox for its id (ProduceTx; now and then a Produce beside many others) is not seen yet.
//
// Errors: ErrNotKeyed, ErrKeyIndexBuilding (retryable: the stream was declared keyed a moment ago), ErrInvalidMessage (no valid key), ErrStreamNotFound, a payload that cannot be decoded or is of another schema
// version, conditions of the connection.
func (k *Key[T]) Get(ctx context.Context) (Version[T], error) {
	found, err := k.read(ctx, math.MaxInt64, 1)
	if err != nil || len(found) == 0 {
		return Version[T]{ID: NoVersion}, err
	}
	return k.decode(&found[0])
}

// HistoryOptions belong to one look at a key's history. Nil: none set.
type HistoryOptions struct {
	// Before is the id below which versions are returned, such as the lowest id of the page before. Default 0: the newest first.
	Before int64
	// Limit is the most versions to return. Default 100, at most 10,000.
	Limit int
}

// History returns versions of the key, the newest first: at most Limit, and about 8 MiB of payload, but one at least if there is any. None: there is nothing below Before. On a compacted stream those that have been replaced
// are removed after a while. Otherwise it is Get.
func (k *Key[T]) History(ctx context.Context, opts *HistoryOptions) ([]Version[T], error) {
	var o HistoryOptions
	if opts != nil {
		o = *opts
	}
	if err := checkBounds(readKey, k.core.object, bounded{name: "Before", value: o.Before, low: 1, high: math.MaxInt64},
		bounded{name: "Limit", value: int64(o.Limit), low: 1, high: MaxRead}); err != nil {
		return nil, err
	}
	if o.Before == 0 {
		o.Before = math.MaxInt64
	}
	found, err := k.read(ctx, o.Before, or(o.Limit, 100))
	if err != nil {
		return nil, err
	}
	all := make([]Version[T], 0, len(found))
	for i := range found {
		v, err := k.decode(&found[i])
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, nil
}

// Delete appends a tombstone: it says that the key is gone. Handlers get a nil payload for it, Get returns a Version without one, and after StreamConfig.TombstoneTTL it is removed, too, as what the key held before has been by then.
// Of opts, which may be nil, Key stays unset; with ExpectedVersion the key is deleted only as it was read. The stream is a compacted one (ErrInvalidMessage).
func (k *Key[T]) Delete(ctx context.Context, opts *ProduceOptions) (Produced, error) {
	var o ProduceOptions
	if opts != nil {
		o = *opts
	}
	if err := k.core.checkKey(deleteKey, k.key); err != nil {
		return Produced{}, err
	}
	if o.Key != "" {
		return Produced{}, invalid(diag.InvalidOption, deleteKey, k.core.object, "the options have a Key")
	}
	o.Key = k.key
	return (&Producer[T]{core: k.core, version: k.version}).Produce(ctx, nil, &o)
}

const deleteKey = "delete a key of"

// readKey is what errors call it.
const readKey = "read a key of"

func (k *Key[T]) read(ctx context.Context, below int64, limit int) ([]delivery.Message, error) {
	if err := k.core.checkKey(readKey, k.key); err != nil {
		return nil, err
	}
	found, err := k.core.client.store.KeyVersions(ctx, k.core.id, k.key, below, limit)
	return found, renamed(err, k.core.object)
}

func (k *Key[T]) decode(m *delivery.Message) (Version[T], error) {
	out := message(m)
	v := Version[T]{ID: out.ID, Headers: out.Headers, RoutingKey: out.RoutingKey, ProducedAt: out.ProducedAt, AppendedAt: out.AppendedAt, Redacted: out.Redacted}
	if out.Redacted || out.Payload == nil {
		return v, nil
	}
	var err error
	if v.Payload, err = decoder[T](k.core)(m); err != nil {
		return v, &diag.Error{Code: diag.Undecodable, Op: readKey, Object: k.core.object, Detail: fmt.Sprintf("message %d cannot be decoded", m.ID), Err: err}
	}
	return v, nil
}

// checkKey refuses what no message can have for its key.
func (s *stream) checkKey(op, key string) error {
	switch {
	case key == "":
		return invalid(diag.InvalidMessage, op, s.object, "the key is empty")
	case len(key) > s.limits.MaxKey:
		return invalid(diag.TooLarge, op, s.object, "the key has "+strconv.Itoa(len(key))+" bytes, the stream allows "+strconv.Itoa(s.limits.MaxKey))
	case !utf8.ValidString(key) || strings.ContainsFunc(key, isControl):
		return invalid(diag.InvalidMessage, op, s.object, "the key is not valid UTF-8 without control characters")
	}
	return nil
}

// Versions returns messages of a key with ids below before (0: from the newest), the newest first: at most limit (1 to MaxRead), and about 8 MiB of payload, but one message at least if there is any. It is Key.History for
// tools that do not know the stream's type.
func (s *StreamHandle) Versions(ctx context.Context, key string, before int64, limit int) ([]Message, error) {
	if limit < 1 || limit > MaxRead || before < 0 {
		return nil, invalid(diag.InvalidOption, readKey, s.object, fmt.Sprintf("limit is %d, allowed are 1 to %d, and before is %d, allowed are 0 and ids", limit, MaxRead, before))
	}
	core, err := s.open(ctx, readKey)
	if err != nil {
		return nil, err
	}
	if err := core.checkKey(readKey, key); err != nil {
		return nil, err
	}
	if before == 0 {
		before = math.MaxInt64
	}
	found, err := s.client.store.KeyVersions(ctx, core.id, key, before, limit)
	if err != nil {
		if diag.CodeOf(err) == diag.StreamNotFound {
			s.forget()
		}
		return nil, renamed(err, s.object)
	}
	all := make([]Message, 0, len(found))
	for i := range found {
		all = append(all, message(&found[i]))
	}
	return all, nil
}
