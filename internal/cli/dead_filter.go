package cli

import (
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sqlstreams/sqlstreams"
)

// filterFlags choose some of a group's dead letters, or of its deliveries that wait.
type filterFlags struct {
	ids                            []string
	reason, failure, contains, key string
	since, until                   string
	names                          []string // of the flags that belong here
}

// add declares the flags. dead: for dead letters, which have a reason.
func (f *filterFlags) add(cmd *cobra.Command, dead bool) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.ids, "id", nil, "only these messages: `ids` with commas between")
	flags.StringVar(&f.key, "key", "", "only messages of this `key`")
	f.names = []string{"id", "error", "contains", "key", "since", "until"}
	since, numbers := "only what first failed", ""
	if dead {
		flags.StringVar(&f.reason, "reason", "", "only what died of this `reason`: exhausted, terminal, undecodable or version")
		f.names = append(f.names, "reason")
		completeWords(cmd, "reason", "exhausted", "terminal", "undecodable", "version")
		since, numbers = "only what died", ", so a line of dead list means all that it counts"
	}
	flags.StringVar(&f.failure, "error", "", "only this error `text`; numbers in it do not count"+numbers)
	flags.StringVar(&f.contains, "contains", "", "only errors that contain this `text`")
	flags.StringVar(&f.since, "since", "", since+" then or later: a `time`, or how long ago (2h, 3d)")
	flags.StringVar(&f.until, "until", "", since+" before then: a `time`, or how long ago")
}

// given reports whether the command line has a filter.
func (f *filterFlags) given(cmd *cobra.Command) bool {
	for _, name := range f.names {
		if cmd.Flags().Changed(name) {
			return true
		}
	}
	return false
}

// filter reads the flags; nil: none was given, so everything is meant. An empty value is refused, because it would mean everything, too: a script's unset variable must not widen what is discarded.
func (f *filterFlags) filter(cmd *cobra.Command, now time.Time) (*sqlstreams.DeliveryFilter, error) {
	if !f.given(cmd) {
		return nil, nil
	}
	for _, name := range f.names {
		if flag := cmd.Flags().Lookup(name); flag.Changed && (flag.Value.String() == "" || name == "id" && len(f.ids) == 0) {
			return nil, usagef("--%s is empty", name)
		}
	}
	out := &sqlstreams.DeliveryFilter{Reason: f.reason, Error: f.failure, Contains: f.contains, Key: f.key}
	for _, text := range f.ids {
		id, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		if err != nil || id < 1 {
			return nil, usagef("--id has %q; ids are numbers from 1, with commas between", text)
		}
		out.IDs = append(out.IDs, id)
	}
	var err error
	if out.After, err = moment("since", f.since, now); err != nil {
		return nil, err
	}
	if out.Before, err = moment("until", f.until, now); err != nil {
		return nil, err
	}
	if !out.After.IsZero() && !out.Before.IsZero() && !out.After.Before(out.Before) {
		return nil, usagef("--since is not before --until")
	}
	return out, nil
}

// moment reads a point in time: RFC 3339, a date or a date with a time in the zone of the process, or how long ago.
func moment(flag, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	for _, layout := range []string{time.DateOnly, "2006-01-02 15:04", time.DateTime, "2006-01-02T15:04:05"} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, nil
		}
	}
	if ago, err := parseAgo(text); err == nil && ago > 0 {
		return now.Add(-ago), nil
	}
	return time.Time{}, usagef("--%s is %q; it is a time such as 2026-01-31T08:00:00Z or 2026-01-31, or how long ago, such as 90m or 3d", flag, text)
}

// parseAgo is ParseDuration with days.
func parseAgo(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err
	}
	return time.ParseDuration(text)
}

// age is how long something took or is ago, for a person.
func age(d time.Duration) string {
	const day = 24 * time.Hour
	switch d = max(d, 0).Round(time.Second); {
	case d >= 2*day:
		return number(int64(d/day)) + "d" + number(int64(d%day/time.Hour)) + "h"
	case d >= time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	default:
		return d.String()
	}
}

// ago is how long before now something was; "-": it was not.
func ago(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return age(now.Sub(t)) + " ago"
}

// dueIn is how long after now something is.
func dueIn(t, now time.Time) string {
	if !t.After(now) {
		return "now"
	}
	return "in " + age(t.Sub(now))
}
