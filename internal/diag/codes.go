// Package diag holds the codes of everything that can go wrong or is worth telling, their catalogue, and the one error type.
package diag

// Code names one condition for good: SQL and four digits, never reused.
type Code string

// Codes of input and set-up.
const (
	InvalidName         Code = "SQL0001"
	InvalidOption       Code = "SQL0002"
	InvalidMessage      Code = "SQL0003"
	TooLarge            Code = "SQL0004"
	StreamNotFound      Code = "SQL0005"
	GroupNotFound       Code = "SQL0006"
	ReservedName        Code = "SQL0007"
	DeclarationConflict Code = "SQL0008"
	Closed              Code = "SQL0009"
	AlreadyConsuming    Code = "SQL0010"
	StartIgnored        Code = "SQL0011"
	DeclarationChanged  Code = "SQL0012"
	InvalidTransaction  Code = "SQL0013"
	NotKeyed            Code = "SQL0014"
)

// Codes of a session's metrics. The first and the third are fixed by the product's first documentation.
const (
	Abandoned      Code = "SQL0050"
	Cleared        Code = "SQL0051"
	EventsOverflow Code = "SQL0052"
)

// Codes of consuming.
const (
	LeaseLost         Code = "SQL0100"
	PositionLost      Code = "SQL0101"
	HardTimeout       Code = "SQL0103"
	BrokenUp          Code = "SQL0104"
	InsufficientLease Code = "SQL0105"
	Undecodable       Code = "SQL0106"
	Stopping          Code = "SQL0107"
	DeadLettered      Code = "SQL0108"
	HandlerPanicked   Code = "SQL0109"
	ClocksParted      Code = "SQL0110"
	ConsumeRetrying   Code = "SQL0111"
)

// Codes of producing.
const (
	OutcomeUnknown Code = "SQL0150"
	StreamBusy     Code = "SQL0151"
	// VersionConflict: a message expected another newest version of its key.
	VersionConflict Code = "SQL0152"
)

// Codes of schema and upkeep.
const (
	SchemaNewer     Code = "SQL0200"
	SchemaOld       Code = "SQL0201"
	SchemaAltered   Code = "SQL0202"
	MigrationFailed Code = "SQL0203"
	DutyFailed      Code = "SQL0204"
	// KeyIndexBuilding: upkeep builds the index by key of a stream that was declared keyed later.
	KeyIndexBuilding Code = "SQL0205"
)

// Codes of the connection and the server.
const (
	Unreachable      Code = "SQL0250"
	AuthFailed       Code = "SQL0251"
	PermissionDenied Code = "SQL0252"
	ReadOnlyServer   Code = "SQL0253"
	UnsupportedPG    Code = "SQL0254"
	ListenerLost     Code = "SQL0255"
	DatabaseError    Code = "SQL0256"
	StatementTimeout Code = "SQL0257"
)
