package diag

import (
	"fmt"
	"strings"
)

// Markdown renders an entry by itself, its headings at the given level and below.
func (e Entry) Markdown(level int) string {
	var b strings.Builder
	mark := strings.Repeat("#", level)
	fmt.Fprintf(&b, "%s %s: %s\n\n", mark, e.Code, e.Title)
	switch e.Kind {
	case KindMetric:
		fmt.Fprintf(&b, "Metric `%s`, severity %s.\n", e.Metric, e.Severity)
	case KindEvent:
		fmt.Fprintf(&b, "Event, severity %s.\n", e.Severity)
	case KindError:
		fmt.Fprintf(&b, "Error, severity %s.\n", e.Severity)
	}
	for _, s := range [][2]string{{meaningHeading, e.Meaning}, {raisedHeading, e.Raised}, {checkHeading, e.Check}, {remedyHeading, e.Remedy}} {
		fmt.Fprintf(&b, "\n%s# %s\n\n%s\n", mark, s[0], s[1])
	}
	return b.String()
}

// Document renders the whole catalogue as one page: docs/diagnostics.md.
func Document() string {
	var b strings.Builder
	b.WriteString("# Diagnostics\n\n")
	b.WriteString("<!-- Generated from internal/diag/catalogue by go generate ./internal/diag. Do not edit. -->\n\n")
	b.WriteString("Every error, event and metric has a code that is never reused. The statements are for the default schema `sqlstreams`; names and ids in them are examples.\n\n")
	b.WriteString("| code | title | kind | severity |\n|---|---|---|---|\n")
	all := All()
	for _, e := range all {
		fmt.Fprintf(&b, "| [%s](#%s) | %s | %s | %s |\n", e.Code, anchor(e), e.Title, e.Kind, e.Severity)
	}
	for _, e := range all {
		b.WriteString("\n")
		b.WriteString(e.Markdown(2))
	}
	return b.String()
}

// anchor is the fragment under which Markdown viewers find an entry's heading: lower case, punctuation gone, hyphens for spaces.
func anchor(e Entry) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		}
		return -1
	}, strings.ToLower(fmt.Sprintf("%s: %s", e.Code, e.Title)))
}
