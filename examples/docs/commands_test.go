package docs_test

import (
	"bytes"
	"context"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams/internal/cli"
)

// guides returns the names of the pages, without the generated one.
func guides(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for i := range names {
		names[i] = filepath.Base(names[i])
	}
	if names = slices.DeleteFunc(names, func(n string) bool { return n == "diagnostics.md" }); len(names) < 6 {
		t.Fatalf("%d pages", len(names))
	}
	return names
}

// blocks returns the blocks of one language.
func blocks(page, language string) (found []string) {
	for i, block := range strings.Split("\n"+page, "\n```"+language+"\n") {
		if block, _, _ = strings.Cut(block, "\n```"); i > 0 {
			found = append(found, block)
		}
	}
	return found
}

// inline is a command line within a sentence.
var inline = regexp.MustCompile("`(sqlstreams [^`]*)`")

// commands returns the words of each command line of a page: in its shell blocks, and within its sentences.
func commands(t *testing.T, page string) (found [][]string) {
	t.Helper()
	var lines []string
	for _, block := range blocks(page, "sh") {
		for line := range strings.Lines(block) {
			if line = strings.TrimSuffix(line, "\n"); strings.HasPrefix(line, "sqlstreams ") {
				lines = append(lines, line)
			}
		}
	}
	for _, m := range inline.FindAllStringSubmatch(page, -1) {
		lines = append(lines, strings.NewReplacer("STREAM", "orders", "GROUP", "mailer").Replace(strings.ReplaceAll(m[1], "\n", " ")))
	}
	for _, line := range lines {
		found = append(found, words(t, line))
	}
	return found
}

// words splits a command line as a shell does, as far as the pages need it: blanks, single quotes, and an output into a file or a pipe at the end.
func words(t *testing.T, line string) (all []string) {
	t.Helper()
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			all = append(all, part)
			continue
		}
		part, rest, cut := strings.Cut(part, " >")
		if !cut {
			part, rest, cut = strings.Cut(part, " |")
		}
		all = append(all, strings.Fields(part)...)
		if cut {
			if strings.Contains(rest, "sqlstreams ") {
				t.Errorf("a second command in one line is not looked at: %s", line)
			}
			break
		}
	}
	return all[1:]
}

// Each command line of the pages has verbs, flags and arguments that the command takes. It is run on a database that is not there: an error of usage (2) comes before the database is asked.
func TestCommandLinesOfThePages(t *testing.T) {
	pages := map[string]string{}
	for _, name := range guides(t) {
		pages[name] = page(t, name)
	}
	t.Chdir(t.TempDir()) // some write files
	n := 0
	for name, page := range pages {
		for _, args := range commands(t, page) {
			n++
			if status, said := usage(t, args); status == 2 {
				t.Errorf("%s: sqlstreams %s\n%s", name, strings.Join(args, " "), said)
			}
		}
	}
	if n < 20 {
		t.Errorf("only %d command lines were found", n)
	}
	for _, wrong := range [][]string{{"strem", "list"}, {"group", "show", "orders"}, {"dead", "redrive", "orders", "mailer", "--fast"}, {"dev", "--prot", "1"}} {
		if status, said := usage(t, wrong); status != 2 {
			t.Errorf("sqlstreams %s passes: %d\n%s", strings.Join(wrong, " "), status, said)
		}
	}
}

func usage(t *testing.T, args []string) (status int, said string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	full := append(slices.Clone(args), "--timeout", "1s")
	if args[0] == "dev" || args[0] == "demo" { // these start a server
		full = append(full, "--help")
	}
	env := func(name string) string {
		if name == "DATABASE_URL" {
			return "postgres://nobody@127.0.0.1:1/none?connect_timeout=1"
		}
		return ""
	}
	var out bytes.Buffer
	status = cli.Main(ctx, full, cli.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out, Getenv: env, Terminal: func(any) bool { return false }})
	return status, out.String()
}

// The tables that the page on operating lists are those that there are, and its statements run.
func TestTablesAndStatementsOfThePages(t *testing.T) {
	t.Parallel()
	client, _, db := open(t)
	register[Payment](t, client, "payments.requested")
	conn := db.Conn(t)
	rows, err := conn.Query(t.Context(), `select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
		where n.nspname = 'sqlstreams' and c.relkind in ('r', 'p') and not c.relispartition order by 1`)
	if err != nil {
		t.Fatal(err)
	}
	there, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	_, section, _ := strings.Cut(page(t, "operating.md"), "## What is in the database")
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-zA-Z_]+)` \\|").FindAllStringSubmatch(section, -1) {
		listed = append(listed, strings.Replace(m[1], "log_N", "log_1", 1))
	}
	if slices.Sort(listed); !slices.Equal(listed, there) {
		t.Errorf("operating.md lists the tables\n%v, there are\n%v", listed, there)
	}
	n := 0
	for _, name := range guides(t) {
		for _, statement := range blocks(page(t, name), "sql") {
			n++
			if _, err := conn.Exec(t.Context(), statement); err != nil {
				t.Errorf("%s: %v\n%s", name, err, statement)
			}
		}
	}
	if n == 0 {
		t.Error("no statement was found")
	}
}
