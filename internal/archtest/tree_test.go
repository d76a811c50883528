package archtest

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const modulePath = "github.com/sqlstreams/sqlstreams"

// moduleRoot is where this package's module begins. Tests run in the folder of their package.
const moduleRoot = "../.."

// source is one Go file of this module.
type source struct {
	name   string // from the module's root, with slashes
	text   []byte
	syntax *ast.File
	fset   *token.FileSet
}

func (s source) dir() string  { return path.Dir(s.name) }
func (s source) isTest() bool { return strings.HasSuffix(s.name, "_test.go") }

// line is where a node stands, for messages.
func (s source) line(n ast.Node) int { return s.fset.Position(n.Pos()).Line }

// sources returns every Go file of this module, those behind build tags too. Nested modules have rules of their own.
func sources(t *testing.T) []source {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// parsed is the tree, parsed once for all tests; none of them changes it.
var parsed = sync.OnceValues(func() ([]source, error) {
	names, err := listed()
	if err != nil {
		return nil, err
	}
	var all []source
	for _, name := range names {
		if !strings.HasSuffix(name, ".go") || inNestedModule(name) {
			continue
		}
		text, err := load(name)
		if err != nil {
			return nil, err
		}
		s, err := parse(name, text)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	if len(all) == 0 {
		return nil, errors.New("no Go files found")
	}
	return all, nil
})

func parse(name string, text []byte) (source, error) {
	fset := token.NewFileSet()
	syntax, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	return source{name: name, text: text, syntax: syntax, fset: fset}, err
}

func parseSource(t *testing.T, name, text string) source {
	t.Helper()
	s, err := parse(name, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// files lists the files of the tree: from the module's root, with slashes.
func files(t *testing.T) []string {
	t.Helper()
	all, err := listed()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// listed are the files that are, or would be, under version control. Without git (an unpacked archive) it is everything there is.
var listed = sync.OnceValues(func() (all []string, err error) {
	if _, err := os.Stat(filepath.Join(moduleRoot, ".git")); err != nil {
		err := fs.WalkDir(os.DirFS(moduleRoot), ".", func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				all = append(all, name)
			}
			return err
		})
		return all, err
	}
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = moduleRoot
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		// A file that was removed and not committed yet is still listed.
		if info, err := os.Stat(filepath.Join(moduleRoot, filepath.FromSlash(name))); err == nil && info.Mode().IsRegular() {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
})

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := load(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func load(name string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(moduleRoot, filepath.FromSlash(name)))
	return bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")), err
}

func inNestedModule(name string) bool {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if _, err := os.Stat(filepath.Join(moduleRoot, filepath.FromSlash(dir), "go.mod")); err == nil {
			return true
		}
	}
	return false
}

// report fails the test with everything that a rule found.
func report(t *testing.T, found []string) {
	t.Helper()
	for _, f := range found {
		t.Error(f)
	}
}

// refuses checks that a rule objects to each text, and to none of what is right.
func refuses(t *testing.T, rule func(source) []string, name string, right []string, wrong ...string) {
	t.Helper()
	for _, text := range right {
		if found := rule(parseSource(t, name, text)); len(found) > 0 {
			t.Errorf("refused, though it is right: %q\n%s", found, text)
		}
	}
	for _, text := range wrong {
		if len(rule(parseSource(t, name, text))) == 0 {
			t.Errorf("not refused:\n%s", text)
		}
	}
}
