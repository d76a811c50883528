package store

import (
	"context"
	"strings"
	"testing"

	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// prepareAll asks the server to prepare every statement, which resolves each name, column and type in it.
func prepareAll(t *testing.T, in *installation) {
	t.Helper()
	conn := in.db.Conn(t)
	for name, sql := range in.text {
		if !strings.HasPrefix(sql, "/* sqlstreams:"+name+" */") {
			t.Errorf("%s: its tag is not its file's name: %.40s", name, sql)
		}
		if strings.Contains(sql, "{stream}") {
			sql = forLeaf(sql, 1, 1)
		}
		if strings.HasPrefix(strings.TrimSpace(strings.TrimPrefix(sql, "/* sqlstreams:"+name+" */")), "call") {
			// The server resolves a CALL only when it runs; describing it is what can be done without running it.
			if _, err := conn.Prepare(context.Background(), name, sql); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if _, err := conn.Prepare(context.Background(), name, sql); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEveryStatementCanBePrepared(t *testing.T) {
	in := install(t)
	if in.stream(t, "first", 0) != 1 {
		t.Fatal("the first stream of an installation has the id 1")
	}
	prepareAll(t, in)
}

func TestSchemaNamesThatNeedQuoting(t *testing.T) {
	for _, name := range []string{"with space", `quo"te`, `apo'strophe`, "Capital", "percent%s", "émile", "select", `a"."b`, "{schema}", `back\slash`} {
		t.Run(name, func(t *testing.T) {
			in := installAs(t, pgtest.NewDatabase(t), name, nil)
			stream := in.stream(t, "s", 0)
			in.group(t, stream, "g", "beginning")
			if reply := in.append(t, stream, `{"a":1}`); reply.First != 1 {
				t.Fatalf("first id %d", reply.First)
			}
			prepareAll(t, in)
		})
	}
}
