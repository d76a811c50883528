package archtest

import (
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Third-party modules. The first three are what users of the library inherit; the others are for tests only.
const (
	pgx    = "github.com/jackc/pgx/v5"
	uuid   = "github.com/google/uuid"
	xsync  = "golang.org/x/sync"
	gocmp  = "github.com/google/go-cmp"
	rapid  = "pgregory.net/rapid"
	goleak = "go.uber.org/goleak"

	cobra      = "github.com/spf13/cobra"
	testscript = "github.com/rogpeppe/go-internal"
)

// allowed is what a package may import besides the standard library: packages of this module ("." is the root, a trailing /... means all
// below) and other modules. Tests may import any package of this module.
type allowed struct {
	pkg     string
	own     []string
	modules []string
}

// arrows is the table of DESIGN.md's map: imports point downward only. A new package needs a line here, and a reason if it points elsewhere.
func arrows() []allowed {
	everything := []string{".", "./..."}
	return []allowed{
		{".", []string{"internal/consume", "internal/produce", "internal/wake", "internal/manager", "internal/store", "internal/schema", "internal/delivery", "internal/diag"},
			[]string{pgx, uuid, xsync}},

		// The engine declares the store it needs, so it imports none.
		{"internal/consume", []string{"internal/delivery", "internal/diag"}, []string{uuid, xsync}},
		{"internal/produce", []string{"internal/store", "internal/delivery", "internal/diag"}, []string{pgx, uuid, xsync}},
		{"internal/wake", []string{"internal/store", "internal/delivery", "internal/diag"}, []string{pgx, uuid, xsync}},
		{"internal/manager", []string{"internal/store", "internal/schema", "internal/delivery", "internal/diag"}, []string{pgx, uuid, xsync}},

		{"internal/store", []string{"internal/schema", "internal/delivery", "internal/diag"}, []string{pgx, uuid, xsync}},
		{"internal/schema", []string{"internal/delivery", "internal/diag"}, []string{pgx}},
		{"internal/delivery", []string{"internal/diag"}, []string{uuid}},
		{"internal/diag", nil, nil},
		{"internal/diag/cmd/gendocs", []string{"internal/diag"}, nil},

		// For tests. What these find or write must not depend on what they judge.
		{"internal/pgserver", nil, []string{pgx, xsync}},
		{"internal/pgserver/cmd/pgfind", []string{"internal/pgserver"}, nil},
		{"internal/pgtest", []string{"internal/pgserver", "internal/schema", "internal/diag"}, []string{pgx, uuid}},
		{"internal/storetest", []string{"internal/consume", "internal/delivery", "internal/diag"}, []string{uuid, gocmp, rapid}},
		{"internal/ledger", nil, []string{uuid}},
		{"internal/reference", nil, nil},
		{"internal/archtest", nil, nil},
		{"model", nil, nil},
		// For users' tests: what they use of the product, a new installation in one round trip, and the context of a handler without a session.
		{"sqlstreamstest", []string{".", "internal/consume", "internal/delivery", "internal/schema"}, []string{pgx}},

		// Programs.
		{"internal/chaos/...", everything, []string{pgx, uuid, xsync}},
		{"examples/...", []string{".", "sqlstreamstest", "internal/pgserver", "internal/ledger", "internal/chaos/..."}, []string{pgx, uuid, xsync}},
		// The command line and the demo use the product as its users do, through the root package; the rest is what they cannot get there: migrations, codes, a throw-away server.
		{"internal/demo", []string{".", "internal/pgserver", "internal/ledger"}, []string{pgx, uuid, xsync}},
		{"internal/cli", []string{".", "internal/demo", "internal/pgserver", "internal/schema", "internal/store", "internal/diag"}, []string{pgx, uuid, xsync, cobra}},
		{"cmd/sqlstreams", []string{"internal/cli"}, nil},
	}
}

// pure are the packages that compile without a database driver, through whatever they import.
func pure() []string {
	return []string{"internal/consume", "internal/delivery", "internal/diag", "internal/ledger", "internal/reference"}
}

// matches reports whether a pattern of the table means the package.
func matches(pattern, pkg string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "/..."); ok {
		return prefix == "." || pkg == prefix || strings.HasPrefix(pkg, prefix+"/")
	}
	return pattern == pkg
}

// forbiddenImport says why a package may not import a path; "" if it may.
func forbiddenImport(table []allowed, pkg, imported string, test bool) string {
	i := slices.IndexFunc(table, func(a allowed) bool { return matches(a.pkg, pkg) })
	if i < 0 {
		return "has no line in the table of imports"
	}
	if own, ok := ownPackage(imported); ok {
		if test || own == pkg || slices.ContainsFunc(table[i].own, func(p string) bool { return matches(p, own) }) {
			return ""
		}
		return "may not import " + own
	}
	if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
		return "" // the standard library
	}
	modules := table[i].modules
	if test {
		modules = append([]string{pgx, uuid, xsync, gocmp, rapid, goleak, testscript}, modules...)
	}
	if slices.ContainsFunc(modules, func(m string) bool { return imported == m || strings.HasPrefix(imported, m+"/") }) {
		return ""
	}
	return "may not import " + imported
}

// ownPackage returns a path of this module from its root.
func ownPackage(imported string) (string, bool) {
	if imported == modulePath {
		return ".", true
	}
	return strings.CutPrefix(imported, modulePath+"/")
}

func TestImportsPointDownward(t *testing.T) {
	for _, s := range sources(t) {
		// A folder of programs that only tests build.
		if slices.Contains(strings.Split(s.name, "/"), "testdata") {
			continue
		}
		for _, spec := range s.syntax.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if why := forbiddenImport(arrows(), path.Clean(s.dir()), imported, s.isTest()); why != "" {
				t.Errorf("%s:%d: %s %s", s.name, s.line(spec), path.Clean(s.dir()), why)
			}
		}
	}
}

func TestArrowsThatMustNotBe(t *testing.T) {
	own := func(p string) string { return modulePath + "/" + p }
	for _, a := range []struct {
		pkg, imported string
		test          bool
	}{
		{"internal/consume", pgx, false},
		{"internal/consume", pgx + "/pgxpool", false},
		{"internal/consume", own("internal/store"), false},
		{"internal/delivery", pgx, false},
		{"internal/diag", uuid, false},
		{"internal/diag", own("internal/delivery"), false},
		{"internal/ledger", pgx, false},
		{"internal/ledger", own("internal/store"), false},
		{"internal/reference", own("internal/delivery"), false},
		{"internal/store", own("internal/consume"), false},
		{"internal/store", modulePath, false},
		{"internal/wake", own("internal/manager"), false},
		{"internal/manager", own("internal/pgtest"), false},
		{".", own("internal/pgserver"), false},
		{".", own("sqlstreamstest"), false},
		{".", own("internal/storetest"), false},
		{".", own("internal/chaos"), false},
		{".", gocmp + "/cmp", false},
		{".", "github.com/spf13/cobra", true},
		{"internal/store", goleak, false},
		{"internal/new", "fmt", false},
	} {
		if forbiddenImport(arrows(), a.pkg, a.imported, a.test) == "" {
			t.Errorf("%s may import %s", a.pkg, a.imported)
		}
	}
	for _, a := range []struct {
		pkg, imported string
		test          bool
	}{
		{".", own("internal/consume"), false},
		{"internal/store", pgx + "/pgxpool", false},
		{"internal/consume", own("internal/storetest"), true},
		{"internal/consume", goleak, true},
		{"internal/chaos/worker", modulePath, false},
		{"internal/diag", "net/http", false},
	} {
		if why := forbiddenImport(arrows(), a.pkg, a.imported, a.test); why != "" {
			t.Errorf("%s %s", a.pkg, why)
		}
	}
}

// The layers are a table kept by hand; this holds the table itself to pointing downward.
func TestTheTableHasNoCycle(t *testing.T) {
	table := arrows()
	below := map[string][]string{}
	for _, a := range table {
		below[a.pkg] = a.own
	}
	var visit func(pkg string, trail []string)
	visit = func(pkg string, trail []string) {
		if slices.Contains(trail, pkg) {
			t.Errorf("cycle: %s", strings.Join(append(trail, pkg), " → "))
			return
		}
		for _, next := range below[pkg] {
			if !strings.HasSuffix(next, "/...") && next != "." {
				visit(next, append(slices.Clone(trail), pkg))
			}
		}
	}
	for _, a := range table {
		if a.pkg != "." {
			visit(a.pkg, nil)
		}
	}
	for _, p := range pure() {
		i := slices.IndexFunc(table, func(a allowed) bool { return a.pkg == p })
		if i < 0 || slices.Contains(table[i].modules, pgx) {
			t.Errorf("%s: not in the table, or allowed to import pgx", p)
		}
	}
}

// linked lists everything that a program which imports a package links.
func linked(t *testing.T, pkg string) []string {
	t.Helper()
	list := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}}", pkg)
	list.Dir = moduleRoot
	var stderr strings.Builder
	list.Stderr = &stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list -deps %s: %v\n%s", pkg, err, stderr.String())
	}
	return strings.Fields(string(out))
}

// unwantedLink says why a program that uses the library should not link a package; "" if it may.
func unwantedLink(pkg string) string {
	if own, ok := ownPackage(pkg); ok {
		for _, p := range []string{"internal/pgserver", "internal/pgtest", "internal/storetest", "internal/chaos", "internal/ledger", "internal/reference", "internal/archtest", "sqlstreamstest", "cmd", "examples", "bench"} {
			if matches(p+"/...", own) {
				return "it is for tests and programs"
			}
		}
		return ""
	}
	first, _, _ := strings.Cut(pkg, "/")
	if !strings.Contains(first, ".") {
		if first == "testing" || pkg == "net/http/httptest" || pkg == "net/http/pprof" || pkg == "expvar" || pkg == "html/template" {
			return "it is not for a library"
		}
		return ""
	}
	// What pgx brings with it, and no more.
	for _, m := range []string{pgx, uuid, xsync, "github.com/jackc/pgpassfile", "github.com/jackc/pgservicefile", "github.com/jackc/puddle/v2", "golang.org/x/text"} {
		if pkg == m || strings.HasPrefix(pkg, m+"/") {
			return ""
		}
	}
	return "it is no dependency of the library: test, command-line and telemetry libraries stay out"
}

func TestTheLibraryLinksOnlyWhatItsUsersNeed(t *testing.T) {
	for _, pkg := range linked(t, ".") {
		// The standard library's own copies.
		if strings.HasPrefix(pkg, "vendor/") {
			continue
		}
		if why := unwantedLink(pkg); why != "" {
			t.Errorf("the root package links %s: %s", pkg, why)
		}
	}
	for _, pkg := range []string{"testing", "testing/synctest", "pgregory.net/rapid", "github.com/spf13/cobra", "github.com/spf13/pflag",
		"go.opentelemetry.io/otel", "github.com/prometheus/client_golang/prometheus", modulePath + "/internal/pgtest", modulePath + "/sqlstreamstest", modulePath + "/internal/chaos/worker"} {
		if unwantedLink(pkg) == "" {
			t.Errorf("%s would not be noticed", pkg)
		}
	}
}

func TestPurePackagesCompileWithoutDriver(t *testing.T) {
	var dirs []string
	for _, s := range sources(t) {
		dirs = append(dirs, s.dir())
	}
	for _, p := range pure() {
		if !slices.Contains(dirs, p) {
			t.Errorf("%s does not exist", p)
			continue
		}
		for _, pkg := range linked(t, "./"+p) {
			if strings.HasPrefix(pkg, "github.com/jackc/") || pkg == "database/sql" {
				t.Errorf("%s links %s", p, pkg)
			}
		}
	}
}
