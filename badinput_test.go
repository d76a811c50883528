package sqlstreams_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// Bad input gets a coded error at the call that brought it, and changes nothing.

// untouched checks at the test's end that the tables stand as they stood at its call.
func untouched(t *testing.T, db *pgtest.Database, tables ...string) {
	t.Helper()
	before := content(t, db, tables...)
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		conn, err := pgx.Connect(context.Background(), db.DSN)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close(context.Background()) //nolint:errcheck // it was read from
		var after strings.Builder
		for _, table := range tables {
			var text string
			if err := conn.QueryRow(context.Background(), `select coalesce(string_agg(x::text, E'\n' order by x::text), '') from sqlstreams.`+table+` x`).Scan(&text); err != nil {
				t.Error(err)
			}
			after.WriteString(table + ": " + text + "\n")
		}
		if after.String() != before {
			t.Errorf("bad input changed\n%sto\n%s", before, after.String())
		}
	})
}

func TestNamesThatNothingCanHave(t *testing.T) {
	client, db, pool := open(t, nil)
	stream := register[WelcomeEmail](t, client, strings.Repeat("s", 128))
	group(t, stream, strings.Repeat("g", 128), nil)
	group(t, stream, "0.a_b-c", nil)
	untouched(t, db, "stream", "consumer_group", "cursor")
	for name, sentinel := range map[string]error{
		"": sqlstreams.ErrInvalidName, strings.Repeat("s", 129): sqlstreams.ErrInvalidName, "Capital": sqlstreams.ErrInvalidName, "with space": sqlstreams.ErrInvalidName,
		`qu"ote`: sqlstreams.ErrInvalidName, "quo'te": sqlstreams.ErrInvalidName, "percent%s": sqlstreams.ErrInvalidName, "emoji🙂": sqlstreams.ErrInvalidName, "é": sqlstreams.ErrInvalidName,
		".dot": sqlstreams.ErrInvalidName, "-minus": sqlstreams.ErrInvalidName, "_under": sqlstreams.ErrInvalidName, "new\nline": sqlstreams.ErrInvalidName, "end\n": sqlstreams.ErrInvalidName,
		"nul\x00": sqlstreams.ErrInvalidName, "\xff": sqlstreams.ErrInvalidName, "a/b": sqlstreams.ErrInvalidName, "a;drop table x": sqlstreams.ErrInvalidName,
		"__system.": sqlstreams.ErrReservedName, "__system.alerts": sqlstreams.ErrReservedName, "__system": sqlstreams.ErrInvalidName,
	} {
		var details []string
		for what, call := range map[string]func() error{
			"register a stream": func() error {
				_, err := sqlstreams.RegisterStream[WelcomeEmail](t.Context(), client, name, nil)
				return err
			},
			"register a group": func() error { _, err := stream.RegisterConsumer(t.Context(), name, nil); return err },
			"get a stream":     func() error { _, err := client.GetStream(t.Context(), name); return err },
			"get a group":      func() error { _, err := client.GetGroup(t.Context(), stream.Name(), name); return err },
			"delete a stream":  func() error { return client.DeleteStream(t.Context(), name) },
		} {
			err := call()
			if !errors.Is(err, sentinel) {
				t.Errorf("%s %q: %v", what, name, err)
				continue
			}
			e := coded(t, err, sentinel, false)
			details = append(details, string(e.Code)+" "+e.Detail)
		}
		slices.Sort(details)
		if details = slices.Compact(details); len(details) != 1 {
			t.Errorf("%q is refused in different words: %q", name, details)
		}
	}
	for _, schema := range []string{strings.Repeat("s", 64), "pg_x", "a\x00b", "\xff", "a$sqlstreams$b"} {
		_, err := sqlstreams.NewClient(t.Context(), pool, &sqlstreams.ClientConfig{Schema: schema, Logger: quiet()})
		coded(t, err, sqlstreams.ErrInvalidName, false)
	}
	if n := db.QueryInt(t, `select count(*) from pg_namespace where nspname !~ '^pg_' and nspname not in ('public', 'information_schema')`); n != 1 {
		t.Errorf("%d schemas", n)
	}
}

func TestValuesBeyondTheStreamsLimits(t *testing.T) {
	client, db, _ := open(t, &sqlstreams.ClientConfig{DisableManager: true})
	stream, err := sqlstreams.RegisterStream[string](t.Context(), client, "s", &sqlstreams.StreamConfig{MaxPayload: 100, MaxKey: 10, MaxHeaders: 50})
	if err != nil {
		t.Fatal(err)
	}
	producer := stream.Producer(nil)
	long := strings.Repeat("x", 98)     // in JSON 100 bytes
	header := strings.Repeat("x", 50-8) // {"a":"…"}
	most := &sqlstreams.ProduceOptions{Key: "0123456789", RoutingKey: "0123456789", Headers: map[string]string{"a": header}}
	if _, err := producer.Produce(t.Context(), &long, most); err != nil {
		t.Fatalf("values of exactly the limits' size: %v", err)
	}
	untouched(t, db, "log_1", "inbox", "producer_batch")
	longer := long + "x"
	for what, bad := range map[string]struct {
		payload *string
		options *sqlstreams.ProduceOptions
	}{
		"payload":     {&longer, nil},
		"key":         {&long, &sqlstreams.ProduceOptions{Key: "0123456789a"}},
		"long key":    {&long, &sqlstreams.ProduceOptions{Key: "🙂🙂é1"}}, // bytes count, not characters
		"routing key": {&long, &sqlstreams.ProduceOptions{RoutingKey: "0123456789a"}},
		"headers":     {&long, &sqlstreams.ProduceOptions{Headers: map[string]string{"a": header + "x"}}},
	} {
		_, err := producer.Produce(t.Context(), bad.payload, bad.options)
		e := coded(t, err, sqlstreams.ErrTooLarge, false)
		if !strings.Contains(e.Detail, strings.TrimPrefix(what, "long ")) || strings.Contains(err.Error(), "xxxx") {
			t.Errorf("%s: %v", what, err)
		}
		// One bad message in a batch: all or nothing, and which one is said.
		_, err = producer.ProduceBatch(t.Context(), []sqlstreams.Outgoing[string]{{Payload: &long}, {Payload: bad.payload, Options: bad.options}})
		if e := coded(t, err, sqlstreams.ErrTooLarge, false); !strings.Contains(e.Detail, "message 1 ") {
			t.Errorf("%s in a batch: %v", what, err)
		}
	}
}

// text is a payload that is already JSON.
type text = json.RawMessage

func TestContentsThatCannotBeStoredExactly(t *testing.T) {
	client, db, pool := open(t, &sqlstreams.ClientConfig{DisableManager: true})
	stream := register[text](t, client, "s")
	producer := stream.Producer(nil)
	ok := text(`1`)
	if _, err := producer.Produce(t.Context(), &ok, nil); err != nil {
		t.Fatal(err)
	}
	untouched(t, db, "log_1", "inbox", "producer_batch")
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer rolledBack(t, tx)
	bad := map[string]struct {
		payload *text
		options *sqlstreams.ProduceOptions
	}{
		"nil":                  {nil, nil},
		"no JSON":              {ptr(text(`{`)), nil},
		"empty":                {ptr(text(``)), nil},
		"two values":           {ptr(text(`1 2`)), nil},
		"invalid UTF-8":        {ptr(text("\"\xff\"")), nil},
		"separator":            {ptr(text("\"a\x1eb\"")), nil},
		"control character":    {ptr(text("\"a\nb\"")), nil},
		"key with separator":   {&ok, &sqlstreams.ProduceOptions{Key: "a\x1eb"}},
		"key with null's mark": {&ok, &sqlstreams.ProduceOptions{Key: "\x1f"}},
		"key with NUL":         {&ok, &sqlstreams.ProduceOptions{Key: "a\x00"}},
		"key with newline":     {&ok, &sqlstreams.ProduceOptions{Key: "a\n"}},
		"key with DEL":         {&ok, &sqlstreams.ProduceOptions{Key: "a\x7f"}},
		"key no UTF-8":         {&ok, &sqlstreams.ProduceOptions{Key: "a\xff"}},
		"routing key":          {&ok, &sqlstreams.ProduceOptions{RoutingKey: "a.\tb"}},
		"routing key no UTF-8": {&ok, &sqlstreams.ProduceOptions{RoutingKey: "\xc3"}},
		"header's name":        {&ok, &sqlstreams.ProduceOptions{Headers: map[string]string{"\xff": "v"}}},
		"header's value":       {&ok, &sqlstreams.ProduceOptions{Headers: map[string]string{"n": "\xff"}}},
	}
	for _, what := range slices.Sorted(maps.Keys(bad)) {
		b := bad[what]
		_, err := producer.Produce(t.Context(), b.payload, b.options)
		if !errors.Is(err, sqlstreams.ErrInvalidMessage) {
			t.Errorf("%s: %v", what, err)
			continue
		}
		coded(t, err, sqlstreams.ErrInvalidMessage, false)
		// Refused before anything is sent, so the caller's transaction is not aborted by it.
		_, err = producer.ProduceTx(t.Context(), tx, b.payload, b.options)
		coded(t, err, sqlstreams.ErrInvalidMessage, false)
		if _, err := tx.Exec(t.Context(), `select 1`); err != nil {
			t.Fatalf("%s: the transaction is aborted: %v", what, err)
		}
	}
	_, err = producer.ProduceTx(t.Context(), nil, &ok, nil)
	if e := coded(t, err, diag.Sentinel(diag.InvalidTransaction), false); e.OutcomeUnknown {
		t.Error(err)
	}
	if _, err := tx.Exec(t.Context(), `select 1/0`); err == nil {
		t.Fatal("no error")
	}
	_, err = producer.ProduceTx(t.Context(), tx, &ok, nil)
	coded(t, err, diag.Sentinel(diag.InvalidTransaction), false)
	rolledBack(t, tx)
	_, err = producer.ProduceTx(t.Context(), tx, &ok, nil)
	coded(t, err, diag.Sentinel(diag.InvalidTransaction), false)
}

// What looks odd and is allowed comes out as it went in, on both ways.
func TestOddContentsAreStoredExactly(t *testing.T) {
	client, _, pool := open(t, nil)
	stream, err := sqlstreams.RegisterStream[text](t.Context(), client, "s", &sqlstreams.StreamConfig{MaxPayload: 16 << 20, MaxHeaders: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	producer := stream.Producer(nil)
	payloads := []string{
		`"\u0000"`, `"\ud800"`, `1e400`, `-0`, `{"a":1,"a":2}`, `null`, `""`, `"\u001e\u001f"`, `"` + "\u0085" + `"`, `[]`, `{}`, `"NULL"`, `"\\N"`, `12345678901234567890123456789.123456789`,
		`"` + strings.Repeat("x", 3<<20) + `"`,
	}
	odd := &sqlstreams.ProduceOptions{Key: `a"b'c\d%e{f}🙂` + "\u0085", RoutingKey: "a.*.#.b", Headers: map[string]string{"": "", "n\x00\x1e\n": "v\x00\x1e\x1f\"\\", "🙂": "\u2028"}}
	type arrived struct {
		payload string
		meta    sqlstreams.Meta
	}
	got := make(chan arrived, 100)
	consume(t, group(t, stream, "g", nil), &sqlstreams.ConsumeOptions{Handlers: 1}, func(ctx context.Context, m *text) error {
		meta, _ := sqlstreams.MetaFromContext(ctx)
		got <- arrived{string(*m), meta}
		return nil
	})
	for _, p := range payloads {
		payload := text(p)
		ways := map[string]func() error{
			"direct": func() error { _, err := producer.Produce(t.Context(), &payload, odd); return err },
			"batch": func() error {
				_, err := producer.ProduceBatch(t.Context(), []sqlstreams.Outgoing[text]{{Payload: &payload, Options: odd}})
				return err
			},
			"tx": func() error {
				return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					_, err := producer.ProduceTx(t.Context(), tx, &payload, odd)
					return err
				})
			},
			"batch in a tx": func() error {
				return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					_, err := producer.ProduceBatchTx(t.Context(), tx, []sqlstreams.Outgoing[text]{{Payload: &payload, Options: odd}, {Payload: &payload, Options: odd}})
					return err
				})
			},
		}
		if len(p) > 1<<20 {
			ways = map[string]func() error{"direct": ways["direct"]} // encoding it takes long
		}
		for way, produce := range ways {
			if err := produce(); err != nil {
				t.Fatalf("%s of %.40s: %v", way, p, err)
			}
			n := 1
			if way == "batch in a tx" {
				n = 2
			}
			for range n {
				select {
				case a := <-got:
					if a.payload != p || a.meta.Key != odd.Key || a.meta.RoutingKey != odd.RoutingKey || !maps.Equal(a.meta.Headers, odd.Headers) {
						t.Errorf("%s: %.40s came as %.40s with key %q, routing key %q, headers %q", way, p, a.payload, a.meta.Key, a.meta.RoutingKey, a.meta.Headers)
					}
				case <-time.NewTimer(20 * time.Second).C:
					t.Fatalf("%s: %.40s has not come", way, p)
				}
			}
		}
	}
}

// halfCodec encodes everything and decodes nothing, some of it with a panic.
type halfCodec struct{}

func (halfCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (halfCodec) Unmarshal(data []byte, _ any) error {
	if bytes.Equal(data, []byte("panic")) {
		panic("secret payload")
	}
	return errors.New("cannot decode")
}

func TestPayloadsThatCannotBeDecodedAreDeadAndTheRestGoesOn(t *testing.T) {
	var log lines
	client, db, _ := open(t, &sqlstreams.ClientConfig{Logger: log.logger()})
	config := &sqlstreams.StreamConfig{Codec: halfCodec{}}
	stream, err := sqlstreams.RegisterStream[[]byte](t.Context(), client, "s", config)
	if err != nil {
		t.Fatal(err)
	}
	for _, payload := range []string{"secret bytes", "panic"} {
		if _, err := stream.Producer(nil).Produce(t.Context(), ptr([]byte(payload)), nil); err != nil {
			t.Fatal(err)
		}
	}
	consume(t, group(t, stream, "g", &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{MaxAttempts: 2, BaseDelay: time.Millisecond}}), nil, func(context.Context, *[]byte) error {
		t.Error("a handler got what cannot be decoded")
		return nil
	})
	pgtest.Eventually(t, 20*time.Second, "both are dead", func() bool { return db.QueryInt(t, `select count(*) from sqlstreams.dead_letter`) == 2 })
	if n := db.QueryInt(t, `select count(*) from sqlstreams.dead_letter where reason = 'undecodable' and attempts = 1 and payload_bytes = 'secret bytes' and error like '%cannot decode'
		or reason = 'exhausted' and attempts = 2 and payload_bytes = 'panic'`); n != 2 {
		t.Errorf("dead letters: %s", content(t, db, "dead_letter"))
	}
	if strings.Contains(log.String(), "secret") {
		t.Errorf("the log holds what a payload or a handler says: %s", log.String())
	}
	_, err = sqlstreams.RegisterStream[WelcomeEmail](t.Context(), client, "s", nil)
	coded(t, err, sqlstreams.ErrDeclarationConflict, false)
}

func TestCallsWithoutWhatTheyNeed(t *testing.T) {
	client, db, pool := open(t, &sqlstreams.ClientConfig{DisableManager: true})
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", nil)
	untouched(t, db, "stream", "consumer_group", "log_1", "inbox")
	_, err := sqlstreams.NewClient(t.Context(), nil, nil)
	coded(t, err, sqlstreams.ErrInvalidOption, false)
	coded(t, instance.Consume(t.Context(), nil, nil), sqlstreams.ErrInvalidOption, false)
	_, err = stream.RegisterConsumer(t.Context(), "x", &sqlstreams.ConsumerConfig{Start: "middle"})
	coded(t, err, sqlstreams.ErrInvalidOption, false)
	_, err = stream.RegisterConsumer(t.Context(), "x", &sqlstreams.ConsumerConfig{
		Message: &sqlstreams.MessageOptions{Timeout: 2 * time.Second}, MessageMax: &sqlstreams.MessageOptions{Timeout: time.Second}})
	coded(t, err, sqlstreams.ErrInvalidOption, false)
	_, err = stream.RegisterConsumer(t.Context(), "x", &sqlstreams.ConsumerConfig{
		Message: &sqlstreams.MessageOptions{MaxAttempts: 1}, MessageMin: &sqlstreams.MessageOptions{MaxAttempts: 2}})
	coded(t, err, sqlstreams.ErrInvalidOption, false)
	coded(t, instance.Consume(t.Context(), func(context.Context, *WelcomeEmail) error { return nil }, &sqlstreams.ConsumeOptions{BatchLimit: 2, BatchMin: 3}), sqlstreams.ErrInvalidOption, false)
	strict := openOn(t, pool, &sqlstreams.ClientConfig{StrictRegistration: true, DisableManager: true})
	_, err = sqlstreams.RegisterStream[WelcomeEmail](t.Context(), strict, "s", &sqlstreams.StreamConfig{MaxKey: 7})
	coded(t, err, sqlstreams.ErrDeclarationConflict, false)
	_, err = register[WelcomeEmail](t, strict, "s").RegisterConsumer(t.Context(), "g", &sqlstreams.ConsumerConfig{MaxRangeReclaims: 7})
	coded(t, err, sqlstreams.ErrDeclarationConflict, false)
	_, err = client.GetGroup(t.Context(), "s", "unknown")
	coded(t, err, sqlstreams.ErrGroupNotFound, false)
	if produced, err := stream.Producer(nil).ProduceBatch(t.Context(), nil); err != nil || produced != nil {
		t.Errorf("an empty batch: %v, %v", produced, err)
	}
}

func TestStreamThatSomebodyElseHasDeleted(t *testing.T) {
	client, _, pool := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", nil)
	other := openOn(t, pool, nil)
	if err := other.DeleteStream(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	producer := stream.Producer(nil)
	for what, call := range map[string]func() error{
		"Produce":          func() error { _, err := producer.Produce(t.Context(), &WelcomeEmail{}, nil); return err },
		"RegisterConsumer": func() error { _, err := stream.RegisterConsumer(t.Context(), "new", nil); return err },
		"GetStream":        func() error { _, err := client.GetStream(t.Context(), "s"); return err },
		"GetGroup":         func() error { _, err := client.GetGroup(t.Context(), "s", "g"); return err },
		"DeleteStream":     func() error { return client.DeleteStream(t.Context(), "s") },
		"ProduceTx": func() error {
			return client.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
				_, err := producer.ProduceTx(ctx, tx, &WelcomeEmail{}, nil)
				if _, after := tx.Exec(ctx, `select 1`); after != nil {
					t.Errorf("the caller's transaction is aborted: %v", after)
				}
				return err
			})
		},
	} {
		err := call()
		if !errors.Is(err, sqlstreams.ErrStreamNotFound) {
			t.Errorf("%s: %v", what, err)
			continue
		}
		coded(t, err, sqlstreams.ErrStreamNotFound, false)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := instance.Consume(ctx, func(context.Context, *WelcomeEmail) error { return nil }, nil)
	if !errors.Is(err, sqlstreams.ErrGroupNotFound) && !errors.Is(err, sqlstreams.ErrStreamNotFound) {
		t.Errorf("Consume: %v", err)
	}
}
