package consume

import (
	"context"
	"sync"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

// Attempt describes one run of a handler.
type Attempt struct {
	ID            int64
	Attempt       int  // failures recorded before + 1
	Redelivered   bool // its range was claimed before: the message may have run
	OutOfOrder    bool // of an ordered key, redriven after its successors had gone on
	LeaseDeadline time.Time
	Stream, Group string

	// Who works in the transaction that records its own result needs these.
	GroupID   int
	Token     delivery.Token
	Delivery  bool      // the token is that of a delivery, else of a range
	Abandoned time.Time // when the attempt is written off, whatever the handler does
}

// ErrRecorded, returned by a handler, says that it succeeded and that its result is recorded already, in a transaction of its own that checked the token.
const ErrRecorded = recorded("recorded")

type recorded string

func (r recorded) Error() string { return string(r) }

// Handler runs one message.
type Handler func(ctx context.Context, m *delivery.Message, a Attempt) error

// handlerContext is the context of one attempt. It carries the values of Consume's context, ends at the timeout with a cause that names the
// budget, ends with ErrStopping when a stop has waited long enough, and ends when the handler has returned.
//
// A standard context with a deadline costs more than all other work on a message, and a handler that neither waits nor calls out never uses
// it. So the standard one is made when it is first asked for; everything but the attempt's own data comes from it, which also makes
// context.Cause and contexts derived from this one work as ever.
type handlerContext struct {
	base    context.Context
	ends    time.Time
	timeout time.Duration
	message *delivery.Message
	attempt Attempt

	mu       sync.Mutex
	inner    context.Context
	cancel   context.CancelFunc
	returned bool
}

type attemptKey struct{}

// FromContext returns the message and the attempt that a handler's context belongs to.
func FromContext(ctx context.Context) (*delivery.Message, Attempt, bool) {
	c, ok := ctx.Value(attemptKey{}).(*handlerContext)
	if !ok {
		return nil, Attempt{}, false
	}
	return c.message, c.attempt, true
}

// NewContext returns a context as a session gives it to a handler, and what ends it, for tests that run a handler without a session.
func NewContext(base context.Context, m *delivery.Message, a Attempt, timeout time.Duration) (ctx context.Context, end func()) {
	c := &handlerContext{base: base, ends: time.Now().Add(timeout), timeout: timeout, message: m, attempt: a}
	return c, c.end
}

func (c *handlerContext) standard() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner == nil {
		c.inner, c.cancel = context.WithDeadlineCause(c.base, c.ends, &timeoutError{c.timeout, c.attempt.ID, c.attempt.Attempt})
		if c.returned {
			c.cancel()
		}
	}
	return c.inner
}

// end cancels what the handler may have left behind.
func (c *handlerContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.returned = true
	if c.cancel != nil {
		c.cancel()
	}
}

func (c *handlerContext) Deadline() (time.Time, bool) { return c.ends, true }
func (c *handlerContext) Done() <-chan struct{}       { return c.standard().Done() }
func (c *handlerContext) Err() error                  { return c.standard().Err() }

func (c *handlerContext) Value(key any) any {
	if key == (attemptKey{}) {
		return c
	}
	return c.standard().Value(key)
}
