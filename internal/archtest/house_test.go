package archtest

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// maxLines is how long a Go file may be before it is two subjects.
const maxLines = 600

// exceptions are the places in which a rule is broken on purpose: "file name" (of a variable) or file, with the reason.
func exceptions() map[string]string {
	return map[string]string{
		"internal/pgtest/server.go shared": "one server for all tests of a process: starting one per test would take most of the time",
	}
}

// panics are the files that may panic, with the reason.
func panics() map[string]string {
	return map[string]string{}
}

func TestNoInit(t *testing.T) {
	for _, s := range sources(t) {
		report(t, initFunctions(s))
	}
	refuses(t, initFunctions, "x.go", []string{"package p\nfunc (x T) init() {}\nfunc initialise() {}"}, "package p\nfunc init() {}")
}

// initFunctions: what happens on import cannot be ordered, configured or tested.
func initFunctions(s source) (found []string) {
	for _, decl := range s.syntax.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Name.Name == "init" && f.Recv == nil {
			found = append(found, fmt.Sprintf("%s:%d: func init", s.name, s.line(f)))
		}
	}
	return found
}

func TestNoMutablePackageVariables(t *testing.T) {
	used := map[string]bool{}
	for _, s := range sources(t) {
		for _, found := range packageVariables(s) {
			if exceptions()[found.key] != "" {
				used[found.key] = true
				continue
			}
			t.Error(found.message)
		}
	}
	for key := range exceptions() {
		if !used[key] {
			t.Errorf("the exception for %s is not needed", key)
		}
	}
	rule := func(s source) (found []string) {
		for _, v := range packageVariables(s) {
			found = append(found, v.message)
		}
		return found
	}
	const head = "package p\nimport (\n\"embed\"; \"errors\"; \"flag\"; \"regexp\"; \"sync\"\n)\n"
	right := []string{
		head + "var _ I = (*T)(nil)",
		head + "//go:embed x\nvar files embed.FS",
		head + "var ErrX = errors.New(\"x\")",
		head + "var (\n\tpattern = regexp.MustCompile(`x`)\n\ttable = sync.OnceValue(load)\n\tboth = sync.OnceValues(load)\n)",
		head + "func f() { var x int; _ = x }",
	}
	wrong := []string{
		head + "var x int",
		head + "var names = []string{\"a\"}",
		head + "var m = map[string]int{}",
		head + "var mu sync.Mutex",
		head + "var ErrX error = &Error{}",
		head + "var (\n\tpattern = regexp.MustCompile(`x`)\n\tcount = 0\n)",
		head + "var a, b = errors.New(\"a\"), 1",
		head + "var f = func() {}",
	}
	refuses(t, rule, "x.go", right, append(wrong, head+"var update = flag.Bool(\"update\", false, \"\")")...)
	refuses(t, rule, "x_test.go", append(right, head+"var update = flag.Bool(\"update\", false, \"\")"), wrong...)
}

type variable struct{ key, message string }

// packageVariables: whatever anybody may write to at any time belongs to a value that somebody made. What cannot be changed may stay: errors,
// embedded files, patterns, values computed once, assertions.
func packageVariables(s source) (found []variable) {
	for _, decl := range s.syntax.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.VAR {
			continue
		}
		for _, spec := range group.Specs {
			spec := spec.(*ast.ValueSpec)
			for i, name := range spec.Names {
				if name.Name == "_" || selector(spec.Type) == "embed.FS" || (i < len(spec.Values) && constantCall(spec.Values[i], s.isTest())) {
					continue
				}
				found = append(found, variable{s.name + " " + name.Name, fmt.Sprintf("%s:%d: package variable %s can be written to", s.name, s.line(name), name.Name)})
			}
		}
	}
	return found
}

// constantCall reports whether a value comes from a call whose result nobody can change.
func constantCall(value ast.Expr, test bool) bool {
	call, ok := value.(*ast.CallExpr)
	if !ok {
		return false
	}
	switch name := selector(call.Fun); name {
	case "errors.New", "regexp.MustCompile", "sync.OnceValue", "sync.OnceValues", "strings.NewReplacer":
		return true
	default:
		return test && strings.HasPrefix(name, "flag.")
	}
}

// selector returns "x.Name" for such an expression, else "".
func selector(e ast.Expr) string {
	if s, ok := e.(*ast.SelectorExpr); ok {
		if x, ok := s.X.(*ast.Ident); ok {
			return x.Name + "." + s.Sel.Name
		}
	}
	return ""
}

func TestNoPanic(t *testing.T) {
	for _, s := range sources(t) {
		if panics()[s.name] == "" {
			report(t, panicCalls(s))
		}
	}
	for name := range panics() {
		if !slices.ContainsFunc(sources(t), func(s source) bool { return s.name == name && len(panicCalls(s)) > 0 }) {
			t.Errorf("%s does not panic: take it off the list", name)
		}
	}
	refuses(t, panicCalls, "x.go", []string{"package p\nfunc f() { x.panic(1); panicked() }"}, "package p\nfunc f() { panic(1) }", "package p\nfunc f() { go func() { panic(nil) }() }")
	refuses(t, panicCalls, "x_test.go", []string{"package p\nfunc f() { panic(1) }"})
}

// panicCalls: a library returns errors. Tests may panic, in handlers for instance.
func panicCalls(s source) (found []string) {
	if s.isTest() {
		return nil
	}
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if f, ok := call.Fun.(*ast.Ident); ok && f.Name == "panic" {
				found = append(found, fmt.Sprintf("%s:%d: panic", s.name, s.line(call)))
			}
		}
		return true
	})
	return found
}

func TestNoRealSleepsInTests(t *testing.T) {
	for _, s := range sources(t) {
		report(t, realSleeps(s))
	}
	refuses(t, realSleeps, "x_test.go",
		[]string{"package p\nimport (\"time\"; \"testing/synctest\")\nfunc f() { time.Sleep(1) }", "package p\nfunc f() { time.NewTimer(1) }"},
		"package p\nimport \"time\"\nfunc f() { time.Sleep(1) }", "package p\nimport \"time\"\nfunc f() { <-time.After(1) }")
	refuses(t, realSleeps, "x.go", []string{"package p\nimport \"time\"\nfunc f() { time.Sleep(1) }"})
}

// realSleeps: a test that waits for time to pass is slow on a good day and red on a bad one. Wait for what should happen, or use a bubble.
func realSleeps(s source) (found []string) {
	if !s.isTest() || slices.ContainsFunc(s.syntax.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == strconv.Quote("testing/synctest") }) {
		return nil
	}
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		if e, ok := n.(ast.Expr); ok {
			if name := selector(e); name == "time.Sleep" || name == "time.After" {
				found = append(found, fmt.Sprintf("%s:%d: %s without synctest", s.name, s.line(e), name))
			}
		}
		return true
	})
	return found
}

func TestNoSkips(t *testing.T) {
	for _, s := range sources(t) {
		report(t, skips(s))
	}
	refuses(t, skips, "x_test.go", []string{"package p\nfunc f() { r.Skip(); t.Run(\"Skip\", nil) }"},
		"package p\nfunc f() { t.Skip() }", "package p\nfunc f() { tb.Skipf(\"\") }", "package p\nfunc f() { b.SkipNow() }")
}

// skips: a test that cannot run fails, or nobody notices that it does not run.
func skips(s source) (found []string) {
	ast.Inspect(s.syntax, func(n ast.Node) bool {
		e, ok := n.(ast.Expr)
		if !ok {
			return true
		}
		receiver, method, _ := strings.Cut(selector(e), ".")
		if slices.Contains([]string{"t", "tb", "b", "f"}, receiver) && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, method) {
			found = append(found, fmt.Sprintf("%s:%d: %s.%s", s.name, s.line(e), receiver, method))
		}
		return true
	})
	return found
}

func TestFilesAreShort(t *testing.T) {
	for _, s := range sources(t) {
		report(t, longFiles(s))
	}
	lines := strings.Repeat("//\n", maxLines-1)
	refuses(t, longFiles, "x.go", []string{"package p\n" + lines, "// Code generated by x. DO NOT EDIT.\n\npackage p\n" + lines + lines}, "package p\n//\n"+lines)
}

func longFiles(s source) []string {
	if n := bytes.Count(s.text, []byte("\n")); n > maxLines && !ast.IsGenerated(s.syntax) {
		return []string{fmt.Sprintf("%s: %d lines, more than %d", s.name, n, maxLines)}
	}
	return nil
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	documented, dirs := map[string]bool{}, map[string]bool{}
	for _, s := range sources(t) {
		// The tests of a package, under its name or beside it, need none.
		if !s.isTest() {
			dirs[s.dir()] = true
		}
		documented[s.dir()] = documented[s.dir()] || (!s.isTest() && packageComment(s))
	}
	for dir := range dirs {
		if !documented[dir] {
			t.Errorf("%s: no file has a package comment", dir)
		}
	}
	refuses(t, func(s source) []string {
		if packageComment(s) {
			return nil
		}
		return []string{"no comment"}
	}, "x.go", []string{"// Package p holds.\npackage p", "// Command p runs.\npackage main", "// P shows how.\npackage main"}, "package p", "// holds things.\n\npackage p", "//go:build linux\n\npackage p")
}

// packageComment reports whether a file has the comment that tools show for its package.
func packageComment(s source) bool {
	text := s.syntax.Doc.Text()
	return s.syntax.Name.Name == "main" && text != "" || strings.HasPrefix(text, "Package "+s.syntax.Name.Name+" ")
}
