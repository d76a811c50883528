package consume

import (
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// What an Event tells.
const (
	KindAttempt      = "attempt"       // an attempt ended; Outcome says how
	KindDead         = "dead"          // a message became a dead letter
	KindAbandoned    = "abandoned"     // a handler outlived timeout and grace; its goroutine goes on alone
	KindPanicked     = "panicked"      // a handler panicked or ended its goroutine
	KindCleared      = "cleared"       // an abandoned handler returned
	KindStale        = "stale"         // too little lease remained to start a message
	KindLeaseLost    = "lease_lost"    // a range or a delivery was ours no longer
	KindBrokenUp     = "broken_up"     // a range was taken over too often: Count messages run alone
	KindPositionLost = "position_lost" // ids (Low, High] are gone from the stream
	KindClocksParted = "clocks_parted" // monotonic and wall clock went apart
	KindRetrying     = "retrying"      // the store failed and is tried again
)

// Event is something that happened in a session.
type Event struct {
	Code          diag.Code // "" for an attempt that succeeded or is tried again
	Kind          string
	Stream, Group string
	Instance      uuid.UUID
	Message       int64
	Attempt       int // failures before it + 1
	Outcome       delivery.Kind
	Reason        delivery.Reason
	Low, High     int64         // the range concerned
	Remaining     time.Duration // of its lease, for KindStale
	Needed        time.Duration // to start the message, for KindStale
	Count         int
	At            time.Time
	Duration      time.Duration // how long the handler ran
	Err           error
}

// Hook watches. It is called from one goroutine of the session, and from that of an abandoned handler that returns after the session ended.
type Hook interface {
	Observe(Event)
}

// maxEvents bounds what waits for the hooks.
const maxEvents = 1024

// eventQueue is the one way from a session to its hooks, so that no hook can slow a handler.
type eventQueue struct {
	mu     sync.Mutex
	waits  []Event
	closed bool
	more   chan struct{} // holds at most one
}

func newEventQueue() *eventQueue { return &eventQueue{more: make(chan struct{}, 1)} }

type pushed int

const (
	pushedOK pushed = iota
	pushedFull
	pushedClosed
)

func (q *eventQueue) push(e Event) pushed {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return pushedClosed
	}
	if len(q.waits) >= maxEvents {
		return pushedFull
	}
	q.waits = append(q.waits, e)
	if len(q.waits) == 1 {
		kick(q.more)
	}
	return pushedOK
}

func (q *eventQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	kick(q.more)
}

// drain hands every event to f until the queue is closed and empty.
func (q *eventQueue) drain(f func(Event)) {
	var batch []Event
	for {
		q.mu.Lock()
		batch, q.waits = q.waits, batch[:0]
		closed := q.closed
		q.mu.Unlock()
		for i := range batch {
			f(batch[i])
			batch[i] = Event{}
		}
		if len(batch) == 0 {
			if closed {
				return
			}
			<-q.more
		}
	}
}

// kick puts a value into a channel that holds at most one.
func kick(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
