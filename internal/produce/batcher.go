// Package produce joins concurrent calls into batches and sees each batch through: repeated until its outcome is known, never stored twice.
//
// Per stream at most one batch is on its way; what arrives meanwhile forms the next one. Nobody waits for a batch to fill. The goroutine that sends belongs to
// the Batcher, not to any caller, so a caller whose context ends leaves the others' messages on their way.
package produce

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/store"
)

// Bounds of what travels together, and of how long it is tried.
const (
	maxMessages = 1000
	maxBytes    = 4 << 20
	// A unit beyond these goes to the inbox by itself: it would hold the stream's lock for too long.
	directMessages = 10000
	directBytes    = 16 << 20
	// From this size on a batch waits for the stream's lock; a smaller one that finds it taken is stored sooner through the inbox.
	waitMessages = 64
	lockWait     = 100 * time.Millisecond
	// How long a batch whose outcome is unknown is repeated, and one that cannot be sent at all.
	settleFor = 30 * time.Second
	tryFor    = 2 * time.Second
	// What expects a version cannot take the inbox: it waits for the stream's lock this long, and is then repeated.
	expectWait = time.Second
	// After so many batches that were confirmed at once their rows are removed.
	forgetEvery = 256
)

// Appender stores batches. internal/store implements it.
type Appender interface {
	Append(ctx context.Context, req *store.AppendRequest) (store.AppendReply, error)
	ProduceKeyed(ctx context.Context, req *store.KeyedRequest) ([]store.KeyedResult, error)
	ForgetBatches(ctx context.Context, producer uuid.UUID, from, to int64) error
}

// Stored says where a unit went.
type Stored struct {
	First int64 // id of its first message; 0: it waits in the inbox
}

// Batcher sends the batches of one client.
type Batcher struct {
	appender Appender
	stored   func(stream int, direct bool) // called after each commit

	ctx    context.Context // ends when Close has waited long enough
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	queues map[lane]*queue
}

// lane is what a queue holds: messages that expect a version of their key travel apart, because they must wait for the stream's lock where others take the inbox.
type lane struct {
	stream    int
	expecting bool
}

// queue holds what waits for one stream.
type queue struct {
	producer uuid.UUID
	batch    int64
	// Batches [forgetFrom, batch] are confirmed and not yet forgotten; repeated: one of them was sent twice, and its first sending may arrive yet.
	forgetFrom int64
	repeated   bool
	waiting    []*unit
	sending    bool
	expecting  bool
}

// unit is what one call wants stored, all or nothing.
type unit struct {
	kind     string
	messages []store.Outgoing
	bytes    int
	taken    bool // under Batcher.mu: it is on its way
	done     chan struct{}
	stored   Stored
	err      error
}

// large units go to the inbox by themselves.
func (u *unit) large() bool { return len(u.messages) > directMessages || u.bytes > directBytes }

// New returns a Batcher. The function stored is told of each commit: direct, or into the inbox.
func New(appender Appender, stored func(stream int, direct bool)) *Batcher {
	ctx, cancel := context.WithCancel(context.Background())
	return &Batcher{appender: appender, stored: stored, ctx: ctx, cancel: cancel, queues: map[lane]*queue{}}
}

// Produce stores messages, all or nothing, and returns once they are committed. If ctx ends first, the error says whether they may have been stored.
func (b *Batcher) Produce(ctx context.Context, stream int, kind, object string, messages []store.Outgoing) (Stored, error) {
	if err := ctx.Err(); err != nil {
		return Stored{}, &diag.Error{Code: diag.StatementTimeout, Op: "produce to", Object: object, Detail: "the context ended before anything was sent", Retryable: true, Err: err}
	}
	u := &unit{kind: kind, messages: messages, done: make(chan struct{})}
	for i := range messages {
		u.bytes += len(messages[i].Payload) + len(messages[i].Headers)
	}
	way := lane{stream: stream, expecting: store.Expecting(messages)}
	if way.expecting && u.large() {
		return Stored{}, &diag.Error{Code: diag.TooLarge, Op: "produce to", Object: object, Detail: "a batch in which a version is expected has at most 10,000 messages and 16 MiB"}
	}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return Stored{}, &diag.Error{Code: diag.Closed, Op: "produce to", Object: object}
	}
	q := b.queues[way]
	if q == nil {
		q = &queue{producer: uuid.New(), forgetFrom: 1, expecting: way.expecting}
		b.queues[way] = q
	}
	q.waiting = append(q.waiting, u)
	if !q.sending {
		q.sending = true
		b.wg.Go(func() { b.send(stream, q) })
	}
	b.mu.Unlock()

	select {
	case <-u.done:
		return u.stored, named(u.err, object)
	case <-ctx.Done():
	}
	b.mu.Lock()
	taken := u.taken
	if !taken {
		for i, w := range q.waiting {
			if w == u {
				q.waiting = append(q.waiting[:i], q.waiting[i+1:]...)
				break
			}
		}
	}
	b.mu.Unlock()
	if !taken {
		return Stored{}, &diag.Error{Code: diag.StatementTimeout, Op: "produce to", Object: object, Detail: "the context ended before anything was sent", Retryable: true, Err: context.Cause(ctx)}
	}
	// It may have been confirmed in the meantime: what is known is told.
	select {
	case <-u.done:
		return u.stored, named(u.err, object)
	default:
		return Stored{}, &diag.Error{Code: diag.OutcomeUnknown, Op: "produce to", Object: object, Detail: "the context ended while the messages were on their way", OutcomeUnknown: true, Err: context.Cause(ctx)}
	}
}

// named puts the stream's name, which the store does not know, into an error.
func named(err error, object string) error {
	e, ok := err.(*diag.Error)
	if !ok {
		return err
	}
	c := *e
	c.Object = object
	return &c
}

// send runs until nothing waits for the stream.
func (b *Batcher) send(stream int, q *queue) {
	for {
		units := b.take(q)
		if len(units) == 0 {
			return
		}
		b.deliver(stream, q, units)
		b.forget(q)
		b.gather(q)
	}
}

// gather lets the callers that were just told run first: those that come again at once join the next batch, which would else be made of the others only and be half
// as large. It is no wait: it ends as soon as a turn of the scheduler brings nobody new, which is at once where nobody is about to come.
func (b *Batcher) gather(q *queue) {
	for before := -1; ; {
		b.mu.Lock()
		n := len(q.waiting)
		b.mu.Unlock()
		if n == 0 && before == 0 || n == before || n >= maxMessages {
			return
		}
		before = n
		runtime.Gosched()
	}
}

// take removes the next batch from the queue; none: the sender stops.
func (b *Batcher) take(q *queue) []*unit {
	b.mu.Lock()
	defer b.mu.Unlock()
	messages, bytes, n := 0, 0, 0
	for _, u := range q.waiting {
		if n > 0 && (u.kind != q.waiting[0].kind || messages+len(u.messages) > maxMessages || bytes+u.bytes > maxBytes) {
			break
		}
		messages, bytes, n = messages+len(u.messages), bytes+u.bytes, n+1
	}
	units := q.waiting[:n:n]
	q.waiting = q.waiting[n:]
	if q.expecting {
		units, q.waiting = apart(units, q.waiting)
	}
	for _, u := range units {
		u.taken = true
	}
	if len(q.waiting) == 0 {
		q.waiting = nil // lets go of what was sent
	}
	if n == 0 {
		q.sending = false
	}
	return units
}

// apart leaves of units that expect versions only those that have no key in common, and puts the others back to the front of what waits: what the second of a key expects is decided when the first has its ids.
func apart(units, waiting []*unit) (now, later []*unit) {
	keys := map[string]bool{}
	for _, u := range units {
		if u.addKeys(keys) {
			now = append(now, u)
		} else {
			later = append(later, u)
		}
	}
	return now, append(later, waiting...)
}

// addKeys notes the keys of a unit; false: one of them is noted already.
func (u *unit) addKeys(keys map[string]bool) bool {
	for i := range u.messages {
		if keys[u.messages[i].Key] {
			return false
		}
	}
	for i := range u.messages {
		if key := u.messages[i].Key; key != "" {
			keys[key] = true
		}
	}
	return true
}

// deliver sees units through and tells their callers.
func (b *Batcher) deliver(stream int, q *queue, units []*unit) {
	messages := units[0].messages
	bytes := units[0].bytes
	if len(units) > 1 {
		total := 0
		for _, u := range units {
			total += len(u.messages)
		}
		messages = make([]store.Outgoing, 0, total)
		bytes = 0
		for _, u := range units {
			messages = append(messages, u.messages...)
			bytes += u.bytes
		}
	}
	first, err := b.settle(stream, q, units[0].kind, messages, bytes)
	if conflicts, ok := errors.AsType[store.Conflicts](err); ok {
		// Nothing was stored. Those that found another version are told so, and the others go again.
		if rest := refuse(units, err, conflicts); len(rest) > 0 {
			b.deliver(stream, q, rest)
		}
		return
	}
	if err != nil && len(units) > 1 && !diag.Retryable(err) && !diag.Unknown(err) && diag.CodeOf(err) == diag.DatabaseError {
		// The server refused what is in it: each unit is tried for itself, so that only the bad one fails.
		for _, u := range units {
			b.deliver(stream, q, []*unit{u})
		}
		return
	}
	if err == nil && b.stored != nil {
		b.stored(stream, first > 0)
	}
	for _, u := range units {
		u.err = err
		if err == nil && first > 0 {
			u.stored.First = first
			first += int64(len(u.messages))
		}
		close(u.done)
	}
}

// refuse tells the units that have a conflict, and returns the others.
func refuse(units []*unit, err error, conflicts store.Conflicts) (rest []*unit) {
	from := 0
	for _, u := range units {
		at := slices.IndexFunc(conflicts, func(c *store.VersionConflict) bool { return c.Message >= from && c.Message < from+len(u.messages) })
		if at < 0 {
			rest = append(rest, u)
		} else {
			own := *conflicts[at]
			own.Message -= from
			u.err = &diag.Error{Code: diag.VersionConflict, Op: "produce to", Err: &own}
			close(u.done)
		}
		from += len(u.messages)
	}
	if len(rest) < len(units) {
		return rest
	}
	for _, u := range units { // a conflict of none of them; so that this ends
		u.err = err
		close(u.done)
	}
	return nil
}

// settle sends one batch until its outcome is known or the time for that is over.
func (b *Batcher) settle(stream int, q *queue, kind string, messages []store.Outgoing, bytes int) (first int64, err error) {
	q.batch++
	req := &store.AppendRequest{Stream: stream, Kind: kind, Producer: q.producer, Batch: q.batch, Messages: messages}
	switch {
	case q.expecting:
		req.Wait = expectWait
	case len(messages) > directMessages || bytes > directBytes:
		req.Wait = -time.Millisecond
	case len(messages) >= waitMessages:
		req.Wait = lockWait
	}
	err = b.until(b.ctx, func(ctx context.Context) (err error) {
		var reply store.AppendReply
		reply, err = b.appender.Append(ctx, req)
		first = reply.First
		q.repeated = q.repeated || diag.Unknown(err)
		return err
	})
	if err != nil {
		first = 0
	}
	return first, err
}

// until sends until the outcome is known or the time for that is over. What is sent must store nothing twice.
func (b *Batcher) until(ctx context.Context, send func(context.Context) error) error {
	began := time.Now()
	unknown := false
	for attempt := 0; ; attempt++ {
		err := send(ctx)
		if err == nil {
			return nil
		}
		if diag.CodeOf(err) == diag.VersionConflict {
			// Definite, also after a sending that may have taken effect: it has not, or this one would have found it; and it will not, because the key only moves further from what was expected.
			return err
		}
		unknown = unknown || diag.Unknown(err)
		bound := tryFor
		if unknown {
			bound = settleFor
		}
		// Once a sending may have taken effect, only its repetition can tell; a definite refusal of a repetition (a role's right revoked meanwhile) does not.
		if ctx.Err() != nil || time.Since(began) > bound || !unknown && !diag.Retryable(err) {
			return verdict(err, unknown)
		}
		pause := min(20*time.Millisecond<<min(attempt, 6), time.Second)
		timer := time.NewTimer(pause/2 + rand.N(pause/2+1))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return verdict(err, unknown)
		}
	}
}

// verdict marks an error as unknown if any earlier sending of the same batch may have taken effect.
func verdict(err error, unknown bool) error {
	e, ok := err.(*diag.Error)
	if !ok || !unknown || e.OutcomeUnknown {
		return err
	}
	c := *e
	c.OutcomeUnknown = true
	return &c
}

// forget removes the rows of batches that were confirmed, now and then and in one statement. Rows of a run in which a batch was repeated stay for upkeep to remove
// after an hour: the bytes of its first sending may still be held up somewhere, and only the row would stop them.
func (b *Batcher) forget(q *queue) {
	if q.batch-q.forgetFrom+1 < forgetEvery {
		return
	}
	from, to := q.forgetFrom, q.batch+1
	repeated := q.repeated
	q.forgetFrom, q.repeated = to, false
	if repeated {
		return
	}
	b.wg.Go(func() {
		// A failure costs an hour of a few rows; upkeep removes them.
		_ = b.appender.ForgetBatches(b.ctx, q.producer, from, to)
	})
}

// Close refuses further calls, waits for what is on its way until ctx ends, then gives up on it, and returns when every goroutine has ended.
func (b *Batcher) Close(ctx context.Context) {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		b.wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
		b.cancel()
		<-ended
	}
	b.cancel()
}
