package diag

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// constants reads the codes from their source, so that none can be forgotten in a list kept by hand: name to code.
func constants(t *testing.T) map[string]Code {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "codes.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]Code{}
	for _, decl := range file.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			spec := spec.(*ast.ValueSpec)
			if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != "Code" || len(spec.Names) != 1 || len(spec.Values) != 1 {
				t.Fatalf("%s: every constant of codes.go is written as Name Code = \"SQLnnnn\"", spec.Names[0].Name)
			}
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			out[spec.Names[0].Name] = Code(value)
		}
	}
	if len(out) == 0 {
		t.Fatal("codes.go holds no codes")
	}
	return out
}

func TestEveryCodeHasOneEntryAndEveryEntryACode(t *testing.T) {
	if _, err := catalogue(); err != nil {
		t.Fatal(err)
	}
	form := regexp.MustCompile(`^SQL[0-9]{4}$`)
	names := map[Code]string{}
	for name, code := range constants(t) {
		if !form.MatchString(string(code)) {
			t.Errorf("%s: %q is not SQL and four digits", name, code)
		}
		if other := names[code]; other != "" {
			t.Errorf("%s and %s are both %s", name, other, code)
		}
		names[code] = name
		if _, ok := Lookup(code); !ok {
			t.Errorf("%s (%s) has no entry in catalogue/", name, code)
		}
	}
	titles := map[string]Code{}
	for _, e := range All() {
		if names[e.Code] == "" {
			t.Errorf("catalogue/%s.md: no constant has this code", e.Code)
		}
		if other, ok := titles[e.Title]; ok {
			t.Errorf("%s and %s have the same title", e.Code, other)
		}
		titles[e.Title] = e.Code
		if Title(e.Code) != e.Title {
			t.Errorf("Title(%s) = %q, the entry says %q", e.Code, Title(e.Code), e.Title)
		}
	}
	if !slices.IsSortedFunc(All(), func(a, b Entry) int { return strings.Compare(string(a.Code), string(b.Code)) }) {
		t.Error("All is not in the order of codes")
	}
}

func TestCodesThatTheFirstDocumentationFixed(t *testing.T) {
	if e, _ := Lookup("SQL0105"); e.Title != "queued message has insufficient lease time" || e.Kind != KindEvent {
		t.Errorf("SQL0105 = %s %q", e.Kind, e.Title)
	}
	if e, _ := Lookup("SQL0050"); e.Metric != "sqlstreams.consumer.session.abandoned" || e.Kind != KindMetric {
		t.Errorf("SQL0050 = %s %q", e.Kind, e.Metric)
	}
	if e, _ := Lookup("SQL0052"); e.Kind != KindEvent || !strings.Contains(e.Title, "metric queue overflowed") {
		t.Errorf("SQL0052 = %s %q", e.Kind, e.Title)
	}
	if title := Title("SQL9999"); title != "unknown condition" {
		t.Errorf("title of a code that does not exist: %q", title)
	}
}

// Every code is used somewhere: as diag.Name in Go code that is neither a test nor this package. What nothing raises is not kept in stock.
func TestEveryCodeIsRaisedSomewhere(t *testing.T) {
	used := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		slash := filepath.ToSlash(path)
		if d.IsDir() {
			if slash == "../../internal/diag" || (strings.HasPrefix(d.Name(), ".") && d.Name() != "." && d.Name() != "..") || d.Name() == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "diag" {
					used[s.Sel.Name] = true
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var missing []string
	for name, code := range constants(t) {
		if !used[name] {
			missing = append(missing, string(code)+" "+name)
		}
	}
	slices.Sort(missing)
	if len(missing) > 0 {
		t.Errorf("%d codes are raised nowhere:\n\t%s", len(missing), strings.Join(missing, "\n\t"))
	}
}

func TestTheDocumentIsUpToDate(t *testing.T) {
	have, err := os.ReadFile("../../docs/diagnostics.md")
	if err != nil {
		t.Fatal(err)
	}
	if strings.ReplaceAll(string(have), "\r\n", "\n") != Document() {
		t.Error("docs/diagnostics.md differs from the catalogue: run go generate ./internal/diag")
	}
	for _, e := range All() {
		if !strings.Contains(string(have), "## "+string(e.Code)+": "+e.Title+"\n") {
			t.Errorf("docs/diagnostics.md lacks %s", e.Code)
		}
	}
}

func TestStatementsOfAnEntry(t *testing.T) {
	e, _ := Lookup(DeadLettered)
	got := e.Statements()
	if len(got) != 2 || !strings.HasPrefix(got[0], "select d.reason") || !strings.HasSuffix(got[1], "order by a.id;") {
		t.Errorf("statements of %s: %q", e.Code, got)
	}
	for _, e := range All() {
		if n := strings.Count(e.Check, "```sql\n"); n != len(e.Statements()) || strings.Count(e.Check, "```") != 2*n {
			t.Errorf("%s: a block of code is not closed, or is not SQL", e.Code)
		}
		for _, s := range e.Statements() {
			if !strings.HasPrefix(s, "select ") || strings.Count(s, ";") != 1 || !strings.HasSuffix(s, ";") {
				t.Errorf("%s: each block is one select, so that trying it changes nothing:\n%s", e.Code, s)
			}
		}
	}
}

func TestMalformedEntriesAreRefused(t *testing.T) {
	const good = "---\ntitle: a title\nkind: event\nseverity: warn\n---\n\n" +
		"## What it means\n\nm\n\n## When it is raised\n\nr\n\n## What to check\n\nc\n\n## What to do\n\nd\n"
	tests := []struct{ name, old, new, want string }{
		{"no head", "---\ntitle", "title", "does not begin"},
		{"head not closed", "warn\n---", "warn\n", "does not begin"},
		{"no title", "title: a title\n", "", "no title"},
		{"empty title", "title: a title", "title: ", "title is empty"},
		{"title twice", "kind: event", "title: b\nkind: event", "title stands twice"},
		{"unknown line", "kind: event", "sort: event", "unknown line"},
		{"unknown kind", "kind: event", "kind: alarm", `kind "alarm"`},
		{"unknown severity", "severity: warn", "severity: bad", `severity "bad"`},
		{"metric without name", "kind: event", "kind: metric", "metric's name"},
		{"name without metric", "kind: event", "kind: event\nmetric: a.b", "metric's name"},
		{"section missing", "## What to check\n\nc\n\n", "", "exactly the sections"},
		{"section twice", "## What to check", "## What to do", `section "What to do" stands where`},
		{"section empty", "\nr\n", "\n", "is empty"},
		{"text before the sections", "---\n\n## What it", "---\n\nhello\n\n## What it", "exactly the sections"},
	}
	if e, err := parse("SQL0001", []byte(good)); err != nil || e.Remedy != "d" || e.Title != "a title" {
		t.Fatalf("the good entry: %+v, %v", e, err)
	}
	if _, err := parse("SQL0001", []byte(strings.ReplaceAll(good, "\n", "\r\n"))); err != nil {
		t.Errorf("line ends of another system: %v", err)
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			bad := strings.Replace(good, test.old, test.new, 1)
			if bad == good {
				t.Fatal("the test changes nothing")
			}
			all, err := load(fstest.MapFS{
				"catalogue/SQL0001.md": {Data: []byte(bad)},
				"catalogue/SQL0002.md": {Data: []byte(good)},
			})
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "SQL0001") {
				t.Errorf("error %v, want one that says %q", err, test.want)
			}
			if len(all) != 1 || all["SQL0002"].Title != "a title" {
				t.Errorf("the good entry beside it was not read: %v", all)
			}
		})
	}
}
