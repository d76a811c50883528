package cli

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/sqlstreams/sqlstreams"
)

// deadView is a dead letter in JSON: the message, and what became of it.
type deadView struct {
	messageView
	Reason   string     `json:"reason"`
	Error    string     `json:"error"`
	Attempts int        `json:"attempts"`
	DiedAt   *time.Time `json:"died_at"`
}

func viewDead(d *sqlstreams.DeadLetter) deadView {
	return deadView{messageView: viewMessage(&d.Message), Reason: d.Reason, Error: d.Error, Attempts: d.Attempts, DiedAt: at(d.DiedAt)}
}

type attemptView struct {
	Number   int        `json:"number"`
	Kind     string     `json:"kind"` // retry, dead
	Error    string     `json:"error"`
	Instance string     `json:"instance"`
	EndedAt  *time.Time `json:"ended_at"`
}

type deadStoryView struct {
	deadView
	History []attemptView `json:"history"`
}

func newDeadShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show STREAM GROUP ID",
		Short: "Show one dead letter: message, error and attempts.",
		Long: `Show one dead letter: its message as the group keeps it, why it died, and the attempts that are on record (seven days).

A payload that is JSON is indented, another is shown in hexadecimal; -o json has it whole, as JSON or in base64.`,
		Example: `  sqlstreams dead show orders mailer 4711
  sqlstreams dead show orders mailer 4711 -o json | jq .payload`,
		Args:              args("STREAM", "GROUP", "ID"),
		ValidArgsFunction: a.completeStreamGroup,
		RunE: func(cmd *cobra.Command, given []string) error {
			id, err := strconv.ParseInt(given[2], 10, 64)
			if err != nil || id < 1 {
				return usagef("ID is %q; it is a message's id, a number", given[2])
			}
			ctx, cancel := a.once(cmd)
			defer cancel()
			conn, err := a.connect(ctx, openOptions{})
			if err != nil {
				return err
			}
			defer conn.close()
			g := target{conn.Group(given[0], given[1]), given[0], given[1]}
			letter, attempts, err := g.GetDeadLetter(ctx, id)
			if err != nil {
				return err
			}
			if letter == nil {
				return &failure{err: failf("%s has no dead letter %d", g, id), hint: g.command(a, "dead list") + " --each"}
			}
			return a.showDead(letter, attempts)
		},
	}
}

func (a *app) showDead(d *sqlstreams.DeadLetter, attempts []sqlstreams.Attempt) error {
	view := deadStoryView{deadView: viewDead(d), History: make([]attemptView, 0, len(attempts))}
	t := newTable("ATTEMPT", "ENDED", "THEN", "INSTANCE", "ERROR").numbers(0)
	for _, try := range attempts {
		view.History = append(view.History, attemptView{Number: try.Number, Kind: try.Kind, Error: try.Error, Instance: try.Instance, EndedAt: at(try.EndedAt)})
		t.add(number(try.Number), stamp(try.EndedAt), try.Kind, dash(try.Instance), firstLine(try.Error))
	}
	return a.show(view, func(w io.Writer) error {
		fields := []string{"message", number(d.ID), "key", dash(d.Key), "routing key", dash(d.RoutingKey), "schema version", number(d.SchemaVersion), "produced", stamp(d.ProducedAt),
			"died", stamp(d.DiedAt) + ", " + ago(d.DiedAt, time.Now()), "reason", d.Reason, "attempts", number(d.Attempts)}
		for _, k := range slices.Sorted(maps.Keys(d.Headers)) {
			fields = append(fields, "header "+printable(k), d.Headers[k])
		}
		if err := a.fields(w, fields...); err != nil {
			return err
		}
		for _, part := range []struct{ title, text string }{{"error:", indent(lines(d.Error))}, {"payload:", indent(payloadPage(&d.Message))}} {
			if _, err := fmt.Fprintf(w, "\n%s\n%s\n", a.styled(w, bold, part.title), part.text); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
		return a.writeTable(w, t, "no attempts are on record any more")
	})
}

// lines are the lines of a text, each safe for a terminal.
func lines(text string) []string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := range all {
		all[i] = printable(strings.ReplaceAll(strings.TrimSuffix(all[i], "\r"), "\t", "    "))
	}
	return all
}

func firstLine(text string) string {
	first, rest, _ := strings.Cut(text, "\n")
	if strings.TrimSpace(rest) != "" {
		return first + " …"
	}
	return first
}

func indent(lines []string) string { return "  " + strings.Join(lines, "\n  ") }

// maxHex is how much of a payload is shown in hexadecimal: some screens.
const maxHex = 4096

// payloadPage is a payload over several lines.
func payloadPage(m *sqlstreams.Message) []string {
	switch {
	case m.Redacted:
		return []string{"(redacted)"}
	case m.Payload == nil:
		return []string{"(none)"}
	case len(m.Payload) == 0:
		return []string{"(empty)"}
	}
	var pretty bytes.Buffer
	if utf8.Valid(m.Payload) && json.Indent(&pretty, m.Payload, "", "  ") == nil {
		return lines(pretty.String())
	}
	all := lines(hex.Dump(m.Payload[:min(len(m.Payload), maxHex)]))
	if len(m.Payload) > maxHex {
		all = append(all, fmt.Sprintf("… %s in all; -o json has them", size(int64(len(m.Payload)))))
	}
	return all
}
