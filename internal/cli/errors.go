package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// usageError is a command line that cannot be understood, or is not allowed.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &usageError{text: fmt.Sprintf(format, args...)} }

// failure is an error with a hint of its own, or one that was told already.
type failure struct {
	err  error
	hint string
	told bool // nothing is left to say: only the exit code
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func failf(format string, args ...any) error { return fmt.Errorf(format, args...) }

// finish tells an error on standard error and turns it into the exit code.
func (a *app) finish(cmd *cobra.Command, err error) int {
	if err == nil {
		return ExitDone
	}
	if f, ok := errors.AsType[*failure](err); ok && f.told {
		return ExitFailed
	}
	a.complain("sqlstreams: " + a.oneLine(err))
	if hint := a.hint(cmd, err); hint != "" {
		a.complain("hint: " + hint)
	}
	return a.exitCode(err)
}

func (a *app) complain(line string) {
	if a.colour(a.env.Stderr) && strings.HasPrefix(line, "sqlstreams: ") {
		line = red + "sqlstreams:" + reset + strings.TrimPrefix(line, "sqlstreams:")
	}
	_, _ = fmt.Fprintln(a.env.Stderr, line) // there is nowhere left to say that standard error is gone
}

// oneLine keeps an error to one line, whatever it wraps. Errors of the library have only text that may be shown.
func (a *app) oneLine(err error) string {
	if errors.Is(err, context.Canceled) && diag.CodeOf(err) == "" {
		return "interrupted"
	}
	text := strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	return printable(text)
}

// exitCode: what cobra finds wrong before a command runs is usage, and so are names and options that no installation could accept.
func (a *app) exitCode(err error) int {
	if _, ok := errors.AsType[*usageError](err); ok || !a.ran {
		return ExitUsage
	}
	switch diag.CodeOf(err) {
	case diag.InvalidName, diag.ReservedName, diag.InvalidOption:
		return ExitUsage
	}
	return ExitFailed
}

func (a *app) hint(cmd *cobra.Command, err error) string {
	if f, ok := errors.AsType[*failure](err); ok && f.hint != "" {
		return f.hint
	}
	code := diag.CodeOf(err)
	switch {
	case code == diag.SchemaOld:
		return "sqlstreams migrate up" + a.schemaFlag() + "   (or: sqlstreams explain " + string(code) + ")"
	case code == diag.Unreachable && a.nowhere():
		return "no --database, DATABASE_URL, PGHOST or PGSERVICE is given, so the default host was tried"
	case code == diag.GroupNotFound && cmd != nil && cmd.Flags().NArg() > 0:
		return "sqlstreams group list " + shellQuote(cmd.Flags().Arg(0)) + a.schemaFlag()
	case code != "":
		return "sqlstreams explain " + string(code)
	case a.exitCode(err) == ExitUsage && cmd != nil:
		return cmd.CommandPath() + " --help"
	}
	return ""
}

// schemaFlag repeats the choice of an installation in a command line that is suggested.
func (a *app) schemaFlag() string {
	if a.flags.schema == "" || a.flags.schema == sqlstreams.DefaultSchema || a.flags.schema == a.env.Getenv("SQLSTREAMS_SCHEMA") {
		return ""
	}
	return " --schema " + shellQuote(a.flags.schema)
}

// shellQuote makes a word that a shell takes as it is.
func shellQuote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-/:=@", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
