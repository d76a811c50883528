package sqlstreams_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// A tool that knows no type reads, produces and consumes what programs with types produce and consume.
func TestStreamsByName(t *testing.T) {
	client, _, _ := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	h := client.Stream("s")
	if s, err := h.Status(t.Context()); err != nil || s.Kind != "json" || s.Head != 0 || s.Retained != 0 || !s.OldestAt.IsZero() || !s.HeadAt.IsZero() || s.Partitions < 2 {
		t.Fatalf("empty: %+v, %v", s, err)
	}
	if _, err := stream.Producer(nil).Produce(t.Context(), &WelcomeEmail{UserID: "typed"}, &sqlstreams.ProduceOptions{Key: "k", RoutingKey: "a.b", Headers: map[string]string{"h": "v"}}); err != nil {
		t.Fatal(err)
	}
	text := []byte(`{ "user_id": "raw" }`)
	produced, err := h.ProduceBatch(t.Context(), []sqlstreams.Outgoing[[]byte]{{Payload: &text}})
	if err != nil || len(produced) != 1 || produced[0].ID != 2 {
		t.Fatalf("%+v, %v", produced, err)
	}
	all, err := h.Read(t.Context(), 0, 10)
	if err != nil || len(all) != 2 || all[0].ID != 1 || all[0].Key != "k" || all[0].RoutingKey != "a.b" || all[0].Headers["h"] != "v" || string(all[0].Payload) != `{"user_id":"typed"}` ||
		all[0].AppendedAt.IsZero() || string(all[1].Payload) != string(text) {
		t.Fatalf("%+v, %v", all, err)
	}
	if m, err := h.Get(t.Context(), 2); err != nil || m == nil || string(m.Payload) != string(text) {
		t.Errorf("%+v, %v", m, err)
	}
	if m, err := h.Get(t.Context(), 3); err != nil || m != nil {
		t.Errorf("%+v, %v", m, err)
	}
	var typed, raw tally
	first := consume(t, group(t, stream, "typed", nil), nil, func(_ context.Context, m *WelcomeEmail) error { typed.add(m.UserID); return nil })
	untyped, err := h.Consumer(t.Context(), "raw", nil)
	if err != nil {
		t.Fatal(err)
	}
	second := consume(t, untyped, nil, func(ctx context.Context, payload *[]byte) error {
		if meta, ok := sqlstreams.MetaFromContext(ctx); ok {
			raw.add(fmt.Sprint(meta.ID, meta.Key, string(*payload)))
		}
		return nil
	})
	pgtest.Eventually(t, 20*time.Second, "both groups have both", func() bool {
		return typed.count("typed") == 1 && typed.count("raw") == 1 && raw.count(`1k{"user_id":"typed"}`) == 1 && raw.count("2"+string(text)) == 1
	})
	if s, err := h.Status(t.Context()); err != nil || s.Head != 2 || s.Groups != 2 || s.Bytes == 0 || s.OldestAt.After(s.HeadAt) || s.OldestAt.IsZero() {
		t.Errorf("%+v, %v", s, err)
	}

	first.stop(t)
	second.stop(t)
	// The stream is deleted and made again: a handle finds the new one.
	if err := client.DeleteStream(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.ProduceBatch(t.Context(), []sqlstreams.Outgoing[[]byte]{{Payload: &text}}); err == nil {
		t.Error("produced to a stream that is deleted")
	}
	register[WelcomeEmail](t, client, "s")
	if _, err := h.ProduceBatch(t.Context(), []sqlstreams.Outgoing[[]byte]{{Payload: &text}}); err != nil {
		t.Error(err)
	}
}

// A page ends at its limits and goes on behind gaps and the ends of partitions.
func TestReadPages(t *testing.T) {
	client, db, _ := open(t, nil)
	stream, err := sqlstreams.RegisterStream[[]byte](t.Context(), client, "s", &sqlstreams.StreamConfig{Codec: sqlstreams.Raw{}, MaxPayload: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	db.Exec(t, `update sqlstreams.stream set partition_rows = 3`)
	db.Exec(t, `drop table sqlstreams.log_1_1000001`)
	db.Exec(t, `drop table sqlstreams.log_1_1`)
	db.Exec(t, `delete from sqlstreams.partition`)
	big := []byte(strings.Repeat("x", 5<<20))
	small := []byte{0, 1, 255}
	for i := range 20 {
		payload := &small
		if i >= 17 {
			payload = &big
		}
		if _, err := stream.Producer(nil).Produce(t.Context(), payload, nil); err != nil {
			t.Fatal(err)
		}
	}
	db.Exec(t, `delete from sqlstreams.log_1 where id between 3 and 10`)
	h := client.Stream("s")
	var pages []string
	for after := int64(0); ; {
		page, err := h.Read(t.Context(), after, 2)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		var ids []int64
		for _, m := range page {
			ids = append(ids, m.ID)
		}
		after = ids[len(ids)-1]
		pages = append(pages, fmt.Sprint(ids))
	}
	if got, want := strings.Join(pages, " "), "[1 2] [11 12] [13 14] [15] [16 17] [18] [19 20]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if page, err := h.Read(t.Context(), 17, 100); err != nil || len(page) == 0 || len(page) > 2 {
		t.Errorf("%d messages of 5 MiB in a page, %v", len(page), err)
	}
}
