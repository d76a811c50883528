package sqlstreamstest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams"
)

func TestProducedSeesWhatWaitsForItsID(t *testing.T) {
	t.Parallel()
	i := New(t, pool(t), nil)
	orders := register(t, i)
	err := i.Client().InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := orders.Producer(nil).ProduceTx(ctx, tx, &order{ID: "1"}, &sqlstreams.ProduceOptions{Key: "k", Headers: map[string]string{"trace": "x"}})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	got := Produced[order](t, i.Client().Stream("orders"))
	if len(got) != 1 || got[0].ID != 1 || got[0].Key != "k" || got[0].Headers["trace"] != "x" || *got[0].Value != (order{ID: "1"}) || string(got[0].Payload) != `{"ID":"1","Cents":0}` {
		t.Errorf("%+v", got)
	}
}

func TestProducedIsDecoded(t *testing.T) {
	t.Parallel()
	i := New(t, pool(t), nil)
	stream, err := sqlstreams.RegisterStream[[]byte](t.Context(), i.Client(), "bytes", &sqlstreams.StreamConfig{Codec: sqlstreams.Raw{}})
	if err != nil {
		t.Fatal(err)
	}
	bytes := i.Client().Stream("bytes")
	if got := Produced[[]byte](t, bytes); len(got) != 0 {
		t.Errorf("an empty stream holds %+v", got)
	}
	payload := []byte{0xff, 0}
	if _, err := stream.Producer(nil).Produce(t.Context(), &payload, nil); err != nil {
		t.Fatal(err)
	}
	RequireProduced(t, bytes, payload)
	if got := ProducedWith[[]byte](t, bytes, sqlstreams.Raw{}); len(got) != 1 || string(*got[0].Value) != string(payload) {
		t.Errorf("%+v", got)
	}
	contains(t, failure(t, func(t testing.TB) { Produced[order](t, bytes) }), "message 1 cannot be decoded as sqlstreamstest.order")
	contains(t, failure(t, func(t testing.TB) { ProducedWith[order](t, bytes, sqlstreams.Raw{}) }), "message 1 cannot be decoded")
	contains(t, failure(t, func(t testing.TB) { RequireProduced[order](t, i.Client().Stream("none")) }), "SQL", "none")
}

func TestRequireProducedShowsTheDifference(t *testing.T) {
	t.Parallel()
	i := New(t, pool(t), nil)
	orders := register(t, i)
	stream := i.Client().Stream("orders")
	RequireProduced[order](t, stream)
	produce(t, orders, order{"1", 5}, order{"2", 5}, order{"3", 5})
	RequireProduced(t, stream, order{"1", 5}, order{"2", 5}, order{"3", 5})
	got := failure(t, func(t testing.TB) {
		RequireProduced(t, stream, order{"1", 5}, order{"2", 7}, order{"3", 5}, order{"4", 5})
	})
	const want = `sqlstreamstest: the stream holds other messages than wanted (- wanted, + held):
  {"ID":"1","Cents":5}   (message 1)
- {"ID":"2","Cents":7}
+ {"ID":"2","Cents":5}   (message 2)
  {"ID":"3","Cents":5}   (message 3)
- {"ID":"4","Cents":5}`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// What does not travel is no difference.
func TestTimesAreComparedAsTheyTravel(t *testing.T) {
	t.Parallel()
	i := New(t, pool(t), nil)
	times, err := sqlstreams.RegisterStream[time.Time](t.Context(), i.Client(), "times", &sqlstreams.StreamConfig{Compacted: true})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	if _, err := times.Producer(nil).Produce(t.Context(), &now, nil); err != nil {
		t.Fatal(err)
	}
	RequireProduced(t, i.Client().Stream("times"), now)
	if _, err := times.Key("k").Delete(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	contains(t, failure(t, func(t testing.TB) { RequireProduced(t, i.Client().Stream("times"), now) }), `+ (no payload)   (message 2, key "k")`)
}
