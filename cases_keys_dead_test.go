package sqlstreams_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// deadHead is a key whose first message is refused until it is mended.
type deadHead struct {
	client *sqlstreams.Client
	stream *sqlstreams.Stream[WelcomeEmail]
	book   keyBook
	mended chan struct{}
}

func newDeadHead(t *testing.T, park bool) *deadHead {
	client, _, _ := open(t, nil)
	d := &deadHead{client: client, stream: register[WelcomeEmail](t, client, "s"), mended: make(chan struct{})}
	consume(t, group(t, d.stream, "g", &sqlstreams.ConsumerConfig{ParkKeyOnDeadLetter: park}), nil, d.book.handle(func(name string, _ sqlstreams.Meta) error {
		select {
		case <-d.mended:
		default:
			if name == "k/0" {
				return sqlstreams.Terminal(errors.New("refused"))
			}
		}
		return nil
	}))
	produceKeyed(t, d.stream, "k/0", "k/1", "l/0", "k/2", "l/1")
	return d
}

// settle waits until one message is dead, so many wait for it, and nothing else is left.
func (d *deadHead) settle(t *testing.T, waiting int64) {
	t.Helper()
	pgtest.Eventually(t, 20*time.Second, fmt.Sprintf("one is dead and %d wait", waiting), func() bool {
		s, err := d.client.Group("s", "g").Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s.Dead == 1 && s.Waiting == waiting && s.Backlog+s.OpenClaims+s.Pending+s.Running+s.Inbox == 0
	})
}

func (d *deadHead) operate(t *testing.T, action func(context.Context, *sqlstreams.DeliveryFilter, *sqlstreams.OperateOptions) (int64, error)) {
	t.Helper()
	if n, err := action(t.Context(), nil, nil); err != nil || n != 1 {
		t.Fatalf("%d, %v", n, err)
	}
	idle(t, d.client)
}

// Case 8: the head of a key becomes a dead letter, its successors go on; redriven, it runs and is told that it is out of order.
func TestADeadHeadIsRedrivenOutOfOrder(t *testing.T) {
	d := newDeadHead(t, false)
	d.settle(t, 0)
	d.book.check(t, "k", "k/0 k/1 k/2")
	close(d.mended)
	d.operate(t, d.client.Group("s", "g").Redrive)
	produceKeyed(t, d.stream, "k/3")
	idle(t, d.client)
	d.book.check(t, "k", "k/0 k/1 k/2 k/0 k/3", "k/0")
}

// Case 8, where the group parks its keys: the successors wait until the dead letter is redriven, and it runs before them.
func TestADeadHeadParksItsKeyUntilItIsRedriven(t *testing.T) {
	d := newDeadHead(t, true)
	d.settle(t, 2)
	d.book.check(t, "k", "k/0")
	d.book.check(t, "l", "l/0 l/1")
	produceKeyed(t, d.stream, "k/3", "l/2")
	d.settle(t, 3)
	d.book.check(t, "k", "k/0")
	close(d.mended)
	d.operate(t, d.client.Group("s", "g").Redrive)
	d.book.check(t, "k", "k/0 k/0 k/1 k/2 k/3")
	d.book.check(t, "l", "l/0 l/1 l/2")
}

// … or discarded.
func TestADeadHeadParksItsKeyUntilItIsDiscarded(t *testing.T) {
	d := newDeadHead(t, true)
	d.settle(t, 2)
	d.operate(t, d.client.Group("s", "g").Discard)
	d.book.check(t, "k", "k/0 k/1 k/2")
}
