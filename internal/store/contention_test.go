package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// Claims, records, handlers' own transactions and operators' actions on the same few keys from many connections: one global order of locks, so no deadlock arises that anybody would have to be told of.
func TestNoDeadlockSurfaces(t *testing.T) {
	t.Parallel()
	contend(t, 150)
}

// contend plays so many rounds on each of eight connections.
func contend(t *testing.T, rounds int) {
	in := install(t)
	stream := in.stream(t, "s", 0)
	group, err := in.RegisterGroup(context.Background(), stream, "g", []byte(`{"v":1,"key_order":"ordered","park_key_on_dead_letter":true}`), false, time.Second, 3, "beginning")
	if err != nil {
		t.Fatal(err)
	}
	c := &contention{installation: in, stream: stream, group: group.ID, done: make(map[string]*atomic.Int64)}
	for _, verb := range []string{"claimed", "recorded", "finished", Redrive, Discard, RetryNow, DiscardDeliveries} {
		c.done[verb] = &atomic.Int64{}
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(n)))
			for range rounds {
				if err := c.round(r); err != nil {
					t.Errorf("connection %d: %v", n, err)
					return
				}
			}
		})
	}
	all.Wait()
	if n := in.count(t, `select deadlocks from pg_stat_database where datname = current_database()`); n != 0 {
		t.Errorf("the server broke %d deadlocks", n)
	}
	// Which of two operators comes first to a dead letter is chance.
	for _, verbs := range [][]string{{"claimed"}, {"recorded"}, {"finished"}, {Redrive, Discard}, {RetryNow, DiscardDeliveries}} {
		n := int64(0)
		for _, verb := range verbs {
			n += c.done[verb].Load()
		}
		if n == 0 {
			t.Errorf("none were ever %s", strings.Join(verbs, " or "))
		}
	}
}

type contention struct {
	*installation
	stream, group int
	done          map[string]*atomic.Int64
	batch         atomic.Int64
}

func (c *contention) round(r *rand.Rand) error {
	ctx := context.Background()
	if r.IntN(8) == 0 {
		var out []Outgoing
		for range 8 {
			out = append(out, Outgoing{Payload: []byte("1"), Version: 1, Key: fmt.Sprint("k", r.IntN(5))})
		}
		_, err := c.Append(ctx, &AppendRequest{Stream: c.stream, Kind: KindJSON, Producer: uuid.New(), Batch: c.batch.Add(1), Wait: 5 * time.Second, Messages: out})
		return err
	}
	if r.IntN(6) == 0 {
		return c.operate(ctx, r)
	}
	req := &delivery.WorkRequest{Group: c.group, Stream: c.stream, Instance: uuid.New(), RangeToken: uuid.New(), RestToken: uuid.New(), MaxMessages: 1 + r.IntN(8), MaxBytes: 1 << 20, PartMax: 4, TakeOver: true,
		DeliveryToken: uuid.New(), Retries: 1 + r.IntN(4), Followers: r.IntN(6), LookExpired: true, Margins: time.Duration(r.IntN(20)) * time.Millisecond}
	if r.IntN(4) == 0 {
		req.RangeToken, req.TakeOver = uuid.Nil, false
	}
	reply, err := c.Work(ctx, req)
	if err != nil {
		return err
	}
	answer := &delivery.WorkRequest{Group: c.group, Stream: c.stream, Instance: req.Instance}
	if reply.Range != nil {
		c.done["claimed"].Add(1)
		if err := c.finishSome(ctx, r, reply.Range); err != nil {
			return err
		}
		c.answerRange(r, reply.Range, answer)
	}
	for _, d := range reply.Deliveries {
		switch r.IntN(5) {
		case 0:
			answer.Release = append(answer.Release, delivery.DeliveryRef{ID: d.ID, Token: d.Token})
		case 1:
			if err := c.finish(ctx, Delivered{Group: c.group, Message: d.ID, Token: d.Token, Delivery: true}); err != nil {
				return err
			}
		case 2: // its lease ends
		default:
			answer.Deliveries = append(answer.Deliveries, delivery.DeliveryResult{Token: d.Token, Outcome: c.outcome(r, d.ID)})
		}
	}
	_, err = c.Work(ctx, answer)
	c.done["recorded"].Add(1)
	return err
}

// answerRange records a range, or a part of it, gives it back, or leaves it to its expiry.
func (c *contention) answerRange(r *rand.Rand, g *delivery.Range, answer *delivery.WorkRequest) {
	ref := delivery.RangeRef{Low: g.Low, Token: g.Token}
	var outcomes []delivery.Outcome
	for id := g.Low + 1; id <= g.High; id++ {
		if r.IntN(3) == 0 {
			outcomes = append(outcomes, c.outcome(r, id))
		}
	}
	switch r.IntN(5) {
	case 0:
		answer.Surrenders = append(answer.Surrenders, delivery.Surrender{RangeRef: ref, Prefix: g.Low})
	case 1:
		if g.High-g.Low > 1 {
			answer.Partials = append(answer.Partials, delivery.Partial{RangeRef: ref, Prefix: g.Low + 1, Outcomes: []delivery.Outcome{c.outcome(r, g.Low+1)}, Keys: []string{"k1"}})
		}
	case 2:
	default:
		answer.Results = append(answer.Results, delivery.RangeResult{RangeRef: ref, Outcomes: outcomes})
	}
}

func (c *contention) outcome(r *rand.Rand, id int64) delivery.Outcome {
	key := fmt.Sprint("k", r.IntN(5))
	switch r.IntN(4) {
	case 0:
		return delivery.Outcome{ID: id, Kind: delivery.Dead, Attempt: 1, Reason: delivery.TerminalErr, Key: key, Order: delivery.Ordered, Parks: true}
	case 1:
		return delivery.Outcome{ID: id, Kind: delivery.Failed, Attempt: 1, Key: key, Order: delivery.Ordered, DueIn: time.Duration(r.IntN(2)) * time.Hour}
	}
	return delivery.Outcome{ID: id, Kind: delivery.Succeeded, Attempt: 1, Key: key, Order: delivery.Ordered}
}

func (c *contention) finishSome(ctx context.Context, r *rand.Rand, g *delivery.Range) error {
	if r.IntN(3) != 0 {
		return nil
	}
	return c.finish(ctx, Delivered{Group: c.group, Message: g.Low + 1, Token: g.Token})
}

// finish is the end of a handler's own transaction, whose token may be gone by now.
func (c *contention) finish(ctx context.Context, d Delivered) error {
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "begin"); err != nil {
		return err
	}
	err = c.FinishTx(ctx, conn.Conn(), d)
	if err == nil {
		c.done["finished"].Add(1)
		return nil
	}
	if _, back := conn.Exec(ctx, "rollback"); back != nil {
		return back
	}
	if diag.CodeOf(err) == diag.LeaseLost {
		return nil
	}
	return err
}

func (c *contention) operate(ctx context.Context, r *rand.Rand) error {
	action := []string{Redrive, Discard, RetryNow, DiscardDeliveries}[r.IntN(4)]
	for o, more := (&Operation{Group: c.group, Action: action, Actor: "a", Object: "g"}), true; more; {
		done, again, err := c.Step(ctx, o, 3)
		if err != nil {
			return err
		}
		c.done[action].Add(done)
		more = again && r.IntN(4) != 0
	}
	return nil
}
