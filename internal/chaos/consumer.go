package chaos

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/ledger"
)

// How handlers behave.
const (
	moodWild = "wild" // some fail, some are slow, some hang, some end for good
	moodBusy = "busy" // all take workerConfig.Busy, whatever their context says, and succeed
	moodKeys = "keys" // one attempt in five fails
)

// The leases of a run; see the package comment.
const (
	handlerTimeout = time.Second
	queueMargin    = time.Second
	timeoutGrace   = 100 * time.Millisecond
	recordMargin   = 500 * time.Millisecond
	leaseTime      = handlerTimeout + queueMargin + timeoutGrace + recordMargin
)

// maxAttempts is how many failures make a dead letter.
const maxAttempts = 4

func (w *worker) consume(ctx context.Context) error {
	consumers := make([]*sqlstreams.Consumer[Payload], len(w.cfg.Groups))
	for i, m := range w.cfg.Groups {
		if !w.insist(ctx, "register", func() (err error) {
			consumers[i], err = w.stream.RegisterConsumer(ctx, m.Group, &sqlstreams.ConsumerConfig{KeyOrder: m.Order, Message: &sqlstreams.MessageOptions{
				Timeout: handlerTimeout, MaxAttempts: maxAttempts, BaseDelay: 100 * time.Millisecond, MaxDelay: time.Second}})
			return err
		}) {
			return nil
		}
	}
	if err := w.ready(); err != nil {
		return err
	}
	opts := &sqlstreams.ConsumeOptions{Handlers: w.cfg.Handlers, QueueMargin: queueMargin, TimeoutGrace: timeoutGrace, RecordMargin: recordMargin}
	var sessions errgroup.Group
	for i, m := range w.cfg.Groups {
		sessions.Go(func() error {
			if m.Effects {
				return consumers[i].ConsumeTx(ctx, w.handleTx, opts)
			}
			return consumers[i].Consume(ctx, w.handle, opts)
		})
	}
	return sessions.Wait()
}

// handleTx leaves an effect, which goes with the transaction if the message does not succeed.
func (w *worker) handleTx(ctx context.Context, tx pgx.Tx, p *Payload) error {
	meta, _ := sqlstreams.MetaFromContext(ctx)
	if _, err := tx.Exec(ctx, leaveEffect, meta.Group, meta.ID, meta.Key); err != nil {
		return sqlstreams.Delay(100 * time.Millisecond) // a connection that is gone is not the message's fault
	}
	return w.handle(ctx, p)
}

// handle runs one message: its start is written before anything else, and its end before it returns.
func (w *worker) handle(ctx context.Context, p *Payload) error {
	meta, ok := sqlstreams.MetaFromContext(ctx)
	if !ok {
		return errors.New("there is no meta in the handler's context")
	}
	run, err := w.book.Start(&ledger.Run{Stream: meta.Stream, Group: meta.Group, ID: meta.ID, Message: ledger.Message{Business: p.ID, Key: meta.Key},
		Attempt: meta.Attempt, Redelivered: meta.Redelivered, Lease: meta.LeaseDeadline})
	if err != nil {
		return err
	}
	if !p.sound() || meta.Key != "" && meta.Headers["id"] != p.ID {
		return errors.Join(w.book.End(run, ledger.Altered), errors.New("the message is not what was produced"))
	}
	result, answer := w.behave(ctx, &meta)
	if err := w.book.End(run, result); err != nil {
		return err
	}
	if answer == errPanic { //nolint:errorlint // the very value
		var none *Payload
		_ = none.ID // as a handler's bug does it
	}
	return answer
}

// errPanic stands for a handler that is to panic.
var errPanic = errors.New("panic")

// behave decides by the message and the group, so that a message behaves alike wherever it runs.
func (w *worker) behave(ctx context.Context, meta *sqlstreams.Meta) (ledger.Result, error) {
	first := meta.Attempt == 1
	switch w.cfg.Mood {
	case moodBusy:
		pause(context.WithoutCancel(ctx), w.cfg.Busy)
		return ledger.OK, nil
	case moodKeys:
		return w.failing(ctx, meta)
	}
	r := dice(w.cfg.Seed, meta.Group, meta.ID)
	kind := r % 1000
	among := func(from, to uint64) bool { return from <= kind && kind < to }
	switch {
	case among(0, 2):
		return ledger.Terminal, sqlstreams.Terminal(errors.New("for good"))
	case among(2, 4):
		return ledger.Failed, errors.New("always")
	case among(4, 24) && first:
		return ledger.Failed, errors.New("once")
	case among(24, 29) && meta.Attempt <= 2:
		return ledger.Failed, errors.New("twice")
	case among(29, 34) && first && !meta.Redelivered:
		return ledger.Delayed, sqlstreams.Delay(time.Duration(r/1000%300) * time.Millisecond)
	case among(34, 36) && first:
		return ledger.Failed, errPanic
	case among(36, 37) && first && !meta.Redelivered:
		// It does not look at its context, so it is written off before it returns.
		pause(context.WithoutCancel(ctx), handlerTimeout+timeoutGrace+300*time.Millisecond)
		return ledger.Abandoned, nil
	case among(37, 160):
		if !pause(ctx, 20*time.Millisecond+time.Duration(r/1000%300)*time.Millisecond) {
			return ledger.Failed, ctx.Err()
		}
	}
	return ledger.OK, nil
}

// dice is a number that follows from seed, group and message.
func dice(seed uint64, group string, id int64) uint64 {
	h := fnv.New64a()
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], seed)
	binary.LittleEndian.PutUint64(b[8:], uint64(id))
	_, _ = h.Write(b[:]) // a hash takes everything
	_, _ = h.Write([]byte(group))
	// The low bits of FNV are weak for inputs this short.
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	return x ^ x>>33
}

// watcher writes down what the product tells.
type watcher struct{ w *worker }

// Observe implements the product's hook.
func (h watcher) Observe(e sqlstreams.Event) {
	kind := e.Kind
	switch e.Kind {
	case consume.KindAttempt:
		if len(h.w.cfg.withEffects()) == 0 || e.Outcome != delivery.Delayed {
			return
		}
		kind = ledger.ToldAgain
	case consume.KindStale, consume.KindLeaseLost, consume.KindAbandoned, consume.KindBrokenUp, consume.KindPositionLost:
	default:
		return
	}
	if err := h.w.book.Event(&ledger.Event{Kind: kind, Stream: e.Stream, Group: e.Group, Low: e.Low, High: e.High, Message: e.Message, Detail: string(e.Code)}); err != nil {
		h.w.log.Error("ledger", "error", err)
	}
}
