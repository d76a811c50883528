package measure

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// Report is a whole run as it is stored.
type Report struct {
	Mode   string         `json:"mode"`
	Commit string         `json:"commit"`
	Setup  map[string]any `json:"setup"`
	// Ended says why the run did not reach its end; "": it did.
	Ended   string   `json:"ended_early,omitempty"`
	Rows    []Row    `json:"rows"`
	Samples []Sample `json:"samples"`
	// Details of single cases: series over time, tables of micro-benchmarks.
	Details map[string]any `json:"details,omitempty"`
}

// WriteJSON writes the report to a file, whole or not at all.
func (r *Report) WriteJSON(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// number writes a figure with as many digits as it deserves.
func number(v float64) string {
	switch a := math.Abs(v); {
	case math.IsNaN(v):
		return "-"
	case a >= 10000:
		return thousands(math.Round(v))
	case a >= 100 || v == math.Trunc(v):
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	default:
		return strings.TrimSuffix(strings.TrimRight(strconv.FormatFloat(v, 'f', 2, 64), "0"), ".")
	}
}

func thousands(v float64) string {
	s := strconv.FormatFloat(math.Abs(v), 'f', 0, 64)
	var b strings.Builder
	if v < 0 {
		b.WriteByte('-')
	}
	for i, digit := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(digit)
	}
	return b.String()
}

// Table writes the rows for people.
func Table(w io.Writer, rows []Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\tcase\tmeasured\tlimit\tratio\tbar\t")
	for _, r := range rows {
		measured, limit, ratio := "-", "", ""
		if r.Verdict != NotMeasured {
			measured = number(r.Measured) + " " + r.Unit
		}
		if r.Against != nil {
			limit = number(r.Limit)
			ratio = "-"
			if r.Ratio != 0 {
				ratio = strconv.FormatFloat(r.Ratio, 'f', 2, 64)
			}
		}
		verdict := r.Verdict
		if verdict == NoBar {
			verdict = ""
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.ID, r.Title, measured, limit, ratio, r.Bar, verdict)
	}
	return t.Flush()
}

// Lines writes a plain table whose first line is the head, numbers to the right.
func Lines(w io.Writer, head []string, lines [][]string) error {
	widths := make([]int, len(head))
	for _, line := range append([][]string{head}, lines...) {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, line := range append([][]string{head}, lines...) {
		for i, cell := range line {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				cell += pad
			} else {
				cell = "  " + pad + cell
			}
			if _, err := io.WriteString(w, cell); err != nil {
				return err
			}
		}
		if _, err := io.WriteString(w, "\n"); err != nil {
			return err
		}
	}
	return nil
}

// Number writes a figure for a table.
func Number(v float64) string { return number(v) }
