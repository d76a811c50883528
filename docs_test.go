package sqlstreams_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pages returns the guides in docs/ by name. The page of codes is generated and tested where its source is.
func pages(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, name := range names {
		if name = filepath.Base(name); name != "diagnostics.md" {
			all[name] = file(t, filepath.Join("docs", name))
		}
	}
	if len(all) < 6 {
		t.Fatalf("%d pages", len(all))
	}
	return all
}

func file(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// goBlocks are the Go blocks of a page.
func goBlocks(page string) (blocks []string) {
	for i, block := range strings.Split("\n"+page, "\n```go\n") {
		if block, _, _ = strings.Cut(block, "\n```"); i > 0 {
			blocks = append(blocks, block)
		}
	}
	return blocks
}

// fenced is code that a page quotes: between "// doc: page/name" and "// doc: end".
var fenced = regexp.MustCompile(`(?ms)^\t*// doc: ([a-z]+)/([a-z]+)\n(.*?)^\t*// doc: end$`)

// quoted returns, by page, the code under examples that pages quote: parts of tests, and whole programs without their first comment, for any page.
func quoted(t *testing.T) (parts map[string][]string, programs []string) {
	t.Helper()
	tests, err := filepath.Glob("examples/docs/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	parts = map[string][]string{}
	for _, name := range tests {
		source := file(t, name)
		found := fenced.FindAllStringSubmatch(source, -1)
		if begun := strings.Count(source, "// doc: "); begun != 2*len(found) {
			t.Errorf("%s: %d comments begin or end a quoted part, of which there are %d", name, begun, len(found))
		}
		for _, m := range found {
			parts[m[1]+".md"] = append(parts[m[1]+".md"], strings.TrimSpace(unindented(m[3])))
		}
	}
	for _, name := range []string{"examples/quickstart/main.go", "examples/docs/service/main.go"} {
		_, program, _ := strings.Cut(file(t, name), "\n")
		programs = append(programs, strings.TrimSpace(program))
	}
	return parts, programs
}

// Each Go block of the guides stands, word for word, in a program or test under examples that runs; and each part that is kept there for a page stands on it.
func TestGuidesSnippetsAreTheOnesThatRun(t *testing.T) {
	parts, programs := quoted(t)
	for name, page := range pages(t) {
		kept := parts[name]
		delete(parts, name)
		for _, block := range goBlocks(page) {
			if slices.Contains(programs, block) {
				continue
			}
			at := slices.Index(kept, strings.TrimSpace(unindented(block)))
			if at < 0 {
				t.Errorf("%s: nothing under examples/docs runs this snippet:\n%s", name, block)
				continue
			}
			kept = slices.Delete(kept, at, at+1)
		}
		for _, part := range kept {
			t.Errorf("%s does not hold this part of examples/docs:\n%s", name, part)
		}
	}
	for name := range parts {
		t.Errorf("examples/docs has parts for %s, which is no page", name)
	}
}

func TestGuidesAreShort(t *testing.T) {
	for name, page := range pages(t) {
		if n := strings.Count(page, "\n"); n >= 250 {
			t.Errorf("%s has %d lines", name, n)
		}
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)#]*)(#[^)]*)?\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	fence   = regexp.MustCompile("(?ms)^```.*?^```$")
	dropped = regexp.MustCompile(`[^a-z0-9 -]`)
)

// Links lead to files of the repository, and to headings that are there.
func TestGuidesLinksLeadSomewhere(t *testing.T) {
	all := pages(t)
	all["diagnostics.md"] = file(t, "docs/diagnostics.md")
	for name, page := range all {
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
			target, anchor := m[1], strings.TrimPrefix(m[2], "#")
			if target == "" {
				target = name
			}
			if strings.Contains(target, "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join("docs", target)); err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if anchor != "" && !slices.ContainsFunc(heading.FindAllStringSubmatch(all[target], -1), func(h []string) bool {
				return strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-") == anchor
			}) {
				t.Errorf("%s: %s has no heading for #%s", name, target, anchor)
			}
		}
	}
}
