package sqlstreams

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/store"
)

// Codec replaces JSON as the encoding of a stream's payloads: protobuf, encryption, raw bytes. Its methods are called from many goroutines.
type Codec interface {
	// Marshal encodes v, a pointer to the stream's type.
	Marshal(v any) ([]byte, error)
	// Unmarshal decodes data into v, a pointer to a zero value of the stream's type. It must not keep data.
	Unmarshal(data []byte, v any) error
}

// Raw is the codec of streams of []byte: payloads are stored as they are.
type Raw struct{}

// Marshal returns the bytes that v points to.
func (Raw) Marshal(v any) ([]byte, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("the raw codec takes *[]byte, not %T", v)
	}
	if *b == nil {
		return []byte{}, nil
	}
	return *b, nil
}

// Unmarshal copies data to where v points.
func (Raw) Unmarshal(data []byte, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("the raw codec takes *[]byte, not %T", v)
	}
	*b = bytes.Clone(data)
	return nil
}

// jsonCodec is the default. What encoding/json writes is valid JSON without raw control characters, whatever a type's own MarshalJSON returns.
type jsonCodec struct{}

func (jsonCodec) Marshal(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err == nil && altered(v, data) {
		return nil, errors.New("a string in it is not valid UTF-8")
	}
	return data, err
}

func (jsonCodec) Unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }

// versioned is implemented by payload types that have a version other than 1.
type versioned interface{ SchemaVersion() int }

// versionOf returns the payload version of a type.
func versionOf[T any]() int {
	var v any = new(T)
	if s, ok := v.(versioned); ok {
		return s.SchemaVersion()
	}
	return 1
}

// encode checks one message and turns it into what is stored.
func (s *stream) encode(payload any, version int, opts *ProduceOptions) (store.Outgoing, error) {
	const op = "produce to"
	bad := func(code Code, detail string) (store.Outgoing, error) {
		return store.Outgoing{}, invalid(code, op, s.object, detail)
	}
	data, err := s.codec.Marshal(payload)
	if err != nil {
		return store.Outgoing{}, &diag.Error{Code: diag.InvalidMessage, Op: op, Object: s.object, Detail: "the payload cannot be encoded", Err: err}
	}
	if len(data) > s.limits.MaxPayload {
		return bad(diag.TooLarge, fmt.Sprintf("the payload has %d bytes, the stream allows %d", len(data), s.limits.MaxPayload))
	}
	if s.kind == store.KindJSON {
		if len(data) == 0 {
			return bad(diag.InvalidMessage, "the payload is empty, which is not JSON")
		}
		if !utf8.Valid(data) {
			return bad(diag.InvalidMessage, "the payload is not valid UTF-8")
		}
	} else if data == nil {
		data = []byte{}
	}
	return s.encodeOptions(store.Outgoing{Payload: data, Version: version}, opts)
}

// encodeTombstone is encode for a message without a payload, which says that its key is gone.
func (s *stream) encodeTombstone(version int, opts *ProduceOptions) (store.Outgoing, error) {
	if !s.limits.Compacted {
		return store.Outgoing{}, invalid(diag.InvalidMessage, "produce to", s.object, "the payload is a nil pointer: a tombstone, which only a compacted stream takes")
	}
	if opts == nil || opts.Key == "" {
		return store.Outgoing{}, invalid(diag.InvalidMessage, "produce to", s.object, "the payload is a nil pointer: a tombstone, which needs a Key")
	}
	return s.encodeOptions(store.Outgoing{Version: version}, opts)
}

// encodeOptions checks what goes with a payload and adds it.
func (s *stream) encodeOptions(out store.Outgoing, opts *ProduceOptions) (store.Outgoing, error) {
	if opts == nil {
		return out, nil
	}
	const op = "produce to"
	bad := func(code Code, detail string) (store.Outgoing, error) {
		return store.Outgoing{}, invalid(code, op, s.object, detail)
	}
	var err error
	for _, key := range []struct{ name, value string }{{"key", opts.Key}, {"routing key", opts.RoutingKey}} {
		if len(key.value) > s.limits.MaxKey {
			return bad(diag.TooLarge, fmt.Sprintf("the %s has %d bytes, the stream allows %d", key.name, len(key.value), s.limits.MaxKey))
		}
		if !utf8.ValidString(key.value) || strings.ContainsFunc(key.value, isControl) {
			return bad(diag.InvalidMessage, "the "+key.name+" is not valid UTF-8 without control characters")
		}
	}
	out.Key, out.RoutingKey = opts.Key, opts.RoutingKey
	if k := opts.IdempotencyKey; len(k) > maxIdempotencyKey {
		return bad(diag.TooLarge, fmt.Sprintf("the idempotency key has %d bytes, allowed are %d", len(k), maxIdempotencyKey))
	} else if !utf8.ValidString(k) || strings.ContainsFunc(k, isControl) {
		return bad(diag.InvalidMessage, "the idempotency key is not valid UTF-8 without control characters")
	}
	out.IdempotencyKey = opts.IdempotencyKey
	if v := opts.ExpectedVersion; v < NoVersion {
		return bad(diag.InvalidOption, "ExpectedVersion is negative and not NoVersion")
	} else if v != 0 && opts.Key == "" {
		return bad(diag.InvalidOption, "ExpectedVersion is given without a Key")
	}
	out.ExpectedVersion = opts.ExpectedVersion
	if len(opts.Headers) > 0 {
		for k, v := range opts.Headers {
			if !utf8.ValidString(k) || !utf8.ValidString(v) {
				return bad(diag.InvalidMessage, "the header "+strconv.Quote(k)+" is not valid UTF-8")
			}
		}
		if out.Headers, err = json.Marshal(opts.Headers); err != nil {
			return store.Outgoing{}, &diag.Error{Code: diag.InvalidMessage, Op: op, Object: s.object, Detail: "the headers cannot be encoded", Err: err}
		}
		if len(out.Headers) > s.limits.MaxHeaders {
			return bad(diag.TooLarge, fmt.Sprintf("the headers have %d bytes, the stream allows %d", len(out.Headers), s.limits.MaxHeaders))
		}
	}
	if opts.Message != nil || opts.KeyOrder != "" {
		if err := checkMessageOptions(op, s.object, "Message", opts.Message); err != nil {
			return store.Outgoing{}, err
		}
		if err := checkKeyOrder(op, s.object, opts.KeyOrder); err != nil {
			return store.Outgoing{}, err
		}
		if opts.KeyOrder != "" && opts.Key == "" {
			return bad(diag.InvalidOption, "KeyOrder is given without a Key")
		}
		request := opts.Message.policy()
		request.KeyOrder = delivery.KeyOrder(opts.KeyOrder)
		out.Options = delivery.EncodeRequest(request)
	}
	return out, nil
}

// maxIdempotencyKey is the longest idempotency key in bytes.
const maxIdempotencyKey = 512

func isControl(r rune) bool { return r < 0x20 || r == 0x7f }
