package consume

import (
	"time"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// Counts are a session's counters, from its start.
type Counts struct {
	Claimed    int64 // messages handed out to be run
	Succeeded  int64 // attempts, and so the next three
	Failed     int64 // to be tried again
	Delayed    int64 // run again later at the handler's wish
	Dead       int64 // messages whose automatic attempts ended
	Waiting    int64 // messages that wait for their key
	Superseded int64 // messages passed over: removed or erased
	Reclaimed  int64 // ranges that had been claimed before
	BrokenUp   int64 // messages of ranges that were broken up
	Stale      int64 // ranges left for want of lease time
	LeaseLost  int64 // ranges and deliveries that were ours no longer
	GivenBack  int64 // messages given back unstarted because they would have been too late
	Abandoned  int64 // handlers that outlived timeout and grace
	Cleared    int64 // of those, returned since
	Dropped    int64 // events that did not fit into the queue
}

// Health is how a session does.
type Health struct {
	Counts
	Ranges      int // open
	Running     int
	Queued      int // claimed, not started
	Outstanding int // abandoned handlers of the session that have not returned
	LastWork    time.Time
	LastError   diag.Code // since then; "": none
	Paused      bool
	Stopping    bool
}

func (m *machine) health() Health {
	h := Health{
		Counts: m.counts, Ranges: len(m.spans), Running: m.running, Queued: m.queued + m.waiting + m.lined,
		Outstanding: int(m.counts.Abandoned - m.counts.Cleared), LastError: m.calls.lastErr, Paused: m.look.paused, Stopping: m.stop.phase != active,
	}
	if m.calls.lastOK != (instant{}) {
		h.LastWork = time.Unix(0, m.calls.lastOK.wall)
	}
	return h
}

// died counts a dead letter.
func (m *machine) died(t *task, o *delivery.Outcome, now instant, err error) {
	m.counts.Dead++
	m.event(Event{Code: diag.DeadLettered, Kind: KindDead, Message: o.ID, Attempt: o.Attempt, Outcome: delivery.Dead, Reason: o.Reason, Err: err}, now)
}

func (m *machine) attemptEvent(t *task, now instant, took int64, v *verdict) {
	e := Event{Kind: KindAttempt, Message: t.message().ID, Attempt: t.failures + 1, Outcome: delivery.Succeeded, Duration: time.Duration(took)}
	if v != nil {
		e.Outcome, e.Reason, e.Err = v.kind, v.reason, v.err
		if v.kind == delivery.Failed && e.Attempt >= t.policy.MaxAttempts {
			e.Outcome, e.Reason = delivery.Dead, delivery.Exhausted
		}
		switch {
		case v.abandoned:
			e.Code = diag.HardTimeout
		case v.reason == delivery.Undecodable:
			e.Code = diag.Undecodable
		}
	}
	m.event(e, now)
}
