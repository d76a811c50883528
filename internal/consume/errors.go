package consume

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// ErrStopping is the cause with which handlers' contexts end when StopTimeout is over.
const ErrStopping = diag.Sentinel(diag.Stopping)

// Bounds of what a handler can say.
const (
	maxDelay     = 30 * 24 * time.Hour
	maxErrorText = 4 << 10
)

// DelayError makes a message run again later without counting a failure.
type DelayError struct{ Delay time.Duration }

func (e *DelayError) Error() string { return "run again after " + e.Delay.String() }

// Delay asks for the message to run again after d, at most 30 days; less than 0 counts as 0.
func Delay(d time.Duration) error { return &DelayError{Delay: min(max(d, 0), maxDelay)} }

// TerminalError ends the automatic attempts of a message.
type TerminalError struct{ Err error }

func (e *TerminalError) Error() string {
	if e.Err == nil {
		return "terminal"
	}
	return e.Err.Error()
}

func (e *TerminalError) Unwrap() error { return e.Err }

// Terminal makes the message a dead letter now.
func Terminal(err error) error { return &TerminalError{Err: err} }

// UndecodableError says that a payload could not be decoded.
type UndecodableError struct{ Err error }

func (e *UndecodableError) Error() string {
	if e.Err == nil {
		return "payload cannot be decoded"
	}
	return "payload cannot be decoded: " + e.Err.Error()
}

func (e *UndecodableError) Unwrap() error { return e.Err }

// NotDecodable makes the message a dead letter for the reason that its payload cannot be decoded.
func NotDecodable(err error) error { return &UndecodableError{Err: err} }

// UnversionedError says that a message has a payload version for which the group has no converter.
type UnversionedError struct{ Version int }

func (e *UnversionedError) Error() string {
	return fmt.Sprintf("no converter from payload version %d", e.Version)
}

// NotConvertible makes the message a dead letter for the reason that the group cannot convert its version.
func NotConvertible(version int) error { return &UnversionedError{Version: version} }

// timeoutError is the cause with which a handler's context ends at its timeout.
type timeoutError struct {
	timeout time.Duration
	message int64
	attempt int
}

func (e *timeoutError) Error() string {
	return fmt.Sprintf("Timeout (%v) exceeded for message %d attempt %d", e.timeout, e.message, e.attempt)
}

// Unwrap lets errors.Is find the standard condition.
func (e *timeoutError) Unwrap() error { return context.DeadlineExceeded }

func (e *timeoutError) Timeout() bool { return true }

func hardTimeoutText(after time.Duration, message int64) string {
	return fmt.Sprintf("hard timeout after %v, goroutine abandoned for message %d", after, message)
}

// verdict is what a handler's return means. A nil verdict is success.
type verdict struct {
	kind   delivery.Kind
	reason delivery.Reason
	delay  time.Duration
	text   string
	err    error
	// interrupted: the handler gave up because the stop cancelled its context. It is no attempt.
	interrupted bool
	abandoned   bool
	recorded    bool // a success that needs no record
	panicked    bool // or ended its goroutine
}

// judge says what the error of a handler means. The error is the application's: its methods may panic.
func judge(err error) (v *verdict) {
	if err == nil {
		return nil
	}
	v = &verdict{kind: delivery.Failed, err: err}
	defer func() {
		if p := recover(); p != nil {
			v.text = "the handler's error panicked when it was asked for its text"
		}
	}()
	if _, ok := errors.AsType[*UndecodableError](err); ok {
		v.kind, v.reason = delivery.Dead, delivery.Undecodable
	} else if _, ok := errors.AsType[*UnversionedError](err); ok {
		v.kind, v.reason = delivery.Dead, delivery.Unversioned
	} else if _, ok := errors.AsType[*TerminalError](err); ok {
		v.kind, v.reason = delivery.Dead, delivery.TerminalErr
	} else if e, ok := errors.AsType[*DelayError](err); ok {
		v.kind, v.delay = delivery.Delayed, min(max(e.Delay, 0), maxDelay)
	}
	if v.kind != delivery.Delayed { // no failure, so no error to keep
		v.text = boundText(err.Error())
	}
	return v
}

// judgePanic is the verdict on a handler that panicked: its first line, as the stack belongs into no table.
func judgePanic(p any) *verdict {
	text, _, _ := strings.Cut(fmt.Sprint(p), "\n")
	text = boundText("panic: " + text)
	return &verdict{kind: delivery.Failed, text: text, err: textError(text), panicked: true}
}

func judgeGoexit() *verdict {
	const text = "handler called runtime.Goexit"
	return &verdict{kind: delivery.Failed, text: text, err: textError(text), panicked: true}
}

// boundText makes a text that any text column takes: at most 4 KiB of valid UTF-8 without NUL.
func boundText(s string) string {
	s = s[:min(len(s), maxErrorText)]
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.ReplaceAll(s, "\x00", "\uFFFD")
	if len(s) > maxErrorText { // the replacements are longer than what they replace
		cut := maxErrorText
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut]
	}
	return s
}
