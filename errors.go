package sqlstreams

import (
	"time"

	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// Error is what every failing call returns: a Code (SQL and four digits, explained in docs/diagnostics.md), the operation and its object, whether the
// identical call may succeed later (Retryable), whether it may have taken effect all the same (OutcomeUnknown), and the cause (Unwrap).
type Error = diag.Error

// Code names one condition for good.
type Code = diag.Code

// The conditions that a caller may want to tell apart, for errors.Is.
const (
	ErrStreamNotFound      = diag.ErrStreamNotFound      // the stream does not exist, or is deleted
	ErrGroupNotFound       = diag.ErrGroupNotFound       // the consumer group does not exist, or is deleted
	ErrInvalidName         = diag.ErrInvalidName         // a name that streams and groups cannot have
	ErrReservedName        = diag.ErrReservedName        // a name that begins with __system.
	ErrInvalidOption       = diag.ErrInvalidOption       // a negative or contradictory setting
	ErrInvalidMessage      = diag.ErrInvalidMessage      // a payload, key or header that cannot be stored exactly
	ErrTooLarge            = diag.ErrTooLarge            // a payload, key or header beyond the stream's limit
	ErrDeclarationConflict = diag.ErrDeclarationConflict // the stream exists with another kind of payload
	ErrClosed              = diag.ErrClosed              // the client is closed
	ErrAlreadyConsuming    = diag.ErrAlreadyConsuming    // a second Consume at the same time on one instance
	ErrLeaseLost           = diag.ErrLeaseLost           // a result was refused because its lease had gone
	ErrPositionLost        = diag.ErrPositionLost        // messages that a group had not reached are gone
	ErrStopping            = diag.ErrStopping            // cause of a handler's context after StopTimeout
	ErrOutcomeUnknown      = diag.ErrOutcomeUnknown      // the call may or may not have taken effect
	ErrStreamBusy          = diag.ErrStreamBusy          // a lock was not to be had in time
	ErrSchemaOld           = diag.ErrSchemaOld           // the schema is missing or older than this program
	ErrSchemaNewer         = diag.ErrSchemaNewer         // the schema is newer than this program can work with
	ErrUnreachable         = diag.ErrUnreachable         // no connection to the server
	ErrPermissionDenied    = diag.ErrPermissionDenied    // the role lacks a right
	ErrReadOnlyServer      = diag.ErrReadOnlyServer      // a standby, or a read-only transaction
	ErrInvalidTransaction  = diag.ErrInvalidTransaction  // a transaction that is nil, over, aborted or of another database
	ErrSchemaAltered       = diag.ErrSchemaAltered       // the schema's migrations are not those of this program
	ErrAuthFailed          = diag.ErrAuthFailed          // the server refused user, password or certificate
	ErrUnsupportedPG       = diag.ErrUnsupportedPG       // the server's version or encoding is not supported
	ErrVersionConflict     = diag.ErrVersionConflict     // the key has another newest version than was expected; see VersionConflict
	ErrNotKeyed            = diag.ErrNotKeyed            // the stream is not declared Keyed
	ErrKeyIndexBuilding    = diag.ErrKeyIndexBuilding    // the stream's index by key is still being built
	ErrStatementTimeout    = diag.ErrStatementTimeout    // the call's time, or the server's for a statement, was over
)

// Delay, returned by a handler (wrapped or not), runs the message again after d without counting a failure. At most 30 days; less than 0 counts as 0.
func Delay(d time.Duration) error { return consume.Delay(d) }

// Terminal, returned by a handler (wrapped or not), ends the automatic attempts of the message now: it becomes a dead letter with err's text.
func Terminal(err error) error { return consume.Terminal(err) }
