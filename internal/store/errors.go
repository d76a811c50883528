package store

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// Classify turns what pgx returned into a *diag.Error that says what was attempted (op) on what (object). It is for statements that commit:
// COMMIT itself, a CALL that commits, a single statement in autocommit. If the statement was sent and no verdict came, its outcome is unknown.
//
// Statements that wait for a pooled connection first should get it in a step of their own and classify that step with ClassifyNoEffect: the
// pool returns the context's bare error, from which nobody can tell that nothing was sent.
//
// An error that is a *diag.Error already, or wraps one, is returned as it is.
func Classify(op, object string, err error) error { return classify(op, object, err, true) }

// ClassifyNoEffect is Classify for what cannot have taken effect however it ended: getting a connection, a read, a statement in a transaction
// that nobody has asked to commit. Its outcome is always known.
func ClassifyNoEffect(op, object string, err error) error { return classify(op, object, err, false) }

// verdict is what one kind of failure means.
type verdict struct {
	code      diag.Code
	detail    string // instead of the code's title
	retryable bool
	lost      bool // the server may have gone on after this: no verdict about a statement that was sent
	text      string
	deadline  bool // a time-out that the driver reports as something else than context.DeadlineExceeded
}

func classify(op, object string, err error, effect bool) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*diag.Error](err); ok {
		return err
	}
	v := judge(err)
	return &diag.Error{
		Code: v.code, Op: op, Object: object, Detail: v.detail, Retryable: v.retryable,
		OutcomeUnknown: effect && v.lost && !nothingSent(err),
		Err:            &cause{text: v.text, err: err, deadline: v.deadline},
	}
}

// judge looks for the most telling error in the chain: a failed attempt to connect, the server's own words, the end of a context, a broken
// connection, misuse of a transaction.
func judge(err error) verdict {
	if connect, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return judgeConnect(connect)
	}
	if _, ok := errors.AsType[*pgconn.ParseConfigError](err); ok {
		return verdict{code: diag.InvalidOption, detail: "the connection string cannot be parsed", text: "its text is withheld"}
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return judgeServer(pg)
	}
	errno, _ := errors.AsType[syscall.Errno](err)
	_, netFailed := errors.AsType[*net.OpError](err)
	message := err.Error()
	switch {
	case errors.Is(err, context.Canceled):
		return verdict{code: diag.StatementTimeout, detail: "its context ended", lost: true, text: "context canceled"}
	case errors.Is(err, context.DeadlineExceeded):
		return verdict{code: diag.StatementTimeout, retryable: true, lost: true, text: "context deadline exceeded"}
	// The kernel gave the connection up; it calls that a time-out too.
	case errno == syscall.ETIMEDOUT:
		return verdict{code: diag.Unreachable, retryable: true, lost: true, text: reason(err)}
	case pgconn.Timeout(err):
		return verdict{code: diag.StatementTimeout, retryable: true, lost: true, text: "timed out", deadline: true}
	case errors.Is(err, pgx.ErrTxClosed):
		return verdict{code: diag.InvalidTransaction, detail: "the transaction has ended", text: "tx is closed"}
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return verdict{code: diag.InvalidTransaction, detail: "an earlier error aborted the transaction", text: "commit resulted in rollback"}
	case errors.Is(err, pgconn.ErrConnClosed), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed),
		errno != 0, netFailed:
		return verdict{code: diag.Unreachable, retryable: true, lost: true, text: reason(err)}
	// Neither of these two has a type or value that is ours to import.
	case strings.HasSuffix(message, "conn busy"):
		return verdict{code: diag.InvalidTransaction, detail: "its connection is busy: close its rows first, and use it from one goroutine at a time", text: "conn busy"}
	case strings.HasSuffix(message, "closed pool"):
		return verdict{code: diag.Closed, detail: "the connection pool is closed", text: "closed pool"}
	}
	return judgeDriver(err)
}

// judgeDriver is for what the driver found by itself. Its texts may quote the values of a statement, so only known shapes are let through.
func judgeDriver(err error) verdict {
	v := verdict{code: diag.DatabaseError, lost: true, text: "of a kind whose text may hold values, so it is withheld"}
	if errors.Is(err, pgx.ErrNoRows) {
		v.text = pgx.ErrNoRows.Error()
	} else if scan, ok := errors.AsType[pgx.ScanArgError](err); ok {
		v.text = "column " + strconv.Itoa(scan.ColumnIndex+1) + " of the answer could not be read"
	} else if encode := encodeFailure.FindString(err.Error()); encode != "" {
		v.text, v.lost = encode, false
	}
	return v
}

// encodeFailure is how pgx begins when a value cannot be sent; what follows quotes the value.
var encodeFailure = regexp.MustCompile(`^failed to encode args\[\d+\]`)

// judgeConnect is for attempts to connect that failed: nothing was sent.
func judgeConnect(err *pgconn.ConnectError) verdict {
	v := verdict{code: diag.Unreachable, retryable: true, text: whereTo(err.Config) + ": " + reason(err)}
	_, badCertificate := errors.AsType[*tls.CertificateVerificationError](err)
	pg, isServer := errors.AsType[*pgconn.PgError](err)
	switch {
	case isServer:
		server := judgeServer(pg)
		if server.code == diag.SchemaOld {
			break
		}
		v.code, v.detail, v.retryable, v.deadline = server.code, server.detail, server.retryable, server.deadline
	case errors.Is(err, context.Canceled):
		v.code, v.detail, v.retryable = diag.StatementTimeout, "its context ended", false
	case errors.Is(err, pgconn.ErrReadOnlyConnection), errors.Is(err, pgconn.ErrStandbyConnection):
		v.code = diag.ReadOnlyServer
	case badCertificate:
		v.detail, v.retryable = "the server's certificate cannot be verified", false
	case errors.Is(err, context.DeadlineExceeded):
	default:
		v.deadline = pgconn.Timeout(err)
	}
	return v
}

// judgeServer goes by the SQLSTATE of an answer. An error that the server reports is final, unless it says that the connection ends: then a
// commit may have gone before it.
func judgeServer(pg *pgconn.PgError) verdict {
	fatal := pg.SeverityUnlocalized == "FATAL" || pg.SeverityUnlocalized == "PANIC" || pg.Severity == "FATAL" || pg.Severity == "PANIC"
	v := verdict{code: diag.DatabaseError, lost: fatal, text: serverText(pg)}
	class := pg.Code[:min(2, len(pg.Code))]
	switch pg.Code {
	case "28000", "28P01":
		v.code, v.lost = diag.AuthFailed, false
	case "3D000":
		v.code, v.detail, v.lost = diag.Unreachable, "the database does not exist", false
	case "57P04":
		v.code, v.detail = diag.Unreachable, "the database was dropped"
	// Refused before anything was read.
	case "57P03", "53300", "53400":
		v.code, v.retryable, v.lost = diag.Unreachable, true, false
	// Shut down, crashed, or terminated.
	case "57P01", "57P02", "57P05":
		v.code, v.retryable, v.lost = diag.Unreachable, true, true
	case "42501":
		v.code = diag.PermissionDenied
	case "SQ100": // raised by finish_tx
		v.code = diag.LeaseLost
	case "25006":
		v.code, v.retryable = diag.ReadOnlyServer, true
	case "25P02":
		v.code, v.detail = diag.InvalidTransaction, "an earlier error aborted the transaction"
	case "40001", "40P01":
		v.retryable = true
	case "40003":
		v.retryable, v.lost = true, true
	case "55P03":
		v.code, v.retryable = diag.StreamBusy, true
	case "57014":
		v.code, v.retryable, v.deadline = diag.StatementTimeout, true, true
	case "42P01":
		v.code = diag.SchemaOld
		if logName.MatchString(pg.Message) {
			v.code, v.detail = diag.StreamNotFound, "its log is gone: the stream was deleted"
		} else if leafName.MatchString(pg.Message) {
			// Between looking up the leaf and reading it somebody dropped it; the next look finds another one, or no stream.
			v.code, v.detail, v.retryable = diag.DatabaseError, "a part of its log was removed meanwhile", true
		}
	case "3F000", "42883", "42703":
		v.code = diag.SchemaOld
	// The object is in use; the prepared statement is unknown to the session that a pooler chose.
	case "55006", "26000":
		v.retryable = true
	case "0A000":
		// The only name for "cached plan must not change result type" that no language setting translates. pgx prepares anew.
		v.retryable = pg.Routine == "RevalidateCachedQuery"
	default:
		switch {
		case class == "08":
			v.code, v.retryable, v.lost = diag.Unreachable, true, true
		// Out of memory, disk full; an error of the disk.
		case class == "53" || class == "58":
			v.retryable = true
		case fatal && class != "22" && class != "42":
			v.code, v.retryable = diag.Unreachable, true
		}
	}
	return v
}

// logName finds a stream's log, not one of its leaves, in "relation … does not exist", whatever its language and quotes.
var logName = regexp.MustCompile(`log_[0-9]+(?:[^0-9A-Za-z_]|$)`)

// leafName finds one of its leaves.
var leafName = regexp.MustCompile(`log_[0-9]+_[0-9]+(?:[^0-9A-Za-z_]|$)`)

// nothingSent reports whether the driver is sure that no byte of the statement reached the server.
func nothingSent(err error) bool {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	if _, ok := errors.AsType[*pgconn.PrepareError](err); ok {
		return true
	}
	return pgconn.SafeToRetry(err)
}
