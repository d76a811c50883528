package demo

import (
	"errors"
	"fmt"
	"strings"
)

// LostError says that payments were lost: a group that had finished everything has not handled them.
type LostError struct {
	Lost int64 // payments that at least one group has not handled
}

func (e *LostError) Error() string { return number(e.Lost, "payment was", "payments were") + " lost" }

// groupScore is what came of one group.
type groupScore struct {
	name     string
	handled  int64 // payments with the group's effect
	again    int64 // effects that were done once more, over all payments
	dead     int64 // dead letters left
	redriven int64
	missing  int64 // payments without the group's effect
	invented int64 // effects without a payment
}

// score is what came of the run, as the tables have it.
type score struct {
	produced int64 // rows of the business table
	ids      int64 // that the stream has given
	lost     int64 // payments that at least one group has not handled
	groups   []groupScore
}

// verdict judges a score; nil: nothing was lost and nothing else is wrong.
func (s *score) verdict() error {
	if s.produced == 0 {
		return errors.New("nothing was produced")
	}
	if s.ids != s.produced {
		return fmt.Errorf("there are %d payments, and the stream has given %d ids", s.produced, s.ids)
	}
	missing := int64(0)
	for _, g := range s.groups {
		missing = max(missing, g.missing)
		switch {
		case g.invented > 0:
			return fmt.Errorf("%s has handled %d payments that do not exist", g.name, g.invented)
		case g.dead > 0:
			return fmt.Errorf("%s still has %d dead letters", g.name, g.dead)
		case g.handled+g.missing != s.produced:
			return fmt.Errorf("%s has handled %d payments and not handled %d, of %d", g.name, g.handled, g.missing, s.produced)
		}
	}
	if missing > s.lost {
		return fmt.Errorf("%d payments are missing from a group, and %d are said to be lost", missing, s.lost)
	}
	if s.lost > 0 {
		return &LostError{Lost: s.lost}
	}
	return nil
}

// table draws the score. Its numbers are plain, for whoever reads them with a program.
func (s *score) table() []string {
	const name, cell = 16, 11
	row := func(first string, cells ...any) string {
		var b strings.Builder
		fmt.Fprintf(&b, "%-*s", name, first)
		for _, c := range cells {
			fmt.Fprintf(&b, "%*v", cell, c)
		}
		return b.String()
	}
	lines := []string{row("group", "produced", "handled", "run again", "dead left", "redriven", "lost")}
	for _, g := range s.groups {
		lines = append(lines, row(g.name, s.produced, g.handled, g.again, g.dead, g.redriven, g.missing))
	}
	return lines
}

// lastLine is the line that a run ends with. A run without a score does not know what was lost.
func lastLine(s *score) (tone, string) {
	var lost *LostError
	switch {
	case s == nil:
		return alarm, "lost unknown"
	case s.verdict() == nil:
		return good, "lost 0"
	case errors.As(s.verdict(), &lost):
		return alarm, fmt.Sprintf("lost %d", lost.Lost)
	default:
		return alarm, "lost unknown"
	}
}
