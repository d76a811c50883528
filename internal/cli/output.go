package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Escape sequences of a terminal.
const (
	red   = "\x1b[31m"
	bold  = "\x1b[1m"
	dim   = "\x1b[2m"
	reset = "\x1b[0m"
)

// colour reports whether a stream may get escape sequences.
func (a *app) colour(w io.Writer) bool {
	terminal := w == a.env.Stdout && a.outTerminal || w == a.env.Stderr && a.errTerminal
	return terminal && !a.flags.noColor && a.env.Getenv("NO_COLOR") == "" && a.env.Getenv("TERM") != "dumb"
}

func (a *app) styled(w io.Writer, style, text string) string {
	if text == "" || !a.colour(w) {
		return text
	}
	return style + text + reset
}

func (a *app) json() bool { return a.flags.output == outputJSON }
func (a *app) wide() bool { return a.flags.output == outputWide }

// say writes a line for a person to standard output; there is none with -o json.
func (a *app) say(format string, args ...any) error {
	if a.json() {
		return nil
	}
	_, err := fmt.Fprintf(a.env.Stdout, format+"\n", args...)
	return err
}

// show writes one result: as JSON, or what text writes.
func (a *app) show(value any, text func(w io.Writer) error) error {
	if !a.json() {
		return text(a.env.Stdout)
	}
	encoder := json.NewEncoder(a.env.Stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

// line writes one object of many on one line.
func (a *app) line(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

// table has columns that are as wide as their widest cell.
type table struct {
	header []string
	rows   [][]string
	right  map[int]bool // columns of numbers
}

func newTable(header ...string) *table { return &table{header: header, right: map[int]bool{}} }

// numbers says which columns stand to the right.
func (t *table) numbers(columns ...int) *table {
	for _, c := range columns {
		t.right[c] = true
	}
	return t
}

func (t *table) add(cells ...string) {
	for i, cell := range cells {
		cells[i] = printable(cell)
	}
	t.rows = append(t.rows, cells)
}

// write writes the table; empty is said instead of a table without rows.
func (a *app) writeTable(w io.Writer, t *table, empty string) error {
	if len(t.rows) == 0 {
		_, err := fmt.Fprintln(w, empty)
		return err
	}
	widths := make([]int, len(t.header))
	for _, row := range append([][]string{t.header}, t.rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	if _, err := fmt.Fprintln(w, a.styled(w, bold, t.format(t.header, widths))); err != nil {
		return err
	}
	for _, row := range t.rows {
		if _, err := fmt.Fprintln(w, t.format(row, widths)); err != nil {
			return err
		}
	}
	return nil
}

func (t *table) format(row []string, widths []int) string {
	var b strings.Builder
	for i, cell := range row {
		pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
		if i > 0 {
			b.WriteString("  ")
		}
		if t.right[i] {
			b.WriteString(pad + cell)
		} else {
			b.WriteString(cell + pad)
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// fields writes "name: value" lines, the values below each other.
func (a *app) fields(w io.Writer, pairs ...string) error {
	width := 0
	for i := 0; i < len(pairs); i += 2 {
		width = max(width, utf8.RuneCountInString(pairs[i]))
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		name := pairs[i] + ":" + strings.Repeat(" ", width-utf8.RuneCountInString(pairs[i]))
		if _, err := fmt.Fprintf(w, "%s  %s\n", a.styled(w, bold, name), printable(pairs[i+1])); err != nil {
			return err
		}
	}
	return nil
}

// printable keeps what a message or an error holds from moving the terminal's cursor, changing its title, and so on.
func printable(s string) string {
	if strings.IndexFunc(s, unprintable) < 0 && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 || unprintable(r) {
			b.WriteString(strings.Trim(strconv.QuoteToASCII(s[i:i+size]), `"`))
		} else {
			b.WriteString(s[i : i+size])
		}
		i += size
	}
	return b.String()
}

// unprintable: control characters, and marks that change the direction of what follows.
func unprintable(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// textWidth is how wide running text is set.
const textWidth = 80

// reflow sets paragraphs anew, to textWidth. Lines that are set by hand (indented, items of lists, tables) stay as they are, and so does the end of a line that ends a sentence.
func reflow(text string) string {
	var b strings.Builder
	column, sentence := 0, true
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		if line == "" || strings.ContainsRune(" \t|#", rune(line[0])) || strings.HasPrefix(line, "- ") || strings.HasPrefix(line, "* ") {
			if column > 0 {
				b.WriteByte('\n')
			}
			b.WriteString(line + "\n")
			column, sentence = 0, true
			continue
		}
		if sentence && column > 0 {
			b.WriteByte('\n')
			column = 0
		}
		for word := range strings.FieldsSeq(line) {
			if n := utf8.RuneCountInString(word); column > 0 && column+1+n > textWidth {
				b.WriteByte('\n')
				column = 0
			} else if column > 0 {
				b.WriteByte(' ')
				column++
			}
			b.WriteString(word)
			column += utf8.RuneCountInString(word)
		}
		sentence = len(line) < textWidth && strings.ContainsAny(line[len(line)-1:], ".:")
	}
	return strings.TrimRight(b.String(), "\n")
}

// stamp is a time for a person, in the zone of the process.
func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.RFC3339)
}

// at is a time in JSON: UTC, null if there is none.
func at(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	utc := t.UTC()
	return &utc
}

func number[T int | int64](n T) string { return strconv.FormatInt(int64(n), 10) }

// size is a number of bytes for a person.
func size(n int64) string {
	if n < 1024 {
		return number(n) + " B"
	}
	value, unit := float64(n), ""
	for _, unit = range []string{"KiB", "MiB", "GiB", "TiB"} {
		value /= 1024
		if value < 1024 {
			break
		}
	}
	return strconv.FormatFloat(value, 'f', 1, 64) + " " + unit
}

// parseSize reads a number of bytes: 4096, 64k, 1MiB. Units are powers of 1,024.
func parseSize(flag, text string) (int, error) {
	digits := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
	shift, known := map[string]int{"": 0, "b": 0, "k": 10, "kb": 10, "kib": 10, "m": 20, "mb": 20, "mib": 20}[strings.ToLower(strings.TrimSpace(text[len(digits):]))]
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || !known || n < 0 || n > largestSize || n<<shift > largestSize {
		return 0, usagef("--%s is %q; it is a number of bytes such as 4096, 64KiB or 1MiB", flag, text)
	}
	return int(n << shift), nil
}

// largestSize is a gigabyte: no limit that takes a size is larger, and an int holds it everywhere.
const largestSize = 1 << 30

// plural says a number of things.
func plural[T int | int64](n T, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return number(n) + " " + many
}
