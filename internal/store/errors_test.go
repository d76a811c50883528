package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// want is what Classify is to say about an error.
type want struct {
	code               diag.Code
	retryable, unknown bool
}

func check(t *testing.T, err error, w want) *diag.Error {
	t.Helper()
	got := Classify("append", `stream "orders"`, err)
	var e *diag.Error
	if !errors.As(got, &e) {
		t.Fatalf("%v became %T", err, got)
	}
	if e.Code != w.code || e.Retryable != w.retryable || e.OutcomeUnknown != w.unknown {
		t.Errorf("%v\n got %s, retryable %v, unknown %v\nwant %s, retryable %v, unknown %v\ntext: %v", err, e.Code, e.Retryable, e.OutcomeUnknown, w.code, w.retryable, w.unknown, e)
	}
	if e.Op != "append" || e.Object != `stream "orders"` || !strings.HasPrefix(e.Error(), string(w.code)+`: append stream "orders": `) {
		t.Errorf("the text does not say what was attempted: %v", e)
	}
	if !errors.Is(got, err) {
		t.Errorf("the cause %v is out of reach", err)
	}
	if strings.ContainsAny(e.Error(), "\n\t") {
		t.Errorf("the text has more than one line: %q", e.Error())
	}
	if still := ClassifyNoEffect("append", `stream "orders"`, err); diag.Unknown(still) || diag.CodeOf(still) != w.code || diag.Retryable(still) != w.retryable {
		t.Errorf("without effect: %v", still)
	}
	return e
}

func TestWhatTheServerReports(t *testing.T) {
	tests := []struct {
		state, severity, message, routine string
		want
	}{
		{state: "28P01", severity: "FATAL", want: want{code: diag.AuthFailed}},
		{state: "28000", severity: "FATAL", want: want{code: diag.AuthFailed}},
		{state: "3D000", severity: "FATAL", want: want{code: diag.Unreachable}},
		{state: "57P04", severity: "FATAL", want: want{code: diag.Unreachable, unknown: true}},
		{state: "42501", severity: "ERROR", want: want{code: diag.PermissionDenied}},
		{state: "25006", severity: "ERROR", want: want{code: diag.ReadOnlyServer, retryable: true}},
		{state: "25P02", severity: "ERROR", want: want{code: diag.InvalidTransaction}},
		{state: "57P01", severity: "FATAL", want: want{code: diag.Unreachable, retryable: true, unknown: true}},
		{state: "57P02", severity: "FATAL", want: want{code: diag.Unreachable, retryable: true, unknown: true}},
		{state: "57P03", severity: "FATAL", want: want{code: diag.Unreachable, retryable: true}},
		{state: "57P05", severity: "FATAL", want: want{code: diag.Unreachable, retryable: true, unknown: true}},
		{state: "25P03", severity: "FATAL", want: want{code: diag.Unreachable, retryable: true, unknown: true}},
		{state: "08006", severity: "FATAL", want: want{code: diag.Unreachable, retryable: true, unknown: true}},
		{state: "08P01", severity: "ERROR", want: want{code: diag.Unreachable, retryable: true, unknown: true}},
		{state: "08007", severity: "ERROR", want: want{code: diag.Unreachable, retryable: true, unknown: true}},
		{state: "53300", severity: "FATAL", want: want{code: diag.Unreachable, retryable: true}},
		{state: "53400", severity: "FATAL", want: want{code: diag.Unreachable, retryable: true}},
		{state: "53100", severity: "ERROR", want: want{code: diag.DatabaseError, retryable: true}},
		{state: "53100", severity: "PANIC", want: want{code: diag.DatabaseError, retryable: true, unknown: true}},
		{state: "53200", severity: "ERROR", want: want{code: diag.DatabaseError, retryable: true}},
		{state: "58030", severity: "ERROR", want: want{code: diag.DatabaseError, retryable: true}},
		{state: "40001", severity: "ERROR", want: want{code: diag.DatabaseError, retryable: true}},
		{state: "40P01", severity: "ERROR", want: want{code: diag.DatabaseError, retryable: true}},
		{state: "40003", severity: "ERROR", want: want{code: diag.DatabaseError, retryable: true, unknown: true}},
		{state: "55P03", severity: "ERROR", want: want{code: diag.StreamBusy, retryable: true}},
		{state: "55006", severity: "ERROR", want: want{code: diag.DatabaseError, retryable: true}},
		{state: "55000", severity: "ERROR", want: want{code: diag.DatabaseError}},
		{state: "57014", severity: "ERROR", want: want{code: diag.StatementTimeout, retryable: true}},
		{state: "3F000", severity: "ERROR", want: want{code: diag.SchemaOld}},
		{state: "42P01", severity: "ERROR", message: `relation "sqlstreams.claim" does not exist`, want: want{code: diag.SchemaOld}},
		{state: "42P01", severity: "ERROR", message: `relation "sqlstreams.log_7_3" does not exist`, want: want{code: diag.DatabaseError, retryable: true}},
		{state: "42P01", severity: "ERROR", message: `relation "sqlstreams.log_7" does not exist`, want: want{code: diag.StreamNotFound}},
		{state: "42P01", severity: "FEHLER", message: `Relation »sqlstreams.log_7« existiert nicht`, want: want{code: diag.StreamNotFound}},
		{state: "42883", severity: "ERROR", want: want{code: diag.SchemaOld}},
		{state: "42703", severity: "ERROR", want: want{code: diag.SchemaOld}},
		{state: "42601", severity: "ERROR", want: want{code: diag.DatabaseError}},
		{state: "22P02", severity: "ERROR", want: want{code: diag.DatabaseError}},
		{state: "22023", severity: "FATAL", want: want{code: diag.DatabaseError, unknown: true}},
		{state: "23505", severity: "ERROR", want: want{code: diag.DatabaseError}},
		{state: "26000", severity: "ERROR", want: want{code: diag.DatabaseError, retryable: true}},
		{state: "0A000", severity: "ERROR", want: want{code: diag.DatabaseError}},
		{state: "0A000", severity: "ERROR", routine: "RevalidateCachedQuery", want: want{code: diag.DatabaseError, retryable: true}},
		{state: "XX000", severity: "ERROR", want: want{code: diag.DatabaseError}},
		{state: "XX000", severity: "FATAL", want: want{code: diag.Unreachable, retryable: true, unknown: true}},
		{state: "", severity: "ERROR", want: want{code: diag.DatabaseError}},
	}
	for _, test := range tests {
		t.Run(test.state+" "+test.severity+" "+test.message+test.routine, func(t *testing.T) {
			pg := &pgconn.PgError{Code: test.state, Severity: test.severity, SeverityUnlocalized: test.severity, Message: test.message, Routine: test.routine}
			check(t, pg, test.want)
			wrapped := check(t, fmt.Errorf("migration step 3: %w", pg), test.want)
			var inner *pgconn.PgError
			if !errors.As(wrapped, &inner) || inner != pg {
				t.Error("errors.As does not reach the server's error")
			}
			// While preparing, nothing of the statement itself was carried out.
			if err := Classify("append", "x", fmt.Errorf("%w", &prepareFailure{pg})); diag.Unknown(err) {
				t.Errorf("an error before the statement is no unknown outcome: %v", err)
			}
		})
	}
}

// prepareFailure stands for what the driver reports when it is sure that it has sent nothing of the statement.
type prepareFailure struct{ err error }

func (e *prepareFailure) Error() string     { return e.err.Error() }
func (e *prepareFailure) Unwrap() error     { return e.err }
func (e *prepareFailure) SafeToRetry() bool { return true }

func TestWhatTheDriverReports(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want
	}{
		{"the connection ends", io.EOF, want{diag.Unreachable, true, true}},
		{"in the middle of an answer", io.ErrUnexpectedEOF, want{diag.Unreachable, true, true}},
		{"reset", &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}, want{diag.Unreachable, true, true}},
		{"broken pipe", &net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}, want{diag.Unreachable, true, true}},
		{"given up by the kernel", &net.OpError{Op: "read", Net: "tcp", Err: syscall.ETIMEDOUT}, want{diag.Unreachable, true, true}},
		{"closed by this side", net.ErrClosed, want{diag.Unreachable, true, true}},
		{"conn closed in the middle", fmt.Errorf("x: %w", pgconn.ErrConnClosed), want{diag.Unreachable, true, true}},
		{"the pool is closed", errors.New("closed pool"), want{diag.Closed, false, false}},
		{"the connection is busy", errors.New("conn busy"), want{diag.InvalidTransaction, false, false}},
		{"the transaction has ended", pgx.ErrTxClosed, want{diag.InvalidTransaction, false, false}},
		{"commit became rollback", pgx.ErrTxCommitRollback, want{diag.InvalidTransaction, false, false}},
		{"cancelled", context.Canceled, want{diag.StatementTimeout, false, true}},
		{"deadline", context.DeadlineExceeded, want{diag.StatementTimeout, true, true}},
		{"no rows", pgx.ErrNoRows, want{diag.DatabaseError, false, true}},
		{"value that cannot be sent", errors.New(`failed to encode args[2]: unable to encode "the payload" into text`), want{diag.DatabaseError, false, false}},
		{"answer that cannot be read", pgx.ScanArgError{ColumnIndex: 3, FieldName: "head", Err: errors.New("the payload")}, want{diag.DatabaseError, false, true}},
		{"nobody knows", errors.New("the payload"), want{diag.DatabaseError, false, true}},
		{"connection string", pgconn.NewParseConfigError("postgres://u:the payload@h", "bad", nil), want{diag.InvalidOption, false, false}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			e := check(t, test.err, test.want)
			if strings.Contains(e.Error(), "the payload") {
				t.Errorf("the text gives a value away: %v", e)
			}
			check(t, fmt.Errorf("outer: %w", test.err), want{test.code, test.retryable, test.unknown || strings.HasPrefix(test.name, "value that")})
		})
	}
	if !strings.Contains(Classify("a", "b", fmt.Errorf("failed to encode args[2]: x")).Error(), "failed to encode args[2]") {
		t.Error("which value it was is not said")
	}
	if !strings.Contains(Classify("a", "b", pgx.ScanArgError{ColumnIndex: 3, Err: errors.New("x")}).Error(), "column 4") {
		t.Error("which column it was is not said")
	}
}

func TestErrorsOfTheLibraryPassThrough(t *testing.T) {
	if err := Classify("append", "x", nil); err != nil {
		t.Errorf("nil became %v", err)
	}
	if err := ClassifyNoEffect("append", "x", nil); err != nil {
		t.Errorf("nil became %v", err)
	}
	own := fmt.Errorf("wrapped: %w", &diag.Error{Code: diag.LeaseLost})
	if err := Classify("append", "x", own); err != own {
		t.Errorf("%v became %v", own, err)
	}
}

func TestTimeoutsMatchDeadlineExceeded(t *testing.T) {
	for name, err := range map[string]error{
		"the server's":  &pgconn.PgError{Code: "57014"},
		"the context's": context.DeadlineExceeded,
	} {
		if got := Classify("a", "b", err); !errors.Is(got, context.DeadlineExceeded) || errors.Is(got, context.Canceled) {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got := Classify("a", "b", context.Canceled); !errors.Is(got, context.Canceled) || errors.Is(got, context.DeadlineExceeded) {
		t.Errorf("cancelled: %v", got)
	}
	if got := Classify("a", "b", &pgconn.PgError{Code: "40001"}); errors.Is(got, context.DeadlineExceeded) {
		t.Errorf("a serialization failure is no time-out: %v", got)
	}
}

// Whatever a server's message quotes of the data must not get into a text, and what names objects only should.
func TestServersWordsAreToldOnlyIfTheyHoldNoData(t *testing.T) {
	const secret = "4929-1234-5678"
	for _, state := range []string{"22P02", "22001", "22003", "22007", "22021", "22P05", "22000", "P0001", "28P01", "3D000", "38000", "ZZ999", secret} {
		pg := &pgconn.PgError{Code: state, Message: "invalid input syntax: " + secret, Detail: secret, Hint: secret, Where: secret, InternalQuery: secret}
		if text := Classify("a", "b", pg).Error(); strings.Contains(text, secret) {
			t.Errorf("%s: %s", state, text)
		} else if state != secret && !strings.Contains(text, state) {
			t.Errorf("%s does not stand in the text: %s", state, text)
		}
	}
	for _, state := range []string{"23505", "42501", "40P01", "55P03", "57014", "XX000"} {
		pg := &pgconn.PgError{Code: state, Message: "about table claim", Detail: secret, Hint: secret, Where: secret, InternalQuery: secret}
		if text := Classify("a", "b", pg).Error(); !strings.Contains(text, "about table claim (SQLSTATE "+state+")") || strings.Contains(text, secret) {
			t.Errorf("%s: %s", state, text)
		}
	}
}
