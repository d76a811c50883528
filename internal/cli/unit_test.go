package cli

import (
	"bytes"
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

func TestEveryCommandExplainsItself(t *testing.T) {
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.Name() == "help" || cmd.Parent() != nil && cmd.Parent().Name() == "completion" {
			return
		}
		if !strings.HasSuffix(cmd.Short, ".") && cmd.Name() != "completion" {
			t.Errorf("%s: %q is no sentence", cmd.CommandPath(), cmd.Short)
		}
		if cmd.Long == "" || cmd.Example == "" {
			t.Errorf("%s: no details or no examples", cmd.CommandPath())
		}
		if cmd.Args == nil && cmd.Name() != "completion" {
			t.Errorf("%s: takes any argument", cmd.CommandPath())
		}
		for _, child := range cmd.Commands() {
			visit(child)
		}
	}
	visit(newRoot(&app{env: Env{Stdout: io.Discard, Stderr: io.Discard, Getenv: func(string) string { return "" }, Terminal: func(any) bool { return false }}}))
}

// Who meets a constant's name in a program's text can ask for it.
func TestConstantsAreThoseOfTheCatalogue(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../diag/codes.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, decl := range file.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			want = append(want, spec.(*ast.ValueSpec).Names[0].Name)
		}
	}
	for _, c := range constants() {
		got = append(got, c.name)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("known are\n%q, there are\n%q", got, want)
	}
}

func TestFindCodes(t *testing.T) {
	for text, want := range map[string]string{
		"SQL0105": "SQL0105", "sql0105": "SQL0105", "105": "SQL0105", "0105": "SQL0105", "insufficient-lease": "SQL0105", "ErrStreamNotFound": "SQL0005",
		"lease lost": "SQL0100", "sqlstreams.consumer.session.abandoned": "SQL0050", "x code=SQL0100 y SQL0005: SQL0100": "SQL0100 SQL0005", "SQL9999": "", "nonsense": "", "": "", "99999": "",
	} {
		var got []string
		for _, e := range findCodes(text) {
			got = append(got, string(e.Code))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q means %q, want %q", text, got, want)
		}
	}
}

func TestPrintableKeepsTheTerminalSafe(t *testing.T) {
	for text, want := range map[string]string{"plain é": "plain é", "\x1b[2J": `\x1b[2J`, "a\nb\t": `a\nb\t`, "\xff": `\xff`, "\u202e": `\u202e`, "\u009b": `\u009b`} {
		if got := printable(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int{"4096": 4096, "64k": 65536, "1MiB": 1 << 20, "8 MB": 8 << 20} {
		if got, err := parseSize("x", text); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "x", "-1", "1GB", "1.5k", "99999999999999999999"} {
		if _, err := parseSize("x", text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}

func TestProgressLineFitsATerminal(t *testing.T) {
	got := progressLine(430_000, 43<<20, 100<<20, 5*time.Second)
	if want := "[========            ]  43%  430000 messages, 86000/s, 7s left"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := progressLine(3, 2048, 0, time.Second); got != "3 messages, 2.0 KiB, 3/s" {
		t.Errorf("%q", got)
	}
	if got := progressLine(1_000_000_000, 1<<40, 1<<41, 100*time.Hour); len(got) > 79 {
		t.Errorf("%d columns: %q", len(got), got)
	}
}

func TestField(t *testing.T) {
	for path, want := range map[string]string{"id": "7", "user.name": "é", "ok": "true", "big": "12345678901234567890"} {
		got, err := field([]byte(`{"id": 7, "user": {"name": "\u00e9"}, "ok": true, "big": 12345678901234567890}`), strings.Split(path, "."))
		if err != nil || got != want {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
	for _, payload := range []string{`{}`, `{"a": null}`, `{"a": {"b": null}}`, `{"a": {"b": ""}}`, `{"a": {"b": []}}`, `3`, `null`, `[1]`} {
		if got, err := field([]byte(payload), []string{"a", "b"}); err == nil {
			t.Errorf("%s: %q", payload, got)
		}
	}
}

// all reads an input to its end.
func all(t *testing.T, text string, s *shape, skip int64, batch int) (lines []int64, payloads []string, err error) {
	t.Helper()
	in := newIntake()
	go in.readLines(strings.NewReader(text), s, skip, batch)
	for {
		var taken []record
		if taken, err = in.take(t.Context(), batch); len(taken) == 0 {
			return lines, payloads, err
		}
		if len(taken) > batch {
			t.Errorf("a batch of %d", len(taken))
		}
		for _, r := range taken {
			lines, payloads = append(lines, r.line), append(payloads, string(r.payload))
		}
	}
}

func TestLinesAreReadWithTheirNumbers(t *testing.T) {
	s := &shape{maxPayload: 100}
	lines, payloads, err := all(t, "\ufeff{}\r\n\n  1 \n\"x\"", s, 0, 2)
	if err != nil || !slices.Equal(lines, []int64{1, 3, 4}) || !slices.Equal(payloads, []string{"{}", "1", `"x"`}) {
		t.Errorf("%d %q %v", lines, payloads, err)
	}
	lines, _, err = all(t, "nonsense\n2\n3\n", s, 1, 2)
	if err != nil || !slices.Equal(lines, []int64{2, 3}) {
		t.Errorf("with a line left out: %d %v", lines, err)
	}
	lines, payloads, err = all(t, "a b\n\nc", &shape{raw: true, maxPayload: 100}, 0, 2)
	if err != nil || !slices.Equal(lines, []int64{1, 2, 3}) || !slices.Equal(payloads, []string{"a b", "", "c"}) {
		t.Errorf("text: %d %q %v", lines, payloads, err)
	}
}

func TestABadLineEndsTheInputAfterWhatStandsBeforeIt(t *testing.T) {
	for text, want := range map[string]string{
		"1\n2\n{\n4\n": "line 3: it is not JSON: unexpected end of JSON input at byte 1",
		"1\n2\n\"" + strings.Repeat("x", 10_000) + "\"\n4": "line 3: the payload has more than 100 bytes, which is the stream's limit",
		"1\n2\n\"" + strings.Repeat("x", 101) + "\"\n4":    "line 3: the payload has more than 100 bytes, which is the stream's limit",
		"1\n2\n\"\xff\"\n4": "line 3: it is not valid UTF-8",
	} {
		lines, _, err := all(t, text, &shape{maxPayload: 100}, 0, 10)
		if err == nil || err.Error() != want || !slices.Equal(lines, []int64{1, 2}) {
			t.Errorf("%.20q: %d, %v, want %s", text, lines, err, want)
		}
	}
}

func TestTakeEndsWithItsContextWhileTheInputHangs(t *testing.T) {
	in := newIntake()
	r, w := io.Pipe()
	defer w.Close()
	go in.readLines(r, &shape{maxPayload: 100}, 0, 10)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if taken, err := in.take(ctx, 10); len(taken) > 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", taken, err)
	}
}

func TestLastLineOfStandardError(t *testing.T) {
	w := &tailWriter{}
	for range 1000 {
		if _, err := w.Write([]byte("a long line that nobody needs\n")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Write([]byte("the reason\n\n")); err != nil {
		t.Fatal(err)
	}
	if got := w.lastLine(); got != "the reason" {
		t.Errorf("%q", got)
	}
	if len(w.end) > 4*maxReason {
		t.Errorf("%d bytes are kept", len(w.end))
	}
	if got := clip(strings.Repeat("é", 400)); len(got) != maxReason {
		t.Errorf("clipped to %d bytes", len(got))
	}
}

func TestTheBarIsDrawnOverItself(t *testing.T) {
	var out bytes.Buffer
	a := &app{errTerminal: true, env: Env{Stderr: &out, Getenv: func(string) string { return "" }, Terminal: func(any) bool { return true }}}
	bar := a.newProgress(100)
	bar.draw(1, 50, time.Second)
	bar.draw(2, 60, time.Second+time.Millisecond) // too soon
	bar.clear()
	if got := out.String(); strings.Count(got, "\r") != 3 || strings.Contains(got, "\n") || !strings.Contains(got, " 50%") || strings.Contains(got, " 60%") {
		t.Errorf("%q", got)
	}
}

func TestReflow(t *testing.T) {
	long := strings.Repeat("word ", 30)
	got := reflow("Short.\nNew line.\n\n" + long + "\nends here\n\n  kept as it is, however long it may be " + long + "\n- item\n")
	want := "Short.\nNew line.\n\n" + strings.TrimSpace(strings.Repeat("word ", 16)) + "\n" + strings.Repeat("word ", 14) + "ends here\n\n  kept as it is, however long it may be " + strings.TrimSpace(long) + "\n- item"
	if got != want {
		t.Errorf("%q\n%q", got, want)
	}
}
