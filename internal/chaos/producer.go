package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/ledger"
)

// How producers produce.
const (
	mixWild  = "wild"  // every way, with rollbacks, slow transactions and calls that are given up early
	mixPlain = "plain" // single, batch and transactions that are committed
	mixOne   = "one"   // one batch of the quota
	mixKeys  = "keys"  // as mixPlain, with keys and orders
)

// The ways of producing, as the ledger names them.
const (
	waySingle = "single"
	wayBatch  = "batch"
	wayInTx   = "intx" // client.InTx
	wayOwnTx  = "tx"   // a transaction of the caller's own
)

// callers is how many goroutines of a process produce.
const callers = 4

// errRollback is a producer's own change of mind.
var errRollback = errors.New("rolled back on purpose")

// producing is the state of one producing process.
type producing struct {
	*worker
	producer *sqlstreams.Producer[Payload]
	began    time.Time
	next     atomic.Int64          // number of the next business id
	reserved atomic.Int64          // of the quota: confirmed or on its way
	failed   atomic.Pointer[error] // the ledger cannot be written
}

func (w *worker) produce(ctx context.Context) error {
	p := &producing{worker: w, producer: w.stream.Producer(nil), began: time.Now()}
	if err := w.ready(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(w.cfg.Seed, uint64(i)))
			for p.wait(ctx) {
				if err := p.call(random); err != nil {
					p.failed.Store(&err)
					cancel()
					return
				}
			}
		})
	}
	wg.Wait()
	if err := p.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// wait keeps the pace; false: it is over.
func (p *producing) wait(ctx context.Context) bool {
	for {
		due := p.cfg.Rate * time.Since(p.began).Seconds()
		full := p.cfg.Quota > 0 && p.reserved.Load() >= int64(p.cfg.Quota)
		if !full && float64(p.next.Load()) < due {
			return ctx.Err() == nil
		}
		if !pause(ctx, 2*time.Millisecond) {
			return false
		}
	}
}

// reserve takes as much of n as the quota has left.
func (p *producing) reserve(n int) int {
	if p.cfg.Quota == 0 {
		return n
	}
	for {
		taken := p.reserved.Load()
		n := min(int64(n), int64(p.cfg.Quota)-taken)
		if n <= 0 {
			return 0
		}
		if p.reserved.CompareAndSwap(taken, taken+n) {
			return int(n)
		}
	}
}

// call produces once. It returns an error only if the ledger fails: without a ledger nothing may be produced.
func (p *producing) call(random *rand.Rand) error {
	way, n := waySingle, 1
	switch r := random.IntN(10); {
	case p.cfg.Mix == mixOne:
		way, n = wayBatch, p.cfg.Quota
	case r < 4:
	case r < 7:
		way, n = wayBatch, 1+random.IntN(50)
	case r < 9:
		way, n = wayInTx, 1+random.IntN(3)
	default:
		way, n = wayOwnTx, 1+random.IntN(3)
	}
	if n = p.reserve(n); n == 0 {
		return nil // another caller was quicker
	}
	batch := make([]sqlstreams.Outgoing[Payload], n)
	messages := make([]ledger.Message, n)
	first := p.next.Add(int64(n)) - int64(n)
	for i := range batch {
		id := fmt.Sprintf("%s.%d", p.cfg.Name, first+int64(i))
		size := p.cfg.Size
		if p.cfg.Mix == mixWild {
			size = random.IntN(2*size + 1)
		}
		batch[i].Payload = newPayload(id, size)
		messages[i].Business = id
		switch {
		case p.cfg.Mix == mixKeys:
			batch[i].Options = p.keyed(random, first+int64(i))
		case random.IntN(2) == 0:
			batch[i].Options = &sqlstreams.ProduceOptions{Key: fmt.Sprintf("key %d", random.IntN(100))}
		}
		if o := batch[i].Options; o != nil && o.Key != "" {
			o.Headers = map[string]string{"id": id}
			messages[i].Key, messages[i].Order = o.Key, string(o.KeyOrder)
		}
	}
	// Long enough for a restart of the server; a call that is given up early learns that its outcome is unknown.
	patience := 20 * time.Second
	wild := p.cfg.Mix == mixWild
	if wild && random.IntN(40) == 0 {
		patience = time.Duration(random.IntN(int(10 * time.Millisecond)))
	}
	var hold time.Duration
	if wild && random.IntN(10) == 0 {
		hold = time.Duration(random.IntN(int(2 * time.Second)))
	}
	rollback := wild && random.IntN(5) == 0
	// A stop does not interrupt a call: its outcome is wanted.
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()

	call, err := p.book.Call(p.cfg.Stream, way, messages)
	if err != nil {
		return err
	}
	var outcome ledger.Outcome
	var ids []int64
	switch way {
	case waySingle:
		var done sqlstreams.Produced
		done, err = p.producer.Produce(ctx, batch[0].Payload, batch[0].Options)
		outcome, ids = outcomeOf(err), []int64{done.ID}
	case wayBatch:
		var done []sqlstreams.Produced
		done, err = p.producer.ProduceBatch(ctx, batch)
		outcome = outcomeOf(err)
		for _, d := range done {
			ids = append(ids, d.ID)
		}
	case wayInTx:
		outcome, err = p.inTx(ctx, batch, hold, rollback)
	default:
		outcome, err = p.ownTx(ctx, batch, hold, rollback)
	}
	detail := ""
	if err != nil {
		detail = err.Error()
	}
	if outcome != ledger.Confirmed {
		ids = nil
		p.reserved.Add(-int64(n))
	}
	return p.book.Outcome(call, outcome, ids, detail)
}

// fill produces in a transaction and keeps it open for a while.
func (p *producing) fill(ctx context.Context, tx pgx.Tx, batch []sqlstreams.Outgoing[Payload], hold time.Duration, rollback bool) error {
	for i := range batch {
		if _, err := p.producer.ProduceTx(ctx, tx, batch[i].Payload, batch[i].Options); err != nil {
			return err
		}
	}
	if hold > 0 && !pause(ctx, hold) {
		return ctx.Err()
	}
	if rollback {
		return errRollback
	}
	return nil
}

func (p *producing) inTx(ctx context.Context, batch []sqlstreams.Outgoing[Payload], hold time.Duration, rollback bool) (ledger.Outcome, error) {
	var filled error
	reached := false
	err := p.client.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		filled = p.fill(ctx, tx, batch, hold, rollback)
		reached = filled == nil
		return filled
	})
	if err != nil && !reached {
		return ledger.RolledBack, err // it was never asked to commit
	}
	return outcomeOf(err), err
}

func (p *producing) ownTx(ctx context.Context, batch []sqlstreams.Outgoing[Payload], hold time.Duration, rollback bool) (ledger.Outcome, error) {
	tx, err := p.pool.Begin(ctx)
	if err != nil {
		return ledger.RolledBack, err
	}
	if err := p.fill(ctx, tx, batch, hold, rollback); err != nil {
		cleanup, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return ledger.RolledBack, errors.Join(err, tx.Rollback(cleanup))
	}
	switch err := tx.Commit(ctx); {
	case err == nil:
		return ledger.Confirmed, nil
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return ledger.RolledBack, err
	default:
		return ledger.Unknown, err
	}
}
