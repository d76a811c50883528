package diag

// Sentinel is a condition to compare errors with: errors.Is(err, ErrLeaseLost) holds for every Error of that code in err's chain. It is a
// constant rather than a variable, so that nothing can be written to it.
type Sentinel Code

// The conditions a caller may want to tell apart.
const (
	ErrStreamNotFound      = Sentinel(StreamNotFound)
	ErrGroupNotFound       = Sentinel(GroupNotFound)
	ErrInvalidName         = Sentinel(InvalidName)
	ErrReservedName        = Sentinel(ReservedName)
	ErrInvalidOption       = Sentinel(InvalidOption)
	ErrInvalidMessage      = Sentinel(InvalidMessage)
	ErrTooLarge            = Sentinel(TooLarge)
	ErrDeclarationConflict = Sentinel(DeclarationConflict)
	ErrClosed              = Sentinel(Closed)
	ErrAlreadyConsuming    = Sentinel(AlreadyConsuming)
	ErrLeaseLost           = Sentinel(LeaseLost)
	ErrPositionLost        = Sentinel(PositionLost)
	ErrStopping            = Sentinel(Stopping)
	ErrOutcomeUnknown      = Sentinel(OutcomeUnknown)
	ErrStreamBusy          = Sentinel(StreamBusy)
	ErrSchemaOld           = Sentinel(SchemaOld)
	ErrSchemaNewer         = Sentinel(SchemaNewer)
	ErrUnreachable         = Sentinel(Unreachable)
	ErrPermissionDenied    = Sentinel(PermissionDenied)
	ErrReadOnlyServer      = Sentinel(ReadOnlyServer)
	ErrInvalidTransaction  = Sentinel(InvalidTransaction)
	ErrSchemaAltered       = Sentinel(SchemaAltered)
	ErrAuthFailed          = Sentinel(AuthFailed)
	ErrUnsupportedPG       = Sentinel(UnsupportedPG)
	ErrStatementTimeout    = Sentinel(StatementTimeout)
	ErrVersionConflict     = Sentinel(VersionConflict)
	ErrNotKeyed            = Sentinel(NotKeyed)
	ErrKeyIndexBuilding    = Sentinel(KeyIndexBuilding)
)

func (s Sentinel) Error() string { return string(s) + ": " + Title(Code(s)) }
