package diag

import (
	"errors"
	"strings"
)

// Error is what every failing call of the library returns. Its text says what was attempted on which object and why it failed.
type Error struct {
	Code Code
	// Op is what was attempted, such as "produce"; Object is on what, such as `stream "orders"`.
	Op, Object string
	// Detail says in words what is wrong; empty: the title of the code.
	Detail string
	// Retryable: the identical call may succeed later.
	Retryable bool
	// OutcomeUnknown: the call may or may not have taken effect.
	OutcomeUnknown bool
	// Err is the cause, if there is one.
	Err error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(string(e.Code))
	b.WriteString(": ")
	if e.Op != "" {
		b.WriteString(e.Op)
		if e.Object != "" {
			b.WriteString(" ")
			b.WriteString(e.Object)
		}
		b.WriteString(": ")
	}
	if e.Detail != "" {
		b.WriteString(e.Detail)
	} else {
		b.WriteString(Title(e.Code))
	}
	if e.OutcomeUnknown && e.Code != OutcomeUnknown {
		b.WriteString(" (outcome unknown)")
	}
	if e.Err != nil {
		b.WriteString(": ")
		b.WriteString(e.Err.Error())
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// Is makes errors.Is match by code, so that sentinels need no identity. Every error whose outcome is unknown also matches the sentinel of
// that condition.
func (e *Error) Is(target error) bool {
	var code Code
	switch t := target.(type) {
	case Sentinel:
		code = Code(t)
	case *Error:
		code = t.Code
	default:
		return false
	}
	return code == e.Code || (code == OutcomeUnknown && e.OutcomeUnknown)
}

// CodeOf returns the code of the first Error or Sentinel in err's chain, or "".
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	if s, ok := errors.AsType[Sentinel](err); ok {
		return Code(s)
	}
	return ""
}

// Retryable says whether the identical call may succeed later.
func Retryable(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Retryable
}

// Unknown says whether the call that returned err may have taken effect.
func Unknown(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.OutcomeUnknown
}
