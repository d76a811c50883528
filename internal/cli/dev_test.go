package cli

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// The server that dev prints can be used at once, and nothing of it is left when Ctrl-C was pressed.
func TestDevRunsAServerUntilInterrupted(t *testing.T) {
	t.Parallel()
	port := unusedPort(t)
	p := start(t, &pgtest.Database{}, "dev", "-o", "json", "--port", strconv.Itoa(port))
	var ready devView
	if err := json.NewDecoder(p.out).Decode(&ready); err != nil {
		t.Fatalf("%v; standard error:\n%s", err, p.interrupt(t, ExitDone))
	}
	if ready.Port != port || ready.Schema != "sqlstreams" {
		t.Errorf("%+v, want port %d", ready, port)
	}
	db := &pgtest.Database{DSN: ready.DatabaseURL}
	cli(t, db, "produce", "orders", "--create", `{"id": 1}`)
	cli(t, db, "consume", "orders", "--group", "mailer", "--until", "caught-up")
	var folder string
	if err := pgtest.Connect(t, ready.DatabaseURL).QueryRow(t.Context(), "show data_directory").Scan(&folder); err != nil {
		t.Fatal(err)
	}
	p.interrupt(t, ExitDone)
	if conn, err := pgx.Connect(t.Context(), ready.DatabaseURL); err == nil {
		t.Error("the server still runs:", conn.Close(t.Context()))
	}
	if _, err := os.Stat(folder); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the server's folder is left: %v", err)
	}
}

func unusedPort(t *testing.T) int {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close() //nolint:errcheck // it accepted nothing
	return ln.Addr().(*net.TCPAddr).Port
}
