package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/storetest"
)

// The suite that the engine's store in memory passes, on Postgres.
func TestConformance(t *testing.T) {
	in := install(t)
	storetest.Conformance(t, func(*testing.T) storetest.Harness { return &harness{in: in} })
}

// harness is an installation under the suite. What operators will do with verbs that come later is done in plain SQL.
type harness struct {
	in *installation
}

func (h *harness) Store() consume.Store { return h.in.Store }

// NewStream hides the table that joins the leaves: whatever the store says about a log must name a leaf.
func (h *harness) NewStream(t testing.TB) int {
	stream := h.in.stream(t, "s-"+uuid.NewString(), 0)
	h.in.hideLog(t, stream)
	return stream
}

func (h *harness) NewGroup(t testing.TB, stream int, ceiling time.Duration, maxReclaims int) int {
	t.Helper()
	g, err := h.in.RegisterGroup(context.Background(), stream, "g-"+uuid.NewString(), []byte(`{"v":1}`), false, ceiling, maxReclaims, "beginning")
	if err != nil {
		t.Fatal(err)
	}
	return g.ID
}

func (h *harness) Append(t testing.TB, stream int, msgs ...delivery.Message) int64 {
	t.Helper()
	out := make([]Outgoing, len(msgs))
	for i, m := range msgs {
		out[i] = Outgoing{Payload: m.Payload, Version: max(m.SchemaVersion, 1), Key: m.Key, RoutingKey: m.RoutingKey, Headers: m.Headers, Options: m.Options}
	}
	reply, err := h.in.Append(context.Background(), &AppendRequest{Stream: stream, Kind: KindJSON, Producer: uuid.New(), Batch: 1, Wait: time.Second, Messages: out})
	if err != nil {
		t.Fatal(err)
	}
	return reply.First + int64(len(msgs)) - 1
}

func (h *harness) log(stream int) string { return fmt.Sprintf(`{schema}.whole_%d`, stream) }

func (h *harness) Remove(t testing.TB, stream int, ids ...int64) {
	h.in.sql(t, `delete from `+h.log(stream)+` where id = any ($1)`, ids)
}

func (h *harness) Redact(t testing.TB, stream int, ids ...int64) {
	h.in.sql(t, `update `+h.log(stream)+` set redacted_at = clock_timestamp(), payload = null, headers = null where id = any ($1)`, ids)
}

func (h *harness) Retain(t testing.TB, stream int, first int64) {
	h.in.sql(t, `update {schema}.stream set first_id = $2 where id = $1`, stream, first)
	h.in.sql(t, `delete from `+h.log(stream)+` where id < $1`, first)
}

func (h *harness) ExpireAll(t testing.TB, group int) {
	h.in.sql(t, `update {schema}.claim set expires_at = clock_timestamp() - interval '1 second' where group_id = $1`, group)
	h.in.sql(t, `update {schema}.delivery set expires_at = clock_timestamp() - interval '1 second' where group_id = $1 and state = 'running'`, group)
}

func (h *harness) DueAll(t testing.TB, group int) {
	// One moment for all: what is due at once is handed out in order of id.
	h.in.sql(t, `update {schema}.delivery set due_at = (select clock_timestamp()) - interval '1 second' where group_id = $1 and state = 'pending'`, group)
}

func (h *harness) FinishDelivery(t testing.TB, group int, id int64) {
	h.in.sql(t, `select {schema}.finish_tx($1, $2, d.token, true) from {schema}.delivery d where d.group_id = $1 and d.message_id = $2 and d.state = 'running'`, group, id)
}

func (h *harness) operate(t testing.TB, group int, action string, ids []int64) {
	t.Helper()
	if _, _, err := h.in.Step(context.Background(), &Operation{Group: group, Action: action, Filter: &Filter{IDs: ids}, Actor: "test", Object: "test"}, 1000); err != nil {
		t.Fatal(err)
	}
}

func (h *harness) Redrive(t testing.TB, group int, ids ...int64) {
	t.Helper()
	h.operate(t, group, Redrive, ids)
}

func (h *harness) Discard(t testing.TB, group int, ids ...int64) {
	t.Helper()
	h.operate(t, group, Discard, ids)
}

func (h *harness) DiscardDeliveries(t testing.TB, group int, ids ...int64) {
	t.Helper()
	h.operate(t, group, DiscardDeliveries, ids)
}

// SweepKeys goes round once, two keys a pass.
func (h *harness) SweepKeys(t testing.TB, group int) (woken int) {
	t.Helper()
	for at := (*int64)(nil); ; {
		next, n, err := h.in.WakeWaiting(context.Background(), group, 2, at)
		if err != nil {
			t.Fatal(err)
		}
		if woken, at = woken+n, next; next == nil {
			return woken
		}
	}
}

func (h *harness) SetPaused(t testing.TB, group int, paused bool) {
	h.in.sql(t, `update {schema}.consumer_group set paused = $2 where id = $1`, group, paused)
}

func (h *harness) SetConfig(t testing.TB, group int, config []byte, ceiling time.Duration) {
	h.in.sql(t, `update {schema}.consumer_group set config = $2, ceiling_ms = $3, config_version = config_version + 1 where id = $1`, group, string(config), ceiling.Milliseconds())
}

func (h *harness) Seek(t testing.TB, group int, claimed int64) {
	h.in.sql(t, `update {schema}.consumer_group set epoch = epoch + 1 where id = $1`, group)
	h.in.sql(t, `delete from {schema}.claim where group_id = $1`, group)
	h.in.sql(t, `delete from {schema}.delivery where group_id = $1 and message_id > $2`, group, claimed)
	h.in.sql(t, `delete from {schema}.done where group_id = $1 and message_id > $2`, group, claimed)
	h.in.sql(t, `insert into {schema}.cursor (group_id, seq, claimed) select $1, max(seq) + 1, $2 from {schema}.cursor where group_id = $1`, group, claimed)
}

func (h *harness) Drop(t testing.TB, group int) {
	h.in.sql(t, `delete from {schema}.consumer_group where id = $1`, group)
}

// collect reads rows of a statement that ends with the group's id.
func collect[T any](t testing.TB, h *harness, sql string, group int, row func(pgx.CollectableRow) (T, error)) []T {
	t.Helper()
	rows, err := h.in.pool.Query(context.Background(), h.in.names.Expand(sql), group)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, row)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func (h *harness) State(t testing.TB, group int) storetest.State {
	t.Helper()
	var s storetest.State
	for _, claimed := range collect(t, h, `select claimed from {schema}.cursor where group_id = $1 order by seq desc limit 1`, group, pgx.RowTo[int64]) {
		s.Claimed = claimed
	}
	s.Claims = collect(t, h, `select low, high, token, reclaims, stale, excused, expires_at <= clock_timestamp(), coalesce(cardinality(key_hashes), 0) from {schema}.claim where group_id = $1 order by low`, group,
		func(row pgx.CollectableRow) (c storetest.Claim, err error) {
			return c, row.Scan(&c.Low, &c.High, &c.Token, &c.Reclaims, &c.Stale, &c.Excused, &c.Expired, &c.Keys)
		})
	s.Deliveries = collect(t, h, `select message_id, state = 'running', state = 'waiting', attempt, solo, coalesce(last_error, ''),
		case when key_hash is null then '' when ordered then 'ordered' else 'exclusive' end, out_of_order from {schema}.delivery where group_id = $1 order by message_id`, group,
		func(row pgx.CollectableRow) (d storetest.Delivery, err error) {
			return d, row.Scan(&d.ID, &d.Running, &d.Waiting, &d.Attempt, &d.Solo, &d.Error, &d.Order, &d.OutOfOrder)
		})
	s.Dead = collect(t, h, `select message_id, reason, coalesce(error, ''), attempts, payload, coalesce(message_key, ''), parks is not null from {schema}.dead_letter where group_id = $1 order by message_id`, group,
		func(row pgx.CollectableRow) (d storetest.DeadLetter, err error) {
			return d, row.Scan(&d.ID, &d.Reason, &d.Error, &d.Attempts, &d.Payload, &d.Key, &d.Parks)
		})
	s.Done = collect(t, h, `select message_id from {schema}.done where group_id = $1 order by message_id`, group, pgx.RowTo[int64])
	s.Attempts = collect(t, h, `select message_id, attempt, kind, coalesce(error, '') from {schema}.attempt where group_id = $1 order by id`, group,
		func(row pgx.CollectableRow) (a storetest.AttemptRow, err error) {
			return a, row.Scan(&a.ID, &a.Attempt, &a.Kind, &a.Error)
		})
	return s
}

// The store in memory, which the engine is tested on, answers as Postgres does.
func TestMemoryAnswersAsPostgresDoes(t *testing.T) {
	storetest.SameHistories(t, storetest.NewMemoryHarness(), &harness{in: install(t)}, 1, 60, 24)
}
