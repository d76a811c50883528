// Package schema creates and upgrades an installation: the tables, the log's template and the procedures that run inside the server.
package schema

import (
	"crypto/sha256"
	"embed"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/sqlstreams/sqlstreams/internal/diag"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Names are the identifiers and lock keys of one installation, all derived from its schema's name.
type Names struct {
	// Schema is the name as the user gave it, Quoted as it stands in SQL.
	Schema, Quoted string
	// Channel is what announcements are sent on.
	Channel  string
	replacer *strings.Replacer
	locks    map[string]int32
}

// maxSchemaBytes is what Postgres keeps of an identifier.
const maxSchemaBytes = 63

// bodyTag is the dollar quote around the bodies of procedures; a schema's name stands inside them.
const bodyTag = "$sqlstreams$"

// NewNames checks a schema's name and derives everything from it.
func NewNames(name string) (*Names, error) {
	bad := func(detail string) error {
		return &diag.Error{Code: diag.InvalidName, Op: "use", Object: "schema " + strconv.Quote(name), Detail: detail}
	}
	switch {
	case name == "" || len(name) > maxSchemaBytes:
		return nil, bad("a schema's name has 1 to 63 bytes")
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return nil, bad("a schema's name is valid UTF-8 without NUL")
	case strings.HasPrefix(name, "pg_"):
		return nil, bad("names that begin with pg_ belong to Postgres")
	case strings.Contains(name, bodyTag):
		return nil, bad("a schema's name does not contain " + bodyTag)
	}
	quoted := quote(name)
	literal := strings.ReplaceAll(quoted, "'", "''")
	n := &Names{Schema: name, Quoted: quoted, Channel: "sqlstreams_" + hex.EncodeToString(digest(name, "channel"))[:8], locks: map[string]int32{}}
	pairs := []string{"{schema}", quoted, "{schema_text}", literal, "{log}", "'" + literal + ".log_'", "{inbox}", "'" + literal + ".inbox_'"}
	for _, kind := range []string{"stream", "group", "leaves", "register", "inbox", "compaction", "migrate"} {
		n.locks[kind] = int32(binary.BigEndian.Uint32(digest(name, kind)))
		pairs = append(pairs, "{class_"+kind+"}", strconv.FormatInt(int64(n.locks[kind]), 10))
	}
	n.replacer = strings.NewReplacer(pairs...)
	return n, nil
}

// quote is the one place in which an identifier is built from what a user chose.
func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func digest(name, kind string) []byte {
	sum := sha256.Sum256([]byte("sqlstreams\x00" + kind + "\x00" + name))
	return sum[:]
}

// Expand puts the installation's names into a statement.
func (n *Names) Expand(sql string) string { return n.replacer.Replace(sql) }

// Lock returns the first key of the advisory locks of a kind: stream, group, leaves, register, inbox, compaction, migrate.
func (n *Names) Lock(kind string) int32 { return n.locks[kind] }

// Migration is one numbered step, as its file says.
type Migration struct {
	Version     int
	Title       string
	Breaking    bool // older programs must not run on it
	Transaction bool // runs in a transaction of its own
	LongestLock string
	SQL         string // with the placeholders of Expand
	Checksum    string
}

// Migrations returns all steps in order.
func Migrations() ([]Migration, error) {
	files, err := fs.Glob(migrationFiles, "migrations/*.sql")
	if err != nil {
		return nil, err
	}
	all := make([]Migration, 0, len(files))
	for i, file := range files {
		text, err := migrationFiles.ReadFile(file)
		if err != nil {
			return nil, err
		}
		m, err := parse(strings.TrimPrefix(file, "migrations/"), string(text))
		if err != nil {
			return nil, err
		}
		if m.Version != i+1 {
			return nil, fmt.Errorf("migration %s: number %d expected", file, i+1)
		}
		all = append(all, m)
	}
	return all, nil
}

func parse(file, text string) (Migration, error) {
	number, _, _ := strings.Cut(file, "_")
	version, err := strconv.Atoi(number)
	if err != nil {
		return Migration{}, fmt.Errorf("migration %s: its name does not begin with a number", file)
	}
	sum := sha256.Sum256([]byte(text))
	m := Migration{Version: version, SQL: text, Checksum: hex.EncodeToString(sum[:8])}
	header := map[string]string{}
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, "-- ")
		if !ok {
			break
		}
		if key, value, ok := strings.Cut(strings.TrimSpace(rest), ": "); ok {
			header[key] = value
		}
	}
	for _, key := range []string{"title", "breaking", "transaction", "longest lock"} {
		if header[key] == "" {
			return Migration{}, fmt.Errorf("migration %s: its header has no %q", file, key)
		}
	}
	m.Title, m.LongestLock = header["title"], header["longest lock"]
	m.Breaking, m.Transaction = header["breaking"] == "yes", header["transaction"] == "yes"
	return m, nil
}
