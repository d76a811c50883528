package archtest

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// token of a statement: a word, a placeholder in braces, or one character. Comments and strings are gone; the bodies of functions are not.
type sqlToken struct {
	text string
	line int
}

var sqlPattern = regexp.MustCompile(`--[^\n]*|/\*(?s:.*?)\*/|'(?:[^']|'')*'|\$[A-Za-z_]*\$|"[^"]*"|[A-Za-z_{][A-Za-z0-9_{}]*|\$?[0-9.]+|\S`)

func sqlTokens(text string) (tokens []sqlToken) {
	line, last := 1, 0
	for _, at := range sqlPattern.FindAllStringIndex(text, -1) {
		line += strings.Count(text[last:at[0]], "\n")
		last = at[0]
		t := text[at[0]:at[1]]
		if strings.HasPrefix(t, "--") || strings.HasPrefix(t, "/*") || t[0] == '\'' || (len(t) > 1 && t[0] == '$' && t[len(t)-1] == '$') {
			continue
		}
		// A placeholder in the middle of a name belongs to it: log_{stream}.
		tokens = append(tokens, sqlToken{strings.ToLower(t), line})
	}
	return tokens
}

// sqlRules looks at one file of statements: what every statement keeps to, so that it means the same whatever search_path, time of the
// transaction and later columns are.
func sqlRules(name, text string) (found []string) {
	tokens := sqlTokens(text)
	at := func(i int) string {
		if i < 0 || i >= len(tokens) {
			return ""
		}
		return tokens[i].text
	}
	say := func(i int, format string, args ...any) {
		found = append(found, fmt.Sprintf("%s:%d: ", name, tokens[i].line)+fmt.Sprintf(format, args...))
	}
	local := localNames(tokens)
	var brackets []string  // what stands before each open bracket
	lists := []bool{false} // by depth: inside the list of a FROM
	for i, t := range tokens {
		switch t.text {
		case "(":
			brackets = append(brackets, at(i-1))
			lists = append(lists, false)
		case ")":
			if len(brackets) > 0 {
				brackets, lists = brackets[:len(brackets)-1], lists[:len(lists)-1]
			}
		case "*":
			if at(i-1) == "." && definesColumns(tokens, at(i-2)) {
				break
			}
			if p := at(i - 1); p == "select" || p == "returning" || p == "distinct" || p == "." || (p == "," && slices.Contains([]string{"from", ",", ""}, at(i+1))) {
				say(i, "columns are listed by name, not by *")
			}
		case "now", "transaction_timestamp", "statement_timestamp":
			if at(i+1) == "(" && at(i-1) != "." {
				say(i, "%s() stands still in a transaction: clock_timestamp()", t.text)
			}
		case "current_timestamp", "localtimestamp", "current_time", "localtime", "current_date":
			say(i, "%s stands still in a transaction: clock_timestamp()", t.text)
		}
		depth := len(lists) - 1
		switch {
		case t.text == ";" || slices.Contains([]string{"where", "group", "order", "limit", "returning", "set", "union", "on", "having", "loop", "for"}, t.text):
			lists[depth] = false
			continue
		case t.text == "," && lists[depth]:
		case !opensRelation(at, i, brackets):
			continue
		}
		lists[depth] = lists[depth] || t.text == "from" || t.text == "using"
		next := i + 1
		for at(next) == "only" || at(next) == "lateral" {
			next++
		}
		// What is written to is a relation; what is read may be a function.
		written := t.text == "into" || t.text == "update"
		if !qualified(at, next, local) || (written && at(next+1) == "(") {
			say(i, "%q after %q is not written {schema}.name", at(next), t.text)
		}
	}
	return found
}

// definesColumns looks for "as x (a, b)": there x.* stands for columns that are listed by name just behind.
func definesColumns(tokens []sqlToken, alias string) bool {
	for i := range len(tokens) - 2 {
		if tokens[i].text == "as" && tokens[i+1].text == alias && tokens[i+2].text == "(" {
			return true
		}
	}
	return false
}

// opensRelation reports whether the name of a relation follows the token.
func opensRelation(at func(int) string, i int, brackets []string) bool {
	switch at(i) {
	case "join":
		return true
	case "from":
		// "is distinct from x", "extract(epoch from x)" and their like.
		inside := ""
		if len(brackets) > 0 {
			inside = brackets[len(brackets)-1]
		}
		return at(i-1) != "distinct" && !slices.Contains([]string{"extract", "substring", "trim", "overlay", "position"}, inside)
	case "into":
		return at(i-1) == "insert" || at(i-1) == "merge"
	case "update":
		return !slices.Contains([]string{"for", "key", "do", "on", "or", "before", "after"}, at(i-1))
	case "using":
		// The second relation of a DELETE; not JOIN … USING (…), ORDER BY … USING, CREATE INDEX … USING, RAISE … USING, EXECUTE … USING.
		return at(i-3) == "." && (at(i-5) == "from" || at(i-6) == "from")
	}
	return false
}

// qualified reports whether a relation is safe to name like this: by its schema, a bracket, a function, a list of functions, a name that the
// statement gives itself.
func qualified(at func(int) string, i int, local []string) bool {
	switch first := at(i); first {
	case "(":
		return true
	case "{schema}", "pg_catalog", "information_schema":
		return at(i+1) == "."
	case "rows":
		return at(i+1) == "from"
	default:
		return at(i+1) == "(" || slices.Contains(local, first)
	}
}

// localNames are those of WITH and of parameters and variables that hold rows.
func localNames(tokens []sqlToken) (names []string) {
	for i := range tokens {
		if i+2 >= len(tokens) || tokens[i+1].text != "as" {
			continue
		}
		after := i + 2
		for after < len(tokens)-1 && (tokens[after].text == "not" || tokens[after].text == "materialized") {
			after++
		}
		if tokens[after].text != "(" {
			continue
		}
		name := i
		if tokens[i].text == ")" { // w (a, b) as (
			for name > 0 && tokens[name].text != "(" {
				name--
			}
			name--
		}
		if name > 0 && slices.Contains([]string{"with", "recursive", ","}, tokens[name-1].text) {
			names = append(names, tokens[name].text)
		}
	}
	return names
}

// header: a statement says its name and what it promises: what it does, what it locks, whether it may be repeated.
func header(name, text string) []string {
	lines := strings.SplitN(text, "\n", 3)
	want := "-- name: " + strings.TrimSuffix(path.Base(name), ".sql")
	if lines[0] != want {
		return []string{fmt.Sprintf("%s:1: %q stands where %q belongs", name, lines[0], want)}
	}
	if len(lines) < 3 || len(strings.TrimPrefix(lines[1], "-- ")) < 10 || !strings.HasPrefix(lines[1], "-- ") {
		return []string{fmt.Sprintf("%s:2: no line that says what the statement promises", name)}
	}
	return nil
}

func TestStatementsKeepTheRules(t *testing.T) {
	statements := 0
	for _, name := range files(t) {
		switch {
		case strings.HasPrefix(name, "internal/store/sql/") && strings.HasSuffix(name, ".sql"):
			statements++
			text := string(read(t, name))
			report(t, header(name, text))
			report(t, sqlRules(name, text))
		case strings.HasPrefix(name, "internal/schema/") && strings.HasSuffix(name, ".sql"):
			report(t, sqlRules(name, string(read(t, name))))
		}
	}
	if statements == 0 {
		t.Error("no statements found in internal/store/sql")
	}
}

func TestStatementsThatBreakTheRulesAreRefused(t *testing.T) {
	for _, right := range []string{
		"select c.low from {schema}.claim c where c.group_id = $1",
		"select a.x, b.y from {schema}.a a, {schema}.b b, lateral (select c.z from only {schema}.c c) d where true",
		"select l.id from {schema}.log_{stream} l join {schema}.stream s on s.id = l.id",
		"select count(*), 2 * 3, a.x * b.y from {schema}.a a cross join {schema}.b b",
		"insert into {schema}.duty (name) values ($1) on conflict (name) do update set name = excluded.name where duty.x is distinct from excluded.x",
		"update {schema}.claim c set low = 1 from {schema}.done d where d.x = c.x returning c.low",
		"update only {schema}.claim set low = 1",
		"delete from {schema}.claim c using {schema}.done d where c.x = d.x",
		"select 1 from {schema}.claim c where c.x = 1 for update of c skip locked",
		"select 1 from {schema}.claim c for no key update",
		"select extract(epoch from clock_timestamp() - c.expires_at) from {schema}.claim c",
		"select x.n from unnest($1::bigint[]) as x (n)",
		"select t.n from rows from (unnest($1::int[]), string_to_table($2, ',')) with ordinality as t (a, b, n)",
		"with w as (select 1), v (a) as materialized (select 2) select w.x, v.a from w join v using (a)",
		"with recursive w as (select 1 union all select w.n from w) select w.n from w",
		"select p.oid from pg_catalog.pg_class p",
		"select 'from x' as a -- from x\n/* select * from y */ from {schema}.z z",
		"do $x$ begin select s.id into v from {schema}.stream s; raise exception 'no' using errcode = '22000'; end $x$",
		"select f.now_ms, known from {schema}.f f",
		"select x.* from json_to_record($1) as x (a integer, b text)",
	} {
		if found := sqlRules("x.sql", right); len(found) > 0 {
			t.Errorf("refused, though it is right: %q\n%s", found, right)
		}
	}
	for _, wrong := range []string{
		"select c.low from claim c",
		"select c.low from sqlstreams.claim c",
		"select c.low from {schema}.claim c join done d on true",
		"select c.low from {schema}.claim c, done d where true",
		"select c.low from (select 1 from done) c",
		"select c.low from lateral done c",
		"insert into claim (low) values (1)",
		"update claim set low = 1",
		"update {schema}.claim c set low = 1 from done d",
		"delete from claim",
		"delete from {schema}.claim c using done d where true",
		"with w as (select 1 from done) select w.x from w",
		"do $x$ begin delete from claim; end $x$",
		"select * from {schema}.claim c",
		"select c.* from {schema}.claim c",
		"delete from {schema}.claim c returning *",
		"select c.x, * from {schema}.claim c",
		"select now()",
		"select c.x from {schema}.claim c where c.expires_at < NOW()",
		"select current_timestamp",
		"select localtimestamp",
		"select transaction_timestamp()",
	} {
		if len(sqlRules("x.sql", wrong)) == 0 {
			t.Errorf("not refused: %s", wrong)
		}
	}
	if found := header("a/claim.sql", "-- name: claim\n-- Claims a range. Repeatable.\nselect 1\n"); len(found) > 0 {
		t.Errorf("refused, though it is right: %q", found)
	}
	for _, wrong := range []string{"select 1", "-- name: other\n-- Claims a range.\nselect 1", "-- name: claim\nselect 1\n", "-- name: claim\n--\nselect 1\n", "-- name: claim\n-- Claims a range."} {
		if len(header("a/claim.sql", wrong)) == 0 {
			t.Errorf("not refused: %q", wrong)
		}
	}
}
