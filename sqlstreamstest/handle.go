package sqlstreamstest

import (
	"cmp"
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

// HandleOptions describe the message and the attempt of one Handle. Nil or zero: their defaults.
type HandleOptions struct {
	// Meta is what MetaFromContext returns in the handler. Defaults: Stream and Group "test", ID 1, Attempt 1, SchemaVersion that of the payload's type, ProducedAt and AppendedAt now, LeaseDeadline that of a fresh claim.
	Meta sqlstreams.Meta
	// Timeout is when the handler's context ends. Default 30 s.
	Timeout time.Duration
	// Codec encodes and decodes the payload. Default: JSON.
	Codec sqlstreams.Codec
}

// What a fresh claim has by default beside the timeout.
const (
	grace       = 100 * time.Millisecond
	leaseMargin = 17 * time.Second
)

// Handle calls the handler with one message, as a group would, and returns its error. No database is needed. The payload is encoded and decoded on the way, so the handler gets what would arrive; nil is a tombstone. The context
// carries the Meta and the values of t.Context, and ends at the timeout and when the handler returns. A handler that returns later than its grace of 100 ms after the timeout fails the test: in a group it would have been
// abandoned. It runs on the caller's goroutine, and its panics are the test's.
func Handle[T any](t testing.TB, handler func(ctx context.Context, payload *T) error, payload *T, opts *HandleOptions) error {
	t.Helper()
	var o HandleOptions
	if opts != nil {
		o = *opts
	}
	codec := codecOr(o.Codec)
	message, err := o.message()
	if err != nil {
		t.Fatalf("sqlstreamstest: encode the headers: %v", err)
	}
	var arrived *T
	if payload != nil {
		if message.Payload, err = codec.Marshal(payload); err != nil {
			t.Fatalf("sqlstreamstest: encode the payload: %v", err)
		}
		arrived = new(T)
		if err := codec.Unmarshal(message.Payload, arrived); err != nil {
			t.Fatalf("sqlstreamstest: decode the payload: %v", err)
		}
	}
	message.SchemaVersion = cmp.Or(message.SchemaVersion, versionOf[T]())
	timeout := cmp.Or(o.Timeout, 30*time.Second)
	began := time.Now()
	ctx, end := consume.NewContext(t.Context(), message, o.attempt(message.ID, began, timeout), timeout)
	defer end()
	err = handler(ctx, arrived)
	if took := time.Since(began); took > timeout+grace {
		t.Errorf("sqlstreamstest: the handler returned after %v, its timeout is %v: a group would have abandoned it", took.Round(time.Millisecond), timeout)
	}
	return err
}

func (o *HandleOptions) message() (*delivery.Message, error) {
	m, now := &o.Meta, time.Now()
	message := &delivery.Message{ID: cmp.Or(m.ID, 1), SchemaVersion: m.SchemaVersion, Key: m.Key, RoutingKey: m.RoutingKey, ProducedAt: m.ProducedAt, AppendedAt: m.AppendedAt, ScheduledAt: m.ScheduledAt}
	if message.ProducedAt.IsZero() {
		message.ProducedAt = now
	}
	if message.AppendedAt.IsZero() {
		message.AppendedAt = now
	}
	if m.Headers == nil {
		return message, nil
	}
	var err error
	message.Headers, err = json.Marshal(m.Headers)
	return message, err
}

func (o *HandleOptions) attempt(id int64, began time.Time, timeout time.Duration) consume.Attempt {
	m := &o.Meta
	a := consume.Attempt{ID: id, Attempt: cmp.Or(m.Attempt, 1), Redelivered: m.Redelivered, OutOfOrder: m.OutOfOrder, LeaseDeadline: m.LeaseDeadline,
		Stream: cmp.Or(m.Stream, "test"), Group: cmp.Or(m.Group, "test"), Abandoned: began.Add(timeout + grace)}
	if a.LeaseDeadline.IsZero() {
		a.LeaseDeadline = a.Abandoned.Add(leaseMargin)
	}
	return a
}

// versionOf returns the payload version of a type, as the library does.
func versionOf[T any]() int {
	if v, ok := any(new(T)).(interface{ SchemaVersion() int }); ok {
		return v.SchemaVersion()
	}
	return 1
}
