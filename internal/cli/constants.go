package cli

import "github.com/sqlstreams/sqlstreams/internal/diag"

// constant is the name of a code in Go, which people meet in a program's text.
type constant struct {
	name string
	code diag.Code
}

// constants are those of internal/diag; a test holds the two lists together.
func constants() []constant {
	return []constant{
		{"InvalidName", diag.InvalidName},
		{"InvalidOption", diag.InvalidOption},
		{"InvalidMessage", diag.InvalidMessage},
		{"TooLarge", diag.TooLarge},
		{"StreamNotFound", diag.StreamNotFound},
		{"GroupNotFound", diag.GroupNotFound},
		{"ReservedName", diag.ReservedName},
		{"DeclarationConflict", diag.DeclarationConflict},
		{"Closed", diag.Closed},
		{"AlreadyConsuming", diag.AlreadyConsuming},
		{"StartIgnored", diag.StartIgnored},
		{"DeclarationChanged", diag.DeclarationChanged},
		{"InvalidTransaction", diag.InvalidTransaction},
		{"NotKeyed", diag.NotKeyed},
		{"Abandoned", diag.Abandoned},
		{"Cleared", diag.Cleared},
		{"EventsOverflow", diag.EventsOverflow},
		{"LeaseLost", diag.LeaseLost},
		{"PositionLost", diag.PositionLost},
		{"HardTimeout", diag.HardTimeout},
		{"BrokenUp", diag.BrokenUp},
		{"InsufficientLease", diag.InsufficientLease},
		{"Undecodable", diag.Undecodable},
		{"Stopping", diag.Stopping},
		{"DeadLettered", diag.DeadLettered},
		{"HandlerPanicked", diag.HandlerPanicked},
		{"ClocksParted", diag.ClocksParted},
		{"ConsumeRetrying", diag.ConsumeRetrying},
		{"OutcomeUnknown", diag.OutcomeUnknown},
		{"StreamBusy", diag.StreamBusy},
		{"VersionConflict", diag.VersionConflict},
		{"SchemaNewer", diag.SchemaNewer},
		{"SchemaOld", diag.SchemaOld},
		{"SchemaAltered", diag.SchemaAltered},
		{"MigrationFailed", diag.MigrationFailed},
		{"DutyFailed", diag.DutyFailed},
		{"KeyIndexBuilding", diag.KeyIndexBuilding},
		{"Unreachable", diag.Unreachable},
		{"AuthFailed", diag.AuthFailed},
		{"PermissionDenied", diag.PermissionDenied},
		{"ReadOnlyServer", diag.ReadOnlyServer},
		{"UnsupportedPG", diag.UnsupportedPG},
		{"ListenerLost", diag.ListenerLost},
		{"DatabaseError", diag.DatabaseError},
		{"StatementTimeout", diag.StatementTimeout},
	}
}
