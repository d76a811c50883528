package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

// inBackoff makes a group with so many messages, each of them a delivery that has failed once.
func (in *installation) inBackoff(t testing.TB, n int) (stream, group int) {
	t.Helper()
	stream = in.stream(t, "s-"+uuid.NewString(), 0)
	group = in.group(t, stream, "g", "beginning")
	payloads := make([]string, n)
	for i := range payloads {
		payloads[i] = fmt.Sprint(i + 1)
	}
	in.append(t, stream, payloads...)
	token := uuid.New()
	in.work(t, &delivery.WorkRequest{Group: group, Stream: stream, Instance: uuid.New(), RangeToken: token, MaxMessages: n, MaxBytes: 1 << 20, Margins: time.Second})
	result := delivery.RangeResult{RangeRef: delivery.RangeRef{Token: token}}
	for i := range n {
		result.Outcomes = append(result.Outcomes, delivery.Outcome{ID: int64(i + 1), Kind: delivery.Failed, Attempt: 1})
	}
	in.work(t, &delivery.WorkRequest{Group: group, Stream: stream, Instance: uuid.New(), Results: []delivery.RangeResult{result}})
	return stream, group
}

func (in *installation) takeDeliveries(t testing.TB, stream, group, n int) delivery.Token {
	t.Helper()
	token := uuid.New()
	reply := in.work(t, &delivery.WorkRequest{Group: group, Stream: stream, Instance: uuid.New(), DeliveryToken: token, Retries: n, Margins: time.Second})
	if len(reply.Deliveries) != n {
		t.Fatalf("%d deliveries were handed out, not %d", len(reply.Deliveries), n)
	}
	return token
}

func ok(id int64, token delivery.Token) delivery.DeliveryResult {
	return delivery.DeliveryResult{Token: token, Outcome: delivery.Outcome{ID: id, Kind: delivery.Succeeded, Attempt: 1}}
}

// Each result of a list is answered for itself: one that is owned, one whose lease has ended but whose token stands, one that was taken away meanwhile, an unknown one, one that is told twice.
func TestEachResultIsAnsweredForItself(t *testing.T) {
	t.Parallel()
	in := install(t)
	stream, group := in.inBackoff(t, 3)
	token := in.takeDeliveries(t, stream, group, 3)
	in.sql(t, `update {schema}.delivery set expires_at = clock_timestamp() - interval '1 second' where message_id = 3`)
	in.work(t, &delivery.WorkRequest{Group: group, Stream: stream, Instance: uuid.New(), LookExpired: true}) // takes 3 away
	in.sql(t, `update {schema}.delivery set expires_at = clock_timestamp() - interval '1 second' where message_id = 2`)

	reply := in.work(t, &delivery.WorkRequest{Group: group, Stream: stream, Instance: uuid.New(), Deliveries: []delivery.DeliveryResult{
		ok(1, token), ok(2, token), ok(3, token), ok(99, token), ok(1, token),
	}})
	if diff := cmp.Diff([]int64{1, 3, 99}, reply.LostDeliveries); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	if left := in.count(t, `select coalesce(sum(message_id), 0) from {schema}.delivery`); left != 3 {
		t.Errorf("the ids that are left have the sum %d, want only 3", left)
	}
}

// Of ranges likewise, in the same call.
func TestEachRangeIsAnsweredForItself(t *testing.T) {
	t.Parallel()
	in := install(t)
	stream := in.stream(t, "s", 0)
	group := in.group(t, stream, "g", "beginning")
	in.append(t, stream, "1", "2", "3")
	refs := make([]delivery.RangeRef, 3)
	for i := range refs {
		refs[i] = delivery.RangeRef{Low: int64(i), Token: uuid.New()}
		in.work(t, &delivery.WorkRequest{Group: group, Stream: stream, Instance: uuid.New(), RangeToken: refs[i].Token, MaxMessages: 1, MaxBytes: 1 << 20, Margins: time.Second})
	}
	in.sql(t, `update {schema}.claim set expires_at = clock_timestamp() - interval '1 second' where low = 1`)
	in.sql(t, `update {schema}.claim set token = gen_random_uuid() where low = 2`)
	unknown := delivery.RangeRef{Low: 7, Token: uuid.New()}
	var results []delivery.RangeResult
	for _, ref := range []delivery.RangeRef{refs[0], refs[1], refs[2], unknown, refs[0]} {
		results = append(results, delivery.RangeResult{RangeRef: ref})
	}
	reply := in.work(t, &delivery.WorkRequest{Group: group, Stream: stream, Instance: uuid.New(), Results: results})
	if diff := cmp.Diff([]delivery.RangeRef{refs[0], refs[2], unknown}, reply.LostRanges); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	if n := in.count(t, `select count(*) from {schema}.claim`); n != 1 {
		t.Errorf("%d ranges are open, want the one that was taken over", n)
	}
}

// When the database fails in the middle of a list, nothing of it is recorded, and the same list can be told again.
func TestNothingIsRecordedOnAnErrorOfTheDatabase(t *testing.T) {
	t.Parallel()
	in := install(t)
	stream, group := in.inBackoff(t, 2)
	token := in.takeDeliveries(t, stream, group, 2)
	in.sql(t, `alter table {schema}.attempt add constraint ouch check (message_id <> 2) not valid`)
	list := &delivery.WorkRequest{Group: group, Stream: stream, Instance: uuid.New(), Deliveries: []delivery.DeliveryResult{
		ok(1, token), {Token: token, Outcome: delivery.Outcome{ID: 2, Kind: delivery.Failed, Attempt: 2, DueIn: time.Hour}},
	}}
	if _, err := in.Work(context.Background(), list); err == nil {
		t.Fatal("no error")
	}
	if n := in.count(t, `select count(*) from {schema}.delivery where state = 'running'`); n != 2 {
		t.Errorf("%d deliveries run, want both", n)
	}
	in.sql(t, `alter table {schema}.attempt drop constraint ouch`)
	if reply := in.work(t, list); len(reply.LostDeliveries) != 0 {
		t.Errorf("refused the second time: %v", reply.LostDeliveries)
	}
	if n := in.count(t, `select count(*) from {schema}.delivery where state = 'pending' and message_id = 2 and attempt = 2`); n != 1 {
		t.Error("2 does not wait for its retry")
	}
}

// What says who holds a key must outlive a crash of the server, because others act on it: a call that touches keys waits for the disk, one that does not need not. A deferred trigger sees how the transaction is about to commit.
func TestCallsThatTouchKeysCommitDurably(t *testing.T) {
	t.Parallel()
	in := install(t)
	in.sql(t, `create table public.noted (setting text)`)
	in.sql(t, `create function public.note() returns trigger language plpgsql as $$ begin insert into public.noted select current_setting('synchronous_commit'); return null; end $$`)
	in.sql(t, `create constraint trigger note after insert or delete on {schema}.claim deferrable initially deferred for each row execute function public.note()`)
	usual := in.setting(t)
	for config, want := range map[string]string{`{"v":1}`: "off", `{"v":1,"key_order":"parallel"}`: "off", `{"v":1,"key_order":"ordered"}`: usual, `{"v":1,"key_order":"exclusive"}`: usual} {
		stream := in.stream(t, "s-"+uuid.NewString(), 0)
		g, err := in.RegisterGroup(context.Background(), stream, "g", []byte(config), false, time.Second, 3, "beginning")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in.Append(context.Background(), &AppendRequest{Stream: stream, Kind: KindJSON, Producer: uuid.New(), Batch: 1, Wait: time.Second,
			Messages: []Outgoing{{Payload: []byte("1"), Version: 1, Key: "k"}}}); err != nil {
			t.Fatal(err)
		}
		token := uuid.New()
		in.work(t, &delivery.WorkRequest{Group: g.ID, Stream: stream, Instance: uuid.New(), RangeToken: token, MaxMessages: 1, MaxBytes: 1 << 20, Margins: time.Second})
		in.work(t, &delivery.WorkRequest{Group: g.ID, Stream: stream, Instance: uuid.New(), Results: []delivery.RangeResult{{RangeRef: delivery.RangeRef{Low: 0, Token: token}}}})
		if n := in.count(t, `select count(*) from public.noted where setting = $1`, want); n != 2 {
			t.Errorf("config %s: %d of claim and record committed with synchronous_commit = %s", config, n, want)
		}
		in.sql(t, `truncate public.noted`)
	}
}

// setting is how transactions commit here.
func (in *installation) setting(t testing.TB) (setting string) {
	t.Helper()
	if err := in.pool.QueryRow(context.Background(), `select current_setting('synchronous_commit')`).Scan(&setting); err != nil {
		t.Fatal(err)
	}
	if setting == "off" {
		t.Fatal("the test server does not commit durably, so the test would say nothing")
	}
	return setting
}

// What was handed out together is taken away together when its lease ends, however much there is. Were a line cut in two, a late record of its end would still be accepted, and its head would run again after it.
func TestALineIsTakenAwayWhole(t *testing.T) {
	t.Parallel()
	in := install(t)
	stream := in.stream(t, "s", 0)
	group := in.group(t, stream, "g", "beginning")
	line := uuid.New()
	in.sql(t, `insert into {schema}.delivery (group_id, message_id, state, due_at, token, expires_at, message_key, key_hash, ordered)
		select $1, n, 'running', clock_timestamp(), gen_random_uuid(), clock_timestamp() - interval '1 hour', null, null, false from generate_series(1, 999) n`, group)
	in.sql(t, `insert into {schema}.delivery (group_id, message_id, state, due_at, token, expires_at, message_key, key_hash, ordered)
		select $1, n, 'running', clock_timestamp(), $2, '2026-01-01', 'k', {schema}.key_hash('k'), true from generate_series(2001, 2003) n`, group, line)
	in.sql(t, `update {schema}.delivery set expires_at = '2025-01-01' where message_id < 2000`) // the first thousand are these, and the head of the line
	in.work(t, &delivery.WorkRequest{Group: group, Stream: stream, Instance: uuid.New(), LookExpired: true})
	if n := in.count(t, `select count(*) from {schema}.delivery where token = $1`, line); n != 0 {
		t.Errorf("%d of the line are still under its token", n)
	}
	reply := in.work(t, &delivery.WorkRequest{Group: group, Stream: stream, Instance: uuid.New(), Deliveries: []delivery.DeliveryResult{ok(2003, line)}})
	if diff := cmp.Diff([]int64{2003}, reply.LostDeliveries); diff != "" {
		t.Errorf("the late record of its end (-want +got):\n%s", diff)
	}
	if n := in.count(t, `select count(*) from {schema}.delivery where message_id > 2000 and (state = 'pending') = (message_id = 2001)`); n != 3 {
		t.Errorf("%d of the line are as they should be: the head due, the others waiting", n)
	}
}
