package store

import "github.com/sqlstreams/sqlstreams/internal/pgserver"

const pgserverFast = pgserver.Fast

// serverOptions are for tests that restart or crash their own server.
func serverOptions() pgserver.Options { return pgserver.Options{} }
