package diag_test

import (
	"strings"
	"testing"

	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
	"github.com/sqlstreams/sqlstreams/internal/schema"
)

// What an operator pastes in the middle of the night must run: every ready statement of the catalogue, on an installation with one stream.
func TestReadyStatementsRun(t *testing.T) {
	db := pgtest.NewDatabase(t)
	names, err := schema.NewNames("sqlstreams")
	if err != nil {
		t.Fatal(err)
	}
	conn := db.Conn(t)
	if _, err := schema.Up(t.Context(), conn, names); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `call sqlstreams.register_stream('payments.requested', 'json', '{}', true, null, null, null, null, null, null)`); err != nil {
		t.Fatal(err)
	}
	superuser := db.SuperuserConn(t)
	for _, e := range diag.All() {
		for _, statement := range e.Statements() {
			on := conn
			if strings.Contains(statement, "pg_hba_file_rules") {
				on = superuser
			}
			if _, err := on.Exec(t.Context(), statement); err != nil {
				t.Errorf("%s: %v\n%s", e.Code, err, statement)
			}
		}
	}
}
