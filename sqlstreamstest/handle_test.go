package sqlstreamstest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqlstreams/sqlstreams"
)

type versioned struct{}

func (versioned) SchemaVersion() int { return 3 }

func TestAHandlerGetsWhatAGroupWouldGiveIt(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	opts := &HandleOptions{Meta: sqlstreams.Meta{Stream: "orders", ID: 7, Key: "k", RoutingKey: "a.b", Headers: map[string]string{"trace": "x"}, Attempt: 3, Redelivered: true}, Timeout: time.Minute}
	sent := &order{ID: "1"}
	err := Handle(t, func(ctx context.Context, o *order) error {
		m, ok := sqlstreams.MetaFromContext(ctx)
		if !ok || m.Stream != "orders" || m.Group != "test" || m.ID != 7 || m.Key != "k" || m.RoutingKey != "a.b" || m.Headers["trace"] != "x" || m.Attempt != 3 || !m.Redelivered || m.SchemaVersion != 1 {
			t.Errorf("%v %+v", ok, m)
		}
		deadline, ok := ctx.Deadline()
		if left := time.Until(deadline); !ok || left > time.Minute || left < 30*time.Second || !m.LeaseDeadline.After(deadline) || m.ProducedAt.IsZero() || m.AppendedAt.IsZero() {
			t.Errorf("deadline in %v, %+v", left, m)
		}
		if o == sent || *o != *sent {
			t.Errorf("got %+v", o)
		}
		return refused
	}, sent, opts)
	if !errors.Is(err, refused) {
		t.Error(err)
	}
	err = Handle(t, func(ctx context.Context, o *versioned) error {
		if m, _ := sqlstreams.MetaFromContext(ctx); o != nil || m.SchemaVersion != 3 || m.ID != 1 || m.Attempt != 1 {
			t.Errorf("%v %+v", o, m)
		}
		return nil
	}, nil, nil)
	if err != nil {
		t.Error(err)
	}
}

func TestAHandlersContextEndsAtTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kept context.Context
		err := Handle(t, func(ctx context.Context, _ *order) error {
			kept = ctx
			<-ctx.Done()
			return context.Cause(ctx)
		}, &order{}, &HandleOptions{Timeout: time.Second})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		contains(t, err.Error(), "Timeout (1s) exceeded for message 1 attempt 1")
		if err := Handle(t, func(ctx context.Context, _ *order) error { kept = ctx; return nil }, &order{}, nil); err != nil || kept.Err() == nil {
			t.Errorf("%v; the context lives on", err)
		}
		late := failure(t, func(t testing.TB) {
			if err := Handle(t, func(context.Context, *order) error { time.Sleep(2 * time.Second); return nil }, &order{}, &HandleOptions{Timeout: time.Second}); err != nil {
				t.Error(err)
			}
		})
		contains(t, late, "returned after 2s, its timeout is 1s")
	})
}

func TestAPayloadThatCannotTravelFailsTheTest(t *testing.T) {
	t.Parallel()
	contains(t, failure(t, func(t testing.TB) {
		bad := make(chan int)
		if err := Handle(t, func(context.Context, *chan int) error { return nil }, &bad, nil); err != nil {
			t.Error(err)
		}
	}), "encode the payload")
}
