package sqlstreamstest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	"github.com/sqlstreams/sqlstreams"
)

// Message is a message that a stream holds, decoded.
type Message[T any] struct {
	sqlstreams.Message    // its Payload is what is stored
	Value              *T // nil: a tombstone, or erased
}

// Produced returns what the stream holds, in the order of ids. Committed messages that wait for theirs (those of ProduceTx, and those with an idempotency key) get them first, so that they are among them. Payloads are decoded as
// JSON; of a []byte they are what is stored. It moves no group.
func Produced[T any](t testing.TB, stream *sqlstreams.StreamHandle) []Message[T] {
	t.Helper()
	messages, failure := produced[T](t, stream, nil)
	if failure != "" {
		t.Fatal(failure)
	}
	return messages
}

// ProducedWith is Produced for the streams of a codec.
func ProducedWith[T any](t testing.TB, stream *sqlstreams.StreamHandle, codec sqlstreams.Codec) []Message[T] {
	t.Helper()
	messages, failure := produced[T](t, stream, codec)
	if failure != "" {
		t.Fatal(failure)
	}
	return messages
}

func produced[T any](t testing.TB, stream *sqlstreams.StreamHandle, codec sqlstreams.Codec) (all []Message[T], failure string) {
	if _, raw := any(new(T)).(*[]byte); raw && codec == nil {
		codec = sqlstreams.Raw{}
	}
	codec = codecOr(codec)
	// Somebody else may be at the inbox, and have it for a while.
	err := wait(t, patience, func(ctx context.Context) (bool, error) {
		if _, err := stream.Sequence(ctx); err != nil {
			return true, err
		}
		status, err := stream.Status(ctx)
		return err == nil && status.Inbox == 0, err
	})
	if err != nil {
		return nil, "sqlstreamstest: messages of the stream wait for their ids: " + err.Error()
	}
	for after := int64(0); ; {
		page, err := stream.Read(t.Context(), after, sqlstreams.MaxRead)
		if err != nil {
			return nil, "sqlstreamstest: " + err.Error()
		}
		if len(page) == 0 {
			return all, ""
		}
		for _, m := range page {
			decoded := Message[T]{Message: m}
			if m.Payload != nil {
				decoded.Value = new(T)
				if err := codec.Unmarshal(m.Payload, decoded.Value); err != nil {
					return nil, fmt.Sprintf("sqlstreamstest: the payload of message %d cannot be decoded as %T: %v", m.ID, *decoded.Value, err)
				}
			}
			all = append(all, decoded)
			after = m.ID
		}
	}
}

// RequireProduced fails the test unless the stream holds messages with exactly these payloads, in this order, and shows the difference: lines that begin with - are missing, with + are not wanted. Payloads are equal if their
// JSON is, or if they are after encoding and decoding. Otherwise it is Produced.
func RequireProduced[T any](t testing.TB, stream *sqlstreams.StreamHandle, want ...T) {
	t.Helper()
	messages, failure := produced[T](t, stream, nil)
	if failure != "" {
		t.Fatal(failure)
	}
	if difference := compare(messages, want); difference != "" {
		t.Fatalf("sqlstreamstest: the stream holds other messages than wanted (- wanted, + held):\n%s", difference)
	}
}

// compare returns the difference between what is held and what is wanted, one message a line; "": none.
func compare[T any](held []Message[T], want []T) string {
	wanted := make([]value, 0, len(want))
	for i := range want {
		wanted = append(wanted, arrived(&want[i]))
	}
	have := make([]value, 0, len(held))
	for i := range held {
		v := value{text: "(no payload)", of: (*T)(nil)}
		if held[i].Value != nil {
			v = arrived(held[i].Value)
		}
		v.note = held[i].note()
		have = append(have, v)
	}
	return diff(wanted, have)
}

// note says where a message stands.
func (m *Message[T]) note() string {
	note := fmt.Sprintf("message %d", m.ID)
	if m.Key != "" {
		note += fmt.Sprintf(", key %q", m.Key)
	}
	return note
}

// arrived is a payload as a consumer would get it: without what does not travel, such as the monotonic part of a time.
func arrived[T any](p *T) value {
	text, err := json.Marshal(p)
	if err != nil {
		return value{text: fmt.Sprintf("%+v", *p), of: p}
	}
	if stored, raw := any(p).(*[]byte); raw {
		return value{text: fmt.Sprintf("%q", *stored), of: p}
	}
	back := new(T)
	if err := json.Unmarshal(text, back); err != nil {
		back = p
	}
	return value{text: string(text), json: text, of: back}
}

// value is one line of a difference.
type value struct {
	text, note string
	json       []byte // nil: it has none
	of         any
}

func (v value) equal(w value) bool {
	return v.json != nil && bytes.Equal(v.json, w.json) || reflect.DeepEqual(v.of, w.of)
}

// codecOr returns the codec, or JSON.
func codecOr(codec sqlstreams.Codec) sqlstreams.Codec {
	if codec != nil {
		return codec
	}
	return jsonCodec{}
}

type jsonCodec struct{}

func (jsonCodec) Marshal(v any) ([]byte, error)      { return json.Marshal(v) }
func (jsonCodec) Unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }
