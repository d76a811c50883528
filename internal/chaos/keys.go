package chaos

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/ledger"
)

// Keys mode has two groups. Every process consumes in both, so each kill hits ranges, deliveries and lines of both.
func keysGroups() []membership {
	return []membership{
		{Group: groupName(0), Order: sqlstreams.Ordered, Effects: true}, // whatever messages request
		{Group: groupName(1)}, // as messages request
	}
}

// The pace of keys mode.
const (
	keysKillEvery = time.Second
	keysStopEvery = 5 // kills
)

// keysPlan is the schedule of keys mode: every second a process is killed, and now and then one is frozen for longer than a lease.
func keysPlan(seed uint64, duration time.Duration) []step {
	random := rand.New(rand.NewPCG(seed, 0))
	var steps []step
	for i := range int(duration / keysKillEvery) {
		at := time.Duration(i+1) * keysKillEvery
		steps = append(steps, step{at: at, kind: killConsumer, pick: random.Uint64()})
		if i%keysStopEvery == 1 {
			steps = append(steps, step{at: at + keysKillEvery/2, kind: stopConsumer, pick: random.Uint64(), hold: leaseTime + 400*time.Millisecond + time.Duration(random.Int64N(int64(2*time.Second)))})
		}
	}
	return steps
}

// keyed gives the n-th message of a producer its key and its order: one half takes the keys in turn, so that each is used, the other half prefers low ones; a twentieth has none.
func (p *producing) keyed(random *rand.Rand, n int64) *sqlstreams.ProduceOptions {
	if random.IntN(20) == 0 {
		return &sqlstreams.ProduceOptions{}
	}
	k := n / 2 % int64(p.cfg.Keys)
	if n%2 == 0 {
		// The lowest of 10,000 keys gets 4.6 % of this half.
		k = int64(math.Pow(random.Float64(), 3) * float64(p.cfg.Keys))
	}
	o := &sqlstreams.ProduceOptions{Key: fmt.Sprintf("key %d", k)}
	switch r := random.IntN(10); {
	case r < 6:
		o.KeyOrder = sqlstreams.Ordered
	case r < 8:
		o.KeyOrder = sqlstreams.Exclusive
	case r < 9:
		o.KeyOrder = sqlstreams.Parallel
	}
	return o
}

// failing is how a handler of keys mode behaves: one attempt in five fails. The attempt counts, not the run, so a run that comes again ends alike.
func (w *worker) failing(ctx context.Context, meta *sqlstreams.Meta) (ledger.Result, error) {
	r := dice(w.cfg.Seed+uint64(meta.Attempt)<<32, meta.Group, meta.ID)
	kind := r % 1000
	if kind%5 != 0 {
		// Most take a few milliseconds, some take long enough to be killed in.
		busy := time.Duration(r/1000%4) * time.Millisecond
		if kind < 20 {
			busy = time.Duration(r/1000%200) * time.Millisecond
		}
		if !pause(ctx, busy) {
			return ledger.Failed, ctx.Err()
		}
		return ledger.OK, nil
	}
	switch {
	case kind == 0:
		return ledger.Terminal, sqlstreams.Terminal(errors.New("for good"))
	case kind == 5 && !meta.Redelivered:
		return ledger.Delayed, sqlstreams.Delay(time.Duration(r/1000%300) * time.Millisecond)
	case kind == 10:
		return ledger.Failed, errPanic
	case kind == 15 && r/1000%4 == 0 && !meta.Redelivered:
		// It does not look at its context, so it is written off before it returns.
		pause(context.WithoutCancel(ctx), handlerTimeout+timeoutGrace+300*time.Millisecond)
		return ledger.Abandoned, nil
	}
	return ledger.Failed, errors.New("one in five")
}
