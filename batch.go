package sqlstreams

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// BatchOptions say how ConsumeBatch makes batches. The zero value of each field means its default.
type BatchOptions struct {
	// MaxMessages is the most messages of one batch. Default 100, at most 10,000.
	MaxMessages int
	// MaxWait is how long messages are left to gather in the stream, unclaimed, before a look at it: larger batches for so much latency. What is there in plenty waits for nothing. Default 0; at most 1 min.
	MaxWait time.Duration
	// Consume are the options of the session. Its Handlers is how many batches run at once, 1 unless given; Handlers times MaxMessages is at most 100,000.
	Consume *ConsumeOptions
}

// Batch is what a handler of ConsumeBatch works on: messages of one group, in ascending order of their ids, each claimed, timed, recorded and retried for itself.
type Batch[T any] struct {
	entries []*entry[T]
	failed  []error
}

// Len is how many messages the batch has, at least one.
func (b *Batch[T]) Len() int { return len(b.entries) }

// Payload returns the payload of message i.
func (b *Batch[T]) Payload(i int) *T { return b.entries[i].payload }

// Meta returns what is known of message i beside its payload.
func (b *Batch[T]) Meta(i int) Meta {
	meta, _ := MetaFromContext(b.entries[i].ctx)
	return meta
}

// All ranges over the batch's payloads by index.
func (b *Batch[T]) All() iter.Seq2[int, *T] {
	return func(yield func(int, *T) bool) {
		for i, e := range b.entries {
			if !yield(i, e.payload) {
				return
			}
		}
	}
}

// Fail makes err the result of message i, as if a handler of its own had returned it: it is retried, delayed (Delay) or ended (Terminal) by itself. Nil takes it back. Not for use after the handler has returned.
func (b *Batch[T]) Fail(i int, err error) { b.failed[i] = err }

// entry is one message that waits for its batch, or for its result.
type entry[T any] struct {
	ctx     context.Context
	message *delivery.Message
	payload *T
	result  error
}

// ConsumeBatch is Consume for handlers that work on several messages at once. f gets what is at hand, up to MaxMessages; messages that it marks with Fail have failed, and if it returns an error so have all others of the
// batch. A batch has one context, which ends at the shortest of its messages' timeouts and carries the values of ctx, but no Meta: ask the Batch. A handler that outlives it leaves each of its messages as abandoned.
func (c *Consumer[T]) ConsumeBatch(ctx context.Context, f func(ctx context.Context, b *Batch[T]) error, opts *BatchOptions) error {
	if f == nil {
		return invalid(diag.InvalidOption, "consume", c.core.object, "the handler is nil")
	}
	var o BatchOptions
	if opts != nil {
		o = *opts
	}
	if err := checkBounds("consume", c.core.object,
		bounded{name: "MaxMessages", value: int64(o.MaxMessages), low: 1, high: 10_000},
		bounded{name: "MaxWait", value: int64(o.MaxWait), low: 1, high: int64(time.Minute)}); err != nil {
		return err
	}
	var session ConsumeOptions
	if o.Consume != nil {
		session = *o.Consume
	}
	most, batches := or(o.MaxMessages, 100), or(session.Handlers, 1)
	if batches < 0 || batches > 100_000/most {
		return invalid(diag.InvalidOption, "consume", c.core.object, fmt.Sprintf("%d batches of %d messages at once are beyond 100,000, or less than none", batches, most))
	}
	session.Handlers = most * batches
	g := &gatherer[T]{most: most, run: f, values: ctx}
	decode := decoder[T](c.core.stream)
	return c.core.consume(ctx, &session, o.MaxWait, func(ctx context.Context, m *delivery.Message, _ consume.Attempt) error {
		payload, err := decode(m)
		if err != nil {
			return err
		}
		return g.join(&entry[T]{ctx: ctx, message: m, payload: payload})
	})
}

// gatherer makes batches of messages whose handlers start at the same time. The engine starts handlers as fast as it can, one a goroutine; the first to come gathers those that follow within a moment and runs the
// batch on its own goroutine, the others wait for their results.
type gatherer[T any] struct {
	most   int
	run    func(context.Context, *Batch[T]) error
	values context.Context // of ConsumeBatch

	mu   sync.Mutex
	open *gathering[T]
}

// gathering is a batch that is not complete yet.
type gathering[T any] struct {
	entries []*entry[T]
	came    chan struct{} // holds at most one: somebody joined
	done    chan struct{}
}

const (
	// gatherPause ends a batch when nobody has joined for so long; gatherMost when it has taken so long all together. The engine starts handlers within microseconds of each other.
	gatherPause = 500 * time.Microsecond
	gatherMost  = 10 * time.Millisecond
)

// join returns the result of one message.
func (g *gatherer[T]) join(e *entry[T]) error {
	g.mu.Lock()
	b := g.open
	leads := b == nil
	if leads {
		b = &gathering[T]{came: make(chan struct{}, 1), done: make(chan struct{})}
		g.open = b
	}
	b.entries = append(b.entries, e)
	if len(b.entries) >= g.most {
		g.open = nil // the next one begins another
	}
	g.mu.Unlock()
	if !leads {
		select {
		case b.came <- struct{}{}:
		default:
		}
		<-b.done
		return e.result
	}
	g.gather(b)
	g.lead(b)
	return e.result
}

// gather waits until the batch is complete.
func (g *gatherer[T]) gather(b *gathering[T]) {
	ends := time.NewTimer(gatherMost)
	defer ends.Stop()
	pause := time.NewTimer(gatherPause)
	defer pause.Stop()
	for {
		g.mu.Lock()
		full := g.open != b
		g.mu.Unlock()
		if full {
			return
		}
		select {
		case <-b.came:
			pause.Reset(gatherPause)
			continue
		case <-pause.C:
		case <-ends.C:
		}
		g.mu.Lock()
		if g.open == b {
			g.open = nil
		}
		g.mu.Unlock()
		return
	}
}

// lead runs the handler and gives each message its result, also when the handler panics or ends its goroutine: then each message has failed.
func (g *gatherer[T]) lead(b *gathering[T]) {
	sortByID(b.entries)
	batch := &Batch[T]{entries: b.entries, failed: make([]error, len(b.entries))}
	var err error = errDidNotReturn // unless it returns
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
		for i, e := range b.entries {
			if e.result = batch.failed[i]; e.result == nil {
				e.result = err
			}
		}
		close(b.done)
	}()
	ctx, cancel := batchContext(g.values, b.entries)
	defer cancel()
	err = g.run(ctx, batch)
}

const errDidNotReturn = batchError("handler called runtime.Goexit")

type batchError string

func (e batchError) Error() string { return string(e) }

func sortByID[T any](entries []*entry[T]) {
	slices.SortFunc(entries, func(a, b *entry[T]) int { return cmp.Compare(a.message.ID, b.message.ID) })
}

// batchContext ends with the first of the messages' contexts, for its reason, and carries the values of ConsumeBatch's.
func batchContext[T any](values context.Context, entries []*entry[T]) (context.Context, context.CancelFunc) {
	first := entries[0].ctx
	for _, e := range entries {
		at, _ := e.ctx.Deadline()
		if least, _ := first.Deadline(); at.Before(least) {
			first = e.ctx
		}
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(values))
	unlink := context.AfterFunc(first, func() { cancel(context.Cause(first)) })
	ends, _ := first.Deadline()
	return &endingContext{ctx, ends}, func() {
		unlink()
		cancel(nil)
	}
}

// endingContext tells when it will end.
type endingContext struct {
	context.Context
	ends time.Time
}

func (c *endingContext) Deadline() (time.Time, bool) { return c.ends, true }
