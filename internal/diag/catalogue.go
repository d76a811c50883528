package diag

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
)

//go:generate go run ./cmd/gendocs ../../docs/diagnostics.md

//go:embed catalogue/*.md
var entries embed.FS

// Kind is how a person meets a code.
type Kind string

// The kinds of codes.
const (
	KindError  Kind = "error"  // a call returns it
	KindEvent  Kind = "event"  // the log and the hooks tell it
	KindMetric Kind = "metric" // it is counted
)

// Severity is how much a code matters when it is met.
type Severity string

// The severities.
const (
	Info  Severity = "info"
	Warn  Severity = "warn"
	Fault Severity = "error"
)

// Entry is what the catalogue says about one code. The four sections are Markdown.
type Entry struct {
	Code     Code
	Title    string
	Kind     Kind
	Severity Severity
	Metric   string // the metric's name; "" for other kinds

	Meaning string // what it means
	Raised  string // when it is raised
	Check   string // what to check
	Remedy  string // what to do
}

// Headings of an entry's sections, in the order in which they stand.
const (
	meaningHeading = "What it means"
	raisedHeading  = "When it is raised"
	checkHeading   = "What to check"
	remedyHeading  = "What to do"
)

// catalogue is read on first use and never written again. Error texts need titles, so it is not read each time. A malformed entry
// would be left out; a test sees to it that there is none.
var catalogue = sync.OnceValues(func() (map[Code]Entry, error) { return load(entries) })

// Title returns the few words that name a code's condition.
func Title(c Code) string {
	if e, ok := Lookup(c); ok {
		return e.Title
	}
	return "unknown condition"
}

// Lookup returns the entry of a code.
func Lookup(c Code) (Entry, bool) {
	all, _ := catalogue()
	e, ok := all[c]
	return e, ok
}

// All returns every entry, in the order of codes.
func All() []Entry {
	all, _ := catalogue()
	return slices.SortedFunc(maps.Values(all), func(a, b Entry) int { return strings.Compare(string(a.Code), string(b.Code)) })
}

// Statements returns the SQL that stands ready in the entry.
func (e Entry) Statements() []string {
	var out []string
	rest := e.Check
	for {
		_, after, found := strings.Cut(rest, "```sql\n")
		if !found {
			return out
		}
		statement, next, _ := strings.Cut(after, "```")
		out = append(out, strings.TrimSpace(statement))
		rest = next
	}
}

// load reads all entries of a file system. The first malformed one is reported; the others are read all the same.
func load(files fs.FS) (map[Code]Entry, error) {
	names, err := fs.Glob(files, "catalogue/*.md")
	if err != nil {
		return nil, err
	}
	all := make(map[Code]Entry, len(names))
	var first error
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err == nil {
			var e Entry
			code := Code(strings.TrimSuffix(strings.TrimPrefix(name, "catalogue/"), ".md"))
			if e, err = parse(code, text); err == nil {
				all[code] = e
			}
		}
		if err != nil && first == nil {
			first = fmt.Errorf("%s: %w", name, err)
		}
	}
	return all, first
}

// parse reads one entry: lines between two rules, then the four sections, each once and in order.
func parse(code Code, text []byte) (Entry, error) {
	e := Entry{Code: code}
	text = bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))
	head, body, found := strings.Cut(strings.TrimPrefix(string(text), "---\n"), "\n---\n")
	if !found || !strings.HasPrefix(string(text), "---\n") {
		return e, fmt.Errorf("does not begin with lines between ---")
	}
	if err := e.parseHead(head); err != nil {
		return e, err
	}
	return e, e.parseSections(body)
}

func (e *Entry) parseHead(head string) error {
	for line := range strings.Lines(head) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		field := map[string]*string{"title": &e.Title, "kind": (*string)(&e.Kind), "severity": (*string)(&e.Severity), "metric": &e.Metric}[key]
		switch {
		case field == nil:
			return fmt.Errorf("unknown line %q", line)
		case *field != "":
			return fmt.Errorf("%s stands twice", key)
		case value == "":
			return fmt.Errorf("%s is empty", key)
		}
		*field = value
	}
	switch {
	case e.Title == "":
		return fmt.Errorf("no title")
	case e.Kind != KindError && e.Kind != KindEvent && e.Kind != KindMetric:
		return fmt.Errorf("kind %q is not one of error, event, metric", e.Kind)
	case e.Severity != Info && e.Severity != Warn && e.Severity != Fault:
		return fmt.Errorf("severity %q is not one of info, warn, error", e.Severity)
	case (e.Metric != "") != (e.Kind == KindMetric):
		return fmt.Errorf("a metric's name stands in entries of metrics and in no other")
	}
	return nil
}

func (e *Entry) parseSections(body string) error {
	sections := []struct {
		heading string
		text    *string
	}{{meaningHeading, &e.Meaning}, {raisedHeading, &e.Raised}, {checkHeading, &e.Check}, {remedyHeading, &e.Remedy}}
	parts := strings.Split("\n"+body, "\n## ")
	if len(parts) != len(sections)+1 || strings.TrimSpace(parts[0]) != "" {
		return fmt.Errorf("has not exactly the sections %q, %q, %q, %q", meaningHeading, raisedHeading, checkHeading, remedyHeading)
	}
	for i, s := range sections {
		heading, text, _ := strings.Cut(parts[i+1], "\n")
		if heading != s.heading {
			return fmt.Errorf("section %q stands where %q belongs", heading, s.heading)
		}
		if *s.text = strings.TrimSpace(text); *s.text == "" {
			return fmt.Errorf("section %q is empty", heading)
		}
	}
	return nil
}
