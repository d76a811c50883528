package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

func TestAppendStoresEverythingAMessageHas(t *testing.T) {
	in := install(t)
	ctx := context.Background()
	stream := in.stream(t, "s", 0)
	want := []Outgoing{
		{Payload: []byte(`{"a": "\u0000 \ud800 é", "a": 1e400}`), Version: 3, Key: "k,{}\"\\", RoutingKey: "a.b.c", Headers: []byte(`{"h":"v"}`), Options: []byte(`{"v":1,"timeout_ms":5}`)},
		{Payload: []byte(`null`), Version: 1},
		{Payload: nil, Version: 1, Key: "tombstone"},
		{Payload: []byte(`"` + strings.Repeat("x", 300000) + `"`), Version: 2, RoutingKey: "NULL"},
	}
	put := map[string]func() error{
		"direct": func() error {
			_, err := in.Append(ctx, &AppendRequest{Stream: stream, Kind: KindJSON, Producer: uuid.New(), Batch: 1, Messages: want})
			return err
		},
		"inbox": func() error {
			_, err := in.Append(ctx, &AppendRequest{Stream: stream, Kind: KindJSON, Producer: uuid.New(), Batch: 1, Wait: -1 * time.Millisecond, Messages: want})
			return err
		},
		"tx": func() error {
			tx, err := in.pool.Begin(ctx)
			if err != nil {
				return err
			}
			return errors.Join(in.PutTx(ctx, tx, stream, KindJSON, want), tx.Commit(ctx))
		},
		"one by one": func() error {
			for i := range want {
				tx, err := in.pool.Begin(ctx)
				if err != nil {
					return err
				}
				if err := errors.Join(in.PutTx(ctx, tx, stream, KindJSON, want[i:i+1]), tx.Commit(ctx)); err != nil {
					return err
				}
			}
			return nil
		},
	}
	low := int64(0)
	for name, store := range put {
		if err := store(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := in.Drain(ctx, stream, 1000); err != nil {
			t.Fatal(err)
		}
		got, err := in.Read(ctx, stream, low, low+100)
		if err != nil {
			t.Fatal(err)
		}
		low += int64(len(want))
		var back []Outgoing
		for _, m := range got {
			back = append(back, Outgoing{Payload: m.Payload, Version: m.SchemaVersion, Key: m.Key, RoutingKey: m.RoutingKey, Headers: m.Headers, Options: m.Options})
			if m.ProducedAt.IsZero() || m.AppendedAt.IsZero() || time.Since(m.AppendedAt) > time.Minute {
				t.Errorf("%s: message %d has times %v, %v", name, m.ID, m.ProducedAt, m.AppendedAt)
			}
		}
		if diff := cmp.Diff(want, back); diff != "" {
			t.Errorf("%s: stored is not what was produced:\n%s", name, diff)
		}
	}
	if n := in.count(t, `select count(*) from {schema}.log_1 l where l.payload is not null and l.size <> octet_length(l.payload::text) + coalesce(octet_length(l.headers::text), 0)`); n != 0 {
		t.Errorf("%d rows have another size than their payload and headers", n)
	}
}

func TestBytesAreStoredAsTheyAre(t *testing.T) {
	in := install(t)
	ctx := context.Background()
	st, err := in.RegisterStream(ctx, "raw", KindBytes, []byte(`{"v":1}`), false, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := []Outgoing{{Payload: []byte{0, 1, 0x1e, 0x1f, 0xff}, Version: 1}, {Payload: []byte{}, Version: 1}, {Payload: nil, Version: 1, Key: "t"}}
	if _, err := in.Append(ctx, &AppendRequest{Stream: st.ID, Kind: KindBytes, Producer: uuid.New(), Batch: 1, Messages: want}); err != nil {
		t.Fatal(err)
	}
	tx, err := in.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(in.PutTx(ctx, tx, st.ID, KindBytes, want), in.PutTx(ctx, tx, st.ID, KindBytes, want[:1]), tx.Commit(ctx)); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Drain(ctx, st.ID, 1000); err != nil {
		t.Fatal(err)
	}
	got, err := in.Read(ctx, st.ID, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	var back [][]byte
	for _, m := range got {
		back = append(back, m.Payload)
	}
	if diff := cmp.Diff([][]byte{want[0].Payload, want[1].Payload, nil, want[0].Payload, want[1].Payload, nil, want[0].Payload}, back); diff != "" {
		t.Error(diff)
	}
}

func TestRepeatedBatchIsStoredOnce(t *testing.T) {
	in := install(t)
	ctx := context.Background()
	stream := in.stream(t, "s", 0)
	for _, wait := range []time.Duration{0, time.Second, -time.Millisecond} {
		producer := uuid.New()
		req := &AppendRequest{Stream: stream, Kind: KindJSON, Producer: producer, Batch: 7, Wait: wait, Messages: messages(`1`, `2`, `3`)}
		first, err := in.Append(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		again, err := in.Append(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		if !again.Repeated || again.First != first.First || first.Repeated {
			t.Errorf("wait %v: first %+v, again %+v", wait, first, again)
		}
	}
	if _, err := in.Drain(ctx, stream, 1000); err != nil {
		t.Fatal(err)
	}
	if n := in.count(t, `select count(*) from {schema}.log_1`); n != 9 {
		t.Errorf("%d messages stored, want 9", n)
	}
}

// The first sending of a batch is under way on a connection that its client has given up; the second arrives. Whichever gets the stream's lock first stores it.
func TestRepetitionBesideTheFirstSending(t *testing.T) {
	in := install(t)
	ctx := context.Background()
	stream := in.stream(t, "s", 0)
	blocker := in.db.Conn(t)
	if _, err := blocker.Exec(ctx, `begin; select pg_advisory_xact_lock(`+fmt.Sprint(in.names.Lock("stream"))+`, `+fmt.Sprint(stream)+`)`); err != nil {
		t.Fatal(err)
	}
	req := &AppendRequest{Stream: stream, Kind: KindJSON, Producer: uuid.New(), Batch: 1, Wait: 5 * time.Second, Messages: messages(`1`)}
	type result struct {
		reply AppendReply
		err   error
	}
	results := make(chan result, 2)
	for range 2 {
		go func() {
			reply, err := in.Append(ctx, req)
			results <- result{reply, err}
		}()
	}
	watcher := in.db.SuperuserConn(t)
	pgtest.Eventually(t, 5*time.Second, "both wait for the lock", func() bool {
		var n int
		if err := watcher.QueryRow(ctx, `select count(*) from pg_stat_activity a where a.datname = current_database() and a.wait_event_type = 'Lock' and a.wait_event = 'advisory'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 2
	})
	if _, err := blocker.Exec(ctx, `commit`); err != nil {
		t.Fatal(err)
	}
	repeated := 0
	for range 2 {
		r := <-results
		if r.err != nil || r.reply.First != 1 {
			t.Fatalf("%+v, %v", r.reply, r.err)
		}
		if r.reply.Repeated {
			repeated++
		}
	}
	if repeated != 1 {
		t.Errorf("%d of two sendings were told that they repeat, want 1", repeated)
	}
}

func TestLockHeldSendsBatchThroughTheInbox(t *testing.T) {
	in := install(t)
	ctx := context.Background()
	stream := in.stream(t, "s", 0)
	blocker := in.db.Conn(t)
	if _, err := blocker.Exec(ctx, `begin; select pg_advisory_xact_lock(`+fmt.Sprint(in.names.Lock("stream"))+`, `+fmt.Sprint(stream)+`)`); err != nil {
		t.Fatal(err)
	}
	for _, wait := range []time.Duration{0, 100 * time.Millisecond} {
		began := time.Now()
		reply := func() AppendReply {
			reply, err := in.Append(ctx, &AppendRequest{Stream: stream, Kind: KindJSON, Producer: uuid.New(), Batch: 1, Wait: wait, Messages: messages(`1`, `2`)})
			if err != nil {
				t.Fatal(err)
			}
			return reply
		}()
		if reply.First != 0 {
			t.Errorf("got id %d while another held the lock", reply.First)
		}
		if took := time.Since(began); took < wait || took > wait+time.Second {
			t.Errorf("waited %v, want %v", took, wait)
		}
	}
	if reply, err := in.Drain(ctx, stream, 1000); err != nil || !reply.Busy || reply.Moved != 0 {
		t.Fatalf("%+v, %v", reply, err)
	}
	if _, err := blocker.Exec(ctx, `commit`); err != nil {
		t.Fatal(err)
	}
	// Order is kept: what waits gets its ids before what is appended now.
	if reply := in.append(t, stream, `3`); reply.First != 5 || reply.Moved != 4 {
		t.Errorf("%+v, want the inbox's four before", reply)
	}
}

// Case 20: nobody keeps partitions ahead, and ids run past the last one.
func TestProducingGoesOnPastTheLastPartition(t *testing.T) {
	in := install(t)
	ctx := context.Background()
	stream := in.stream(t, "s", 7)
	group := in.group(t, stream, "g", "beginning")
	next := int64(1)
	for _, n := range []int{1, 5, 7, 8, 30, 100} {
		var payloads []string
		for i := range n {
			payloads = append(payloads, fmt.Sprint(i))
		}
		if reply := in.append(t, stream, payloads...); reply.First != next {
			t.Fatalf("batch of %d: first id %d, want %d", n, reply.First, next)
		}
		next += int64(n)
	}
	// And through the inbox, where a drain is clipped to the room there is.
	tx, err := in.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if err := in.PutTx(ctx, tx, stream, KindJSON, messages(`1`)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		reply, err := in.Drain(ctx, stream, 1000)
		if err != nil {
			t.Fatal(err)
		}
		more = reply.More
	}
	if n := in.count(t, `select max(l.id) from {schema}.log_1 l`); n != next+49 {
		t.Errorf("newest id %d, want %d", n, next+49)
	}
	if n := in.count(t, `select count(*) from {schema}.inbox`); n != 0 {
		t.Errorf("%d rows left in the inbox", n)
	}
	// A consumer gets across all of them, a partition at a time.
	low := int64(0)
	for low < next+49 {
		reply := in.work(t, &delivery.WorkRequest{Group: group, Stream: stream, Instance: uuid.New(), RangeToken: uuid.New(), MaxMessages: 1000, MaxBytes: 1 << 20, Margins: time.Second})
		if reply.Range == nil || reply.Range.Low != low || !reply.More && reply.Range.High != next+49 {
			t.Fatalf("after %d: %+v, more %v", low, reply.Range, reply.More)
		}
		got, err := in.Read(ctx, stream, low, reply.Range.High)
		if err != nil || int64(len(got)) != reply.Range.High-low {
			t.Fatalf("%d messages of (%d, %d], %v", len(got), low, reply.Range.High, err)
		}
		low = reply.Range.High
	}
}

func TestAppendToWhatIsNotThere(t *testing.T) {
	in := install(t)
	ctx := context.Background()
	stream := in.stream(t, "s", 0)
	_, err := in.Append(ctx, &AppendRequest{Stream: 99, Kind: KindJSON, Producer: uuid.New(), Batch: 1, Messages: messages(`1`)})
	if !errors.Is(err, diag.ErrStreamNotFound) {
		t.Errorf("got %v", err)
	}
	_, err = in.Append(ctx, &AppendRequest{Stream: stream, Kind: KindBytes, Producer: uuid.New(), Batch: 1, Messages: messages(`1`)})
	if !errors.Is(err, diag.ErrDeclarationConflict) {
		t.Errorf("got %v", err)
	}
	tx, err := in.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := in.PutTx(ctx, tx, 99, KindJSON, messages(`1`)); !errors.Is(err, diag.ErrStreamNotFound) {
		t.Errorf("got %v", err)
	}
	// The caller's transaction is still good.
	if err := in.PutTx(ctx, tx, stream, KindJSON, messages(`1`)); err != nil {
		t.Error(err)
	}
	if err := tx.Commit(ctx); err != nil {
		t.Error(err)
	}
}

// One bad row, which the client's checks would have refused, fails its whole batch and leaves nothing.
func TestBadContentsLeaveNothing(t *testing.T) {
	in := install(t)
	ctx := context.Background()
	stream := in.stream(t, "s", 0)
	_, err := in.Append(ctx, &AppendRequest{Stream: stream, Kind: KindJSON, Producer: uuid.New(), Batch: 1, Messages: messages(`1`, `{`, `3`)})
	if diag.CodeOf(err) != diag.DatabaseError || diag.Retryable(err) || diag.Unknown(err) {
		t.Errorf("got %v", err)
	}
	if n := in.count(t, `select (select count(*) from {schema}.log_1) + (select count(*) from {schema}.producer_batch) + (select count(*) from {schema}.inbox)`); n != 0 {
		t.Errorf("%d rows were left", n)
	}
}

// Case 8c: retention empties the log; ids go on, and so do groups.
func TestEmptiedLogGoesOnCounting(t *testing.T) {
	in := install(t)
	stream := in.stream(t, "s", 5)
	group := in.group(t, stream, "g", "beginning")
	in.append(t, stream, `1`, `2`, `3`, `4`, `5`, `6`, `7`)
	in.sql(t, `update {schema}.stream set first_id = 8 where id = 1`)
	in.sql(t, `delete from {schema}.log_1`)
	if reply := in.append(t, stream, `8`); reply.First != 8 {
		t.Fatalf("first id %d, want 8", reply.First)
	}
	reply := in.work(t, &delivery.WorkRequest{Group: group, Stream: stream, Instance: uuid.New(), RangeToken: uuid.New(), MaxMessages: 10, MaxBytes: 1 << 20, Margins: time.Second})
	if reply.Range == nil || reply.Range.Low != 7 || reply.Range.High != 8 {
		t.Errorf("range %+v", reply.Range)
	}
	if reply.LostFrom != 0 || reply.LostTo != 7 {
		t.Errorf("told that (%d, %d] were lost, want (0, 7]", reply.LostFrom, reply.LostTo)
	}
	again := in.work(t, &delivery.WorkRequest{Group: group, Stream: stream, Instance: uuid.New(), RangeToken: uuid.New(), MaxMessages: 10, MaxBytes: 1 << 20, Margins: time.Second})
	if again.Range != nil || again.LostTo != 0 {
		t.Errorf("told twice: %+v", again)
	}
}
