package cli

import (
	"errors"
	"io"
	"strings"
	"testing"
)

// What the demo does itself is tested where it is; here only what the command refuses before it begins.
func TestDemoRefusesWhatDoesNotFit(t *testing.T) {
	for name, c := range map[string]struct {
		args   []string
		change func(*app)
		want   string
	}{
		"keep without database": {[]string{"--keep"}, nil, "nothing to keep"},
		"unknown sabotage":      {[]string{"--sabotage", "everything"}, nil, `unknown sabotage "everything"`},
		"JSON":                  {nil, func(a *app) { a.flags.output = outputJSON }, "no JSON"},
		"read only":             {nil, func(a *app) { a.flags.readOnly = true }, "--read-only forbids"},
		"an argument":           {[]string{"now"}, nil, "takes no argument"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			a := &app{env: Env{Stdout: &out, Stderr: io.Discard, Getenv: func(string) string { return "" }, Terminal: func(any) bool { return false }}}
			if c.change != nil {
				c.change(a)
			}
			cmd := newDemo(a)
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			cmd.SetArgs(c.args)
			err := cmd.ExecuteContext(t.Context())
			if usage := (*usageError)(nil); !errors.As(err, &usage) || !strings.Contains(usage.text, c.want) {
				t.Errorf("error %v, want usage that says %q", err, c.want)
			}
			if out.Len() > 0 {
				t.Errorf("it wrote %q", out.String())
			}
		})
	}
}
