package cli

import (
	"github.com/sqlstreams/sqlstreams"
)

// setOnce gives a message the key under which it is stored once.
func setOnce(*sqlstreams.ProduceOptions, string) error {
	return usagef("--idempotency-key-field is not available yet")
}

// isDuplicate reports whether a message was stored before.
func isDuplicate(sqlstreams.Produced) bool { return false }
