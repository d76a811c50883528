package cli

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

type explanation struct {
	Code       string   `json:"code"`
	Title      string   `json:"title"`
	Kind       string   `json:"kind"`
	Severity   string   `json:"severity"`
	Metric     string   `json:"metric"`
	Meaning    string   `json:"meaning"`
	Raised     string   `json:"raised"`
	Check      string   `json:"check"`
	Remedy     string   `json:"remedy"`
	Statements []string `json:"statements"`
}

func newExplain(a *app) *cobra.Command {
	var list bool
	cmd := &cobra.Command{
		Use:   "explain {CODE | NAME | LOG LINE}...",
		Short: "Say what a code means and what to do about it.",
		Long: `Say what a code means, when it is raised, what to check (with SQL that is ready to run) and what to do.

The code may be written SQL0105, sql0105 or 105. Instead of a code: the name of its constant (InsufficientLease, ErrStreamNotFound), words of its
title, the name of a metric, or a whole line of a log or an error in which codes stand. Words that fit several codes list these.
It asks no database.`,
		Example: `  sqlstreams explain SQL0105
  sqlstreams explain lease lost
  sqlstreams explain 'level=WARN msg="lease lost" code=SQL0100 stream=orders'
  sqlstreams explain --list`,
		Args: func(_ *cobra.Command, given []string) error {
			if list == (len(given) > 0) {
				return usagef("explain needs a code, a name or a line of a log; or --list alone")
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var all []string
			for _, e := range diag.All() {
				all = append(all, string(e.Code)+"\t"+e.Title)
			}
			return all, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, words []string) error {
			if list {
				return a.listCodes(diag.All())
			}
			text := strings.Join(words, " ")
			found := findCodes(text)
			switch {
			case len(found) == 0:
				return &failure{err: failf("no code fits %q", text), hint: "sqlstreams explain --list"}
			case len(found) > 1 && codePattern.FindString(text) == "":
				return a.listCodes(found)
			}
			return a.explain(found)
		},
	}
	cmd.Flags().BoolVar(&list, "list", false, "list all codes")
	return cmd
}

// codePattern finds a code in a line of text.
var codePattern = regexp.MustCompile(`(?i)\bSQL[0-9]{4}\b`)

// numberPattern is a code without its letters.
var numberPattern = regexp.MustCompile(`^[0-9]{1,4}$`)

// findCodes returns the entries that a text means: codes that stand in it, else a number, a constant, a metric, words of titles.
func findCodes(text string) (found []diag.Entry) {
	add := func(code diag.Code) {
		if e, ok := diag.Lookup(code); ok && !slices.ContainsFunc(found, func(f diag.Entry) bool { return f.Code == code }) {
			found = append(found, e)
		}
	}
	if codes := codePattern.FindAllString(text, -1); len(codes) > 0 {
		for _, code := range codes {
			add(diag.Code(strings.ToUpper(code)))
		}
		return found
	}
	text = strings.TrimSpace(text)
	if numberPattern.MatchString(text) {
		add(diag.Code("SQL" + strings.Repeat("0", 4-len(text)) + text))
		return found
	}
	name := letters(text)
	for _, c := range constants() {
		if own := strings.ToLower(c.name); name == own || name == "err"+own {
			add(c.code)
			return found
		}
	}
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	for _, e := range diag.All() {
		title := strings.ToLower(e.Title)
		if text != "" && text == e.Metric || len(words) > 0 && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(title, w) }) {
			add(e.Code)
		}
	}
	return found
}

// letters keeps the letters of a name, in lower case: insufficient-lease and InsufficientLease are one.
func letters(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) {
			return unicode.ToLower(r)
		}
		return -1
	}, s)
}

func (a *app) listCodes(entries []diag.Entry) error {
	views := make([]explanation, 0, len(entries))
	t := newTable("CODE", "KIND", "SEVERITY", "TITLE")
	for _, e := range entries {
		views = append(views, a.explanation(e))
		t.add(string(e.Code), string(e.Kind), string(e.Severity), e.Title)
	}
	return a.show(views, func(w io.Writer) error { return a.writeTable(w, t, "no codes") })
}

func (a *app) explain(entries []diag.Entry) error {
	views := make([]explanation, 0, len(entries))
	for _, e := range entries {
		views = append(views, a.explanation(e))
	}
	return a.show(views, func(w io.Writer) error {
		for i, v := range views {
			if i > 0 {
				if _, err := fmt.Fprintln(w); err != nil {
					return err
				}
			}
			if err := a.writeExplanation(w, v); err != nil {
				return err
			}
		}
		return nil
	})
}

func (a *app) writeExplanation(w io.Writer, v explanation) error {
	kind := v.Kind
	if v.Metric != "" {
		kind += " " + v.Metric
	}
	if _, err := fmt.Fprintf(w, "%s\n%s, severity %s\n", a.styled(w, bold, v.Code+": "+v.Title), kind, v.Severity); err != nil {
		return err
	}
	for _, s := range [][2]string{{"What it means", v.Meaning}, {"When it is raised", v.Raised}, {"What to check", v.Check}, {"What to do", v.Remedy}} {
		if _, err := fmt.Fprintf(w, "\n%s\n%s\n", a.styled(w, bold, s[0]), indented(s[1])); err != nil {
			return err
		}
	}
	return nil
}

// indented sets a section of Markdown for a terminal: its marks of code stay out of the way, its statements stand further in and can be copied.
func indented(markdown string) string {
	var b strings.Builder
	for i, part := range strings.Split(markdown, "```") {
		text := reflow(strings.ReplaceAll(part, "`", ""))
		if statement := i%2 == 1; statement {
			_, text, _ = strings.Cut(part, "\n") // behind the name of the language
			text = "\n" + strings.ReplaceAll("\n"+strings.TrimRight(text, "\n"), "\n", "\n  ")
		}
		b.WriteString(text)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight("  "+lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// explanation fits the catalogue, which speaks of the default schema, to the chosen one.
func (a *app) explanation(e diag.Entry) explanation {
	own := func(s string) string {
		if a.flags.schema == sqlstreams.DefaultSchema {
			return s
		}
		return schemaInSQL.ReplaceAllString(s, strings.ReplaceAll(`"`+strings.ReplaceAll(a.flags.schema, `"`, `""`)+`".`, "$", "$$")+"$1")
	}
	v := explanation{Code: string(e.Code), Title: e.Title, Kind: string(e.Kind), Severity: string(e.Severity), Metric: e.Metric,
		Meaning: e.Meaning, Raised: e.Raised, Check: own(e.Check), Remedy: own(e.Remedy), Statements: []string{}}
	for _, s := range e.Statements() {
		v.Statements = append(v.Statements, own(s))
	}
	return v
}

// schemaInSQL is the default schema before the name of one of its tables, not the first word of a metric or of a name in Go.
var schemaInSQL = regexp.MustCompile(`\bsqlstreams\.([a-z_]+\b)`)
