// Package store sends every statement that the library sends to Postgres. The statements are files in sql/, each with its promise about locks, order and
// repetition; what must run whole under a lock is a procedure in package schema, and its statement is one CALL.
//
// Nothing is SET on a session and nothing depends on which session runs a statement, so a transaction pooler may stand between. Every call has a deadline
// of its own. Results that refer to ids or tokens are authoritative only where the statement held the lock that its promise names.
package store

import (
	"embed"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

//go:embed sql/*.sql
var files embed.FS

// Statements returns all statements by name, with the placeholders of schema.Names and, in those that read a log, {stream} and {leaf}.
var Statements = sync.OnceValue(func() map[string]string {
	entries, err := files.ReadDir("sql")
	if err != nil {
		return nil // impossible: the folder is embedded
	}
	all := make(map[string]string, len(entries))
	for _, entry := range entries {
		text, err := files.ReadFile("sql/" + entry.Name())
		if err != nil {
			return nil // impossible, likewise
		}
		all[strings.TrimSuffix(entry.Name(), ".sql")] = tagged(string(text))
	}
	return all
})

// tagged moves the statement's name from the file's head into the statement, where pg_stat_statements and logs keep it, and drops the other comments.
func tagged(text string) string {
	var name string
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for len(lines) > 0 && strings.HasPrefix(lines[0], "--") {
		if rest, ok := strings.CutPrefix(lines[0], "-- name: "); ok {
			name = rest
		}
		lines = lines[1:]
	}
	return fmt.Sprintf("/* sqlstreams:%s */ %s", name, strings.Join(lines, "\n"))
}

// forLeaf puts a stream's id and its leaf's first id into a statement that reads a leaf. Integers are the only things that ever get into an identifier.
func forLeaf(sql string, stream int, leaf int64) string {
	return strings.NewReplacer("{stream}", strconv.Itoa(stream), "{leaf}", strconv.FormatInt(leaf, 10)).Replace(sql)
}
