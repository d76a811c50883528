package consume

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// limiter lets one line of a code through a minute, and counts the others.
type limiter struct {
	mu   sync.Mutex
	last map[diag.Code]limited
}

type limited struct {
	at         time.Time
	suppressed int
}

const limitEvery = time.Minute

func (l *limiter) allow(code diag.Code, now time.Time) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == nil {
		l.last = make(map[diag.Code]limited)
	}
	e, seen := l.last[code]
	if seen && now.Sub(e.at) < limitEvery {
		e.suppressed++
		l.last[code] = e
		return 0, false
	}
	l.last[code] = limited{at: now}
	return e.suppressed, true
}

// warn writes a line, at most one a minute for each code, that says how many were left out.
func (s *Session) warn(code diag.Code, text string, args ...any) {
	if suppressed, ok := s.warns.allow(code, time.Now()); ok {
		s.log.Warn(text, append([]any{"code", string(code), "suppressed", suppressed}, args...)...)
	}
}

// report tells of an event: a line for those that somebody should see, and the hooks. No line holds a payload or what a handler said.
func (s *Session) report(e Event) {
	switch e.Kind {
	case KindStale:
		s.warn(e.Code, "queued message has insufficient lease time", "message", e.Message, "range", rangeText(e.Low, e.High), "remaining", e.Remaining, "needed", e.Needed)
	case KindAbandoned:
		s.warn(e.Code, "handler abandoned: it outlived its timeout and grace", "message", e.Message, "attempt", e.Attempt, "after", e.Duration)
	case KindPanicked:
		s.warn(e.Code, diag.Title(e.Code), "message", e.Message, "attempt", e.Attempt)
	case KindLeaseLost:
		s.warn(e.Code, diag.Title(e.Code), "message", e.Message, "range", rangeText(e.Low, e.High))
	case KindDead:
		s.warn(e.Code, diag.Title(e.Code), "message", e.Message, "attempt", e.Attempt, "reason", string(e.Reason))
	case KindBrokenUp:
		s.warn(e.Code, diag.Title(e.Code), "messages", e.Count)
	case KindPositionLost:
		s.warn(e.Code, diag.Title(e.Code), "range", rangeText(e.Low, e.High))
	case KindClocksParted:
		s.warn(e.Code, diag.Title(e.Code), "range", rangeText(e.Low, e.High))
	case KindRetrying:
		s.warn(e.Code, diag.Title(e.Code), "failures", e.Count, "error", e.Err)
	case KindCleared, KindAttempt:
	}
	if s.events == nil {
		return
	}
	switch s.events.push(e) {
	case pushedOK:
	case pushedClosed: // an abandoned handler returned after the session's end: its goroutine tells by itself
		s.observe(e)
	case pushedFull:
		s.mu.Lock()
		s.m.counts.Dropped++
		s.mu.Unlock()
		s.warn(diag.EventsOverflow, diag.Title(diag.EventsOverflow))
	}
}

func rangeText(low, high int64) string {
	if high == 0 {
		return ""
	}
	return fmt.Sprintf("%d-%d", low+1, high)
}

// observe hands an event to the hooks. A hook watches; that it panics must not end the process.
func (s *Session) observe(e Event) {
	for _, h := range s.c.Hooks {
		func() {
			defer func() {
				if p := recover(); p != nil {
					s.warn(diag.HandlerPanicked, "a hook panicked", "panic", fmt.Sprint(p))
				}
			}()
			h.Observe(e)
		}()
	}
}

func (s *Session) logStart(o Options, limits delivery.Limits) {
	s.log.Info("consumer started",
		"handlers", o.Handlers, "batch_limit", o.BatchLimit, "batch_min", o.BatchMin, "max_batch_bytes", o.MaxBatchBytes, "queue_size", o.QueueSize,
		"queue_margin", o.QueueMargin, "timeout", limits.Default.Timeout, "timeout_ceiling", limits.Max.Timeout, "timeout_grace", o.TimeoutGrace,
		"record_margin", o.RecordMargin, "lease", o.Margins()+limits.Max.Timeout, "stop_timeout", o.stopTimeout(limits), "release_stale", o.ReleaseStale,
		"max_attempts", limits.Default.MaxAttempts, "max_reclaims", o.MaxReclaims)
}

// logStop writes every count, whatever its value.
func (s *Session) logStop(took time.Duration, c Counts, fatal error) {
	args := []any{
		"duration", took, "claimed", c.Claimed, "succeeded", c.Succeeded, "failed", c.Failed, "delayed", c.Delayed, "waiting", c.Waiting, "dead", c.Dead,
		"superseded", c.Superseded, "reclaimed", c.Reclaimed, "broken_up", c.BrokenUp, "stale", c.Stale, "lease_lost", c.LeaseLost,
		"abandoned_count", c.Abandoned,
	}
	if code := diag.CodeOf(fatal); code != "" { // the error itself is returned
		args = append(args, slog.String("code", string(code)))
	}
	s.log.Info("consumer stopped", args...)
}
