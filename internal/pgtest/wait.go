package pgtest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Eventually waits until cond holds, looking every two milliseconds, and fails
// the test with what if it does not within that time. Cond is called at least
// once, on the test's goroutine, so it may call t.Fatal.
func Eventually(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline.C:
			// The last look may have been before a long pause of the machine.
			if !cond() {
				t.Fatalf("not within %v: %s", within, what)
			}
			return
		}
	}
}

// Querier is a connection, a pool or a transaction.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// BackendPID returns the process id of the session behind a connection or
// transaction. On a pool it is that of any of its sessions.
func BackendPID(t testing.TB, q Querier) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), opTimeout)
	defer cancel()
	var pid int
	if err := q.QueryRow(ctx, "select pg_backend_pid()").Scan(&pid); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return pid
}

// Blocked waits until the session with that process id waits for a lock that
// another holds; for scripts of interleaved sessions. It asks over q, which
// must not be the session itself and may be any role's.
func Blocked(t testing.TB, q Querier, pid int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), opTimeout)
	defer cancel()
	Eventually(t, 10*time.Second, "a session waits for a lock", func() bool {
		// pg_stat_activity shows a wait only to the same role or a monitor.
		const sql = "select exists (select from pg_locks where pid = $1 and not granted)"
		var waits bool
		if err := q.QueryRow(ctx, sql, pid).Scan(&waits); err != nil {
			t.Fatalf("pgtest: %v", err)
		}
		return waits
	})
}
