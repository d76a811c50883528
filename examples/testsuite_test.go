package examples

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// A module apart, as a user has it, whose tests run in parallel on one database.
func TestSuiteOfAUser(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	suite := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-v", "./...")
	suite.Dir = "testsuite"
	suite.Env = append(os.Environ(), "GOWORK=off", "TEST_DATABASE_URL="+db.DSN)
	out, err := suite.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if n := strings.Count(string(out), "--- PASS"); n < 7 {
		t.Errorf("%d tests have passed\n%s", n, out)
	}
	if n := db.QueryInt(t, `select count(*) from pg_namespace where nspname like 'sqlstreamstest%'`); n != 0 {
		t.Errorf("%d schemas are left", n)
	}
	t.Logf("%s", out)
}
