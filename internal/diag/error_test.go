package diag

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
)

func TestTextSaysWhatWasAttemptedOnWhatAndWhy(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want string
	}{
		{"title alone", &Error{Code: StreamNotFound}, "SQL0005: stream not found"},
		{"operation and object", &Error{Code: StreamNotFound, Op: "produce", Object: `stream "orders"`}, `SQL0005: produce stream "orders": stream not found`},
		{"operation alone", &Error{Code: Closed, Op: "register"}, "SQL0009: register: client is closed"},
		{"detail instead of the title", &Error{Code: TooLarge, Op: "produce", Detail: "payload of 2 MiB exceeds 1 MiB"}, "SQL0004: produce: payload of 2 MiB exceeds 1 MiB"},
		{"cause", &Error{Code: Unreachable, Op: "claim", Err: io.ErrUnexpectedEOF}, "SQL0250: claim: database cannot be reached: unexpected EOF"},
		{"outcome unknown", &Error{Code: Unreachable, Op: "produce", OutcomeUnknown: true, Err: io.EOF}, "SQL0250: produce: database cannot be reached (outcome unknown): EOF"},
		{"outcome unknown is said once", &Error{Code: OutcomeUnknown, Op: "produce", OutcomeUnknown: true}, "SQL0150: produce: outcome unknown"},
		{"sentinel", ErrLeaseLost, "SQL0100: lease lost"},
		{"code without an entry", &Error{Code: "SQL9999"}, "SQL9999: unknown condition"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := test.err.Error(); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestIsMatchesByCode(t *testing.T) {
	lost := &Error{Code: LeaseLost, Op: "record"}
	unknown := &Error{Code: Unreachable, OutcomeUnknown: true, Err: context.DeadlineExceeded}
	tests := []struct {
		name        string
		err, target error
		want        bool
	}{
		{"its own sentinel", lost, ErrLeaseLost, true},
		{"through wrapping", fmt.Errorf("while stopping: %w", lost), ErrLeaseLost, true},
		{"as the cause of another", &Error{Code: DutyFailed, Err: lost}, ErrLeaseLost, true},
		{"among joined errors", errors.Join(io.EOF, lost), ErrLeaseLost, true},
		{"another sentinel", lost, ErrPositionLost, false},
		{"an Error of the same code", lost, &Error{Code: LeaseLost}, true},
		{"an Error of another code", lost, &Error{Code: PositionLost}, false},
		{"something else", lost, io.EOF, false},
		{"the cause", unknown, context.DeadlineExceeded, true},
		{"outcome unknown beside its own code", unknown, ErrOutcomeUnknown, true},
		{"its own code beside outcome unknown", unknown, ErrUnreachable, true},
		{"outcome known", lost, ErrOutcomeUnknown, false},
		{"a sentinel itself", ErrStopping, ErrStopping, true},
		{"a wrapped sentinel", fmt.Errorf("cause: %w", ErrStopping), ErrStopping, true},
		{"two sentinels", ErrStopping, ErrClosed, false},
		{"nil", nil, ErrClosed, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := errors.Is(test.err, test.target); got != test.want {
				t.Errorf("errors.Is(%v, %v) = %v", test.err, test.target, got)
			}
		})
	}
}

func TestQuestionsLookThroughWrapping(t *testing.T) {
	inner := &Error{Code: StreamBusy, Retryable: true, OutcomeUnknown: true, Err: io.EOF}
	wrapped := fmt.Errorf("more words: %w", inner)
	var e *Error
	if !errors.As(wrapped, &e) || e != inner {
		t.Errorf("errors.As found %v", e)
	}
	if !errors.Is(wrapped, io.EOF) {
		t.Error("the cause is not found")
	}
	tests := []struct {
		name               string
		err                error
		code               Code
		retryable, unknown bool
	}{
		{"wrapped", wrapped, StreamBusy, true, true},
		{"the outermost Error answers", &Error{Code: DutyFailed, Err: inner}, DutyFailed, false, false},
		{"sentinel", fmt.Errorf("x: %w", ErrClosed), Closed, false, false},
		{"foreign", io.EOF, "", false, false},
		{"nil", nil, "", false, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := CodeOf(test.err); got != test.code {
				t.Errorf("CodeOf = %q, want %q", got, test.code)
			}
			if got := Retryable(test.err); got != test.retryable {
				t.Errorf("Retryable = %v", got)
			}
			if got := Unknown(test.err); got != test.unknown {
				t.Errorf("Unknown = %v", got)
			}
		})
	}
}
