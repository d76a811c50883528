//go:build unix

package sqlstreams_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// freeze stops a process in its tracks; thaw lets it go on.
func (c *child) freeze(t testing.TB) { c.signal(t, syscall.SIGSTOP) }
func (c *child) thaw(t testing.TB)   { c.signal(t, syscall.SIGCONT) }

func (c *child) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := c.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

func (c *child) health(t testing.TB) sqlstreams.Health {
	t.Helper()
	c.say(t, "health")
	var h sqlstreams.Health
	if err := json.Unmarshal([]byte(c.expect(t, "health")), &h); err != nil {
		t.Fatal(err)
	}
	return h
}

func TestProducerFrozenInItsTransactionDelaysNobody(t *testing.T) {
	client, db, pool := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	var seen tally
	consume(t, group(t, stream, "g", nil), nil, func(_ context.Context, m *WelcomeEmail) error {
		seen.add(m.UserID)
		return nil
	})
	frozen := spawn(t, "produce", db.DSN)
	frozen.expect(t, "holding")
	frozen.freeze(t)
	names := othersGoOn(t, client, pool, stream, "other", 15)
	pgtest.Eventually(t, 10*time.Second, "the others' messages are handled", func() bool { return seen.distinct() == len(names) })
	frozen.thaw(t)
	frozen.say(t, "commit")
	frozen.expect(t, "committed")
	pgtest.Eventually(t, 10*time.Second, "the frozen one's message is handled", func() bool { return seen.count("frozen") == 1 })
	if seen.total() != len(names)+1 {
		t.Errorf("%d runs of %d messages", seen.total(), len(names)+1)
	}
}

// A client is frozen while its batch is on the wire, at a different moment in each round: whatever the server has of it by then, nobody waits for the rest.
func TestClientFrozenInTheMiddleOfADirectProduceDelaysNobody(t *testing.T) {
	client, db, pool := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	proxy := pgtest.NewProxy(t, db.DSN)
	distant := openOn(t, pgtest.OpenPool(t, proxy.DSN(t, db.DSN), noChange), &sqlstreams.ClientConfig{DisableManager: true})
	far := register[WelcomeEmail](t, distant, "s")
	const rounds, size = 6, 100
	caught, others := 0, 0
	for round := range rounds {
		names := numbered(fmt.Sprintf("far-%d", round), size)
		names[0] += strings.Repeat("x", 1<<19)
		ended := make(chan error, 1)
		go func() {
			batch := make([]sqlstreams.Outgoing[WelcomeEmail], len(names))
			for i, name := range names {
				batch[i].Payload = &WelcomeEmail{UserID: name + strings.Repeat("y", 10_000)}
			}
			_, err := far.Producer(nil).ProduceBatch(t.Context(), batch)
			ended <- err
		}()
		pause(time.Duration(round) * 5 * time.Millisecond)
		proxy.Freeze()
		others += len(othersGoOn(t, client, pool, stream, fmt.Sprintf("other-%d", round), 5))
		select {
		case err := <-ended:
			ended <- err
		default:
			caught++
		}
		proxy.Thaw()
		if err := <-ended; err != nil {
			t.Errorf("the frozen client's batch: %v", err)
		}
	}
	if caught == 0 {
		t.Error("the freeze never caught a batch on its way")
	}
	t.Logf("%d of %d batches were caught on their way", caught, rounds)
	pgtest.Eventually(t, 10*time.Second, "every batch stands in the log once", func() bool {
		var moved bool
		if err := pool.QueryRow(t.Context(), `call sqlstreams.drain(1, 10000, null, null, null, null, null, null, null)`).Scan(nil, &moved, nil, nil, nil, nil); err != nil {
			t.Fatal(err)
		}
		return db.QueryInt(t, `select count(distinct payload->>'user_id') from sqlstreams.log_1`) == int64(rounds*size+others)
	})
	if n := db.QueryInt(t, `select count(*) from sqlstreams.log_1`); n != int64(rounds*size+others) {
		t.Errorf("%d messages are stored, not %d", n, rounds*size+others)
	}
}

// An instance is frozen in its handlers past its lease. Another takes the range over and records it. When the first wakes and has results, they are refused.
func TestInstanceFrozenPastItsLeaseChangesNothing(t *testing.T) {
	client, db, _ := open(t, &sqlstreams.ClientConfig{DisableManager: true})
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", nil)
	produceAll(t, stream, "returns", "fails")
	frozen := spawn(t, "consume", db.DSN)
	frozen.expect(t, "running")
	frozen.expect(t, "running")
	frozen.freeze(t)
	db.Exec(t, `update sqlstreams.claim set expires_at = clock_timestamp() - interval '1 millisecond'`)

	var seen tally
	consume(t, instance, nil, func(ctx context.Context, m *WelcomeEmail) error {
		if meta, _ := sqlstreams.MetaFromContext(ctx); meta.Redelivered != (m.UserID != "quick") {
			t.Errorf("%s: Redelivered is %v", m.UserID, meta.Redelivered)
		}
		seen.add(m.UserID)
		return nil
	})
	pgtest.Eventually(t, 10*time.Second, "the range is taken over and recorded", func() bool {
		return seen.distinct() == 2 && db.QueryInt(t, `select count(*) from sqlstreams.claim`) == 0
	})
	tables := []string{"cursor", "claim", "done", "delivery", "dead_letter", "attempt"}
	before := content(t, db, tables...)

	frozen.thaw(t)
	frozen.say(t, "return returns")
	frozen.say(t, "fail fails")
	pgtest.Eventually(t, 10*time.Second, "the lost lease is counted", func() bool { return frozen.health(t).LeaseLost == 1 })
	if after := content(t, db, tables...); after != before {
		t.Errorf("a result whose lease was gone changed\n%sto\n%s", before, after)
	}
	// It goes on as an instance like any other.
	h := frozen.health(t)
	if h.Ranges != 0 || h.Running != 0 || h.LastError != "" {
		t.Errorf("after the loss: %+v", h)
	}
	produceAll(t, stream, "quick")
	pgtest.Eventually(t, 10*time.Second, "the next message is handled", func() bool {
		return db.QueryInt(t, `select max(claimed) from sqlstreams.cursor`) == 3 && db.QueryInt(t, `select count(*) from sqlstreams.claim`) == 0
	})
	if seen.total() > 3 {
		t.Errorf("%d runs in the second instance", seen.total())
	}
}
