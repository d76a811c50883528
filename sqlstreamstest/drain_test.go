package sqlstreamstest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams"
)

func TestDrainWaitsForTheEndOfEachMessage(t *testing.T) {
	t.Parallel()
	i := New(t, pool(t), nil)
	orders := register(t, i)
	shipping := group(t, orders, &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{MaxAttempts: 2, BaseDelay: time.Millisecond}})
	produce(t, orders, order{ID: "1"}, order{ID: "bad"}, order{ID: "2"})
	var shipped atomic.Int64
	stop := Consume(t, shipping, func(_ context.Context, o *order) error {
		if o.ID == "bad" {
			return errors.New("no address")
		}
		shipped.Add(1)
		return nil
	}, nil)
	if status := Drain(t, i.Client().Group("orders", "shipping")); status.Dead != 1 || shipped.Load() != 2 {
		t.Errorf("%d dead, %d shipped", status.Dead, shipped.Load())
	}
	stop()
	stop() // twice is fine, and so is the test's end
}

func TestDrainSaysWhyAGroupIsNotIdle(t *testing.T) {
	t.Parallel()
	i := New(t, pool(t), nil)
	orders := register(t, i)
	group(t, orders, nil)
	produce(t, orders, order{ID: "1"})
	drain := func(t testing.TB) { DrainWithin(t, i.Client().Group("orders", "shipping"), 20*time.Millisecond) }
	contains(t, failure(t, drain), `group "shipping" of stream "orders" is not idle: waited 20ms`, "left: 1 not claimed", "No instance of the group is running", "sqlstreams consume orders --group shipping")
	contains(t, failure(t, func(t testing.TB) { DrainWithin(t, i.Client().Group("orders", "billing"), 20*time.Millisecond) }), "SQL", "billing")
}

// Ten attempts with the default backoff would take minutes.
func TestDrainNowDoesNotWaitForRetries(t *testing.T) {
	t.Parallel()
	i := New(t, pool(t), nil)
	orders := register(t, i)
	shipping := group(t, orders, nil)
	produce(t, orders, order{ID: "1"})
	var attempts atomic.Int64
	Consume(t, shipping, func(context.Context, *order) error { attempts.Add(1); return errors.New("closed") }, nil)
	if status := DrainNow(t, i.Client().Group("orders", "shipping")); status.Dead != 1 || attempts.Load() != 10 {
		t.Errorf("%d dead after %d attempts", status.Dead, attempts.Load())
	}
}

func TestBringForwardMakesDueWhatWasDelayed(t *testing.T) {
	t.Parallel()
	i := New(t, pool(t), nil)
	orders := register(t, i)
	shipping := group(t, orders, nil)
	produce(t, orders, order{ID: "1"}, order{ID: "2"})
	var asked atomic.Int64
	Consume(t, shipping, func(context.Context, *order) error {
		if asked.Add(1) <= 2 {
			return sqlstreams.Delay(time.Hour)
		}
		return nil
	}, nil)
	shippings := i.Client().Group("orders", "shipping")
	// At once: that the messages are delayed is awaited.
	if n := BringForward(t, shippings); n != 2 {
		t.Errorf("%d were brought forward", n)
	}
	if Drain(t, shippings); asked.Load() != 4 {
		t.Errorf("%d calls", asked.Load())
	}
	if n := BringForward(t, shippings); n != 0 {
		t.Errorf("%d were brought forward in an idle group", n)
	}
}

// A program that has just been started registers its group on a goroutine of its own.
func TestAGroupThatIsAboutToBeRegisteredIsAwaited(t *testing.T) {
	t.Parallel()
	i := New(t, pool(t), nil)
	orders := register(t, i)
	produce(t, orders, order{ID: "1"})
	var asked atomic.Int64
	Run(t, func(ctx context.Context) error {
		shipping, err := orders.RegisterConsumer(ctx, "shipping", nil)
		if err != nil {
			return err
		}
		return shipping.Consume(ctx, func(context.Context, *order) error {
			if asked.Add(1) == 1 {
				return sqlstreams.Delay(time.Hour)
			}
			return nil
		}, Quick(nil))
	})
	shippings := i.Client().Group("orders", "shipping")
	if n := BringForward(t, shippings); n != 1 {
		t.Errorf("%d were brought forward", n)
	}
	if Drain(t, shippings); asked.Load() != 2 {
		t.Errorf("%d calls", asked.Load())
	}
}

func TestConsumingThatEndsFailsTheTest(t *testing.T) {
	t.Parallel()
	contains(t, failure(t, func(t testing.TB) { Run(t, func(context.Context) error { return errors.New("refused") })() }), "consuming ended: refused")
}
