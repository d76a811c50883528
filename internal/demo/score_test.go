package demo

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// whole is a score of which nothing is to be said.
func whole(change func(*score)) *score {
	s := &score{produced: 500, ids: 500, groups: []groupScore{
		{name: chargeCards, handled: 500, again: 7, redriven: 3},
		{name: auditPayments, handled: 500},
	}}
	if change != nil {
		change(s)
	}
	return s
}

func TestVerdictNeverTakesWhatIsWrongForNothingLost(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*score)
		last   string
		err    string
	}{
		"nothing lost":           {nil, "lost 0", ""},
		"lost by both groups":    {func(s *score) { lose(s, 1, 1); s.lost = 1 }, "lost 1", "1 payment was lost"},
		"two, one by each":       {func(s *score) { lose(s, 1, 1); s.lost = 2 }, "lost 2", "2 payments were lost"},
		"lost by one group":      {func(s *score) { lose(s, 0, 3); s.lost = 3 }, "lost 3", "3 payments were lost"},
		"nothing produced":       {func(s *score) { *s = score{} }, "lost unknown", "nothing was produced"},
		"a message without row":  {func(s *score) { s.ids++ }, "lost unknown", "500 payments, and the stream has given 501 ids"},
		"a row without message":  {func(s *score) { s.ids-- }, "lost unknown", "given 499 ids"},
		"dead letters left":      {func(s *score) { s.groups[0].dead = 2 }, "lost unknown", "still has 2 dead letters"},
		"handled out of nothing": {func(s *score) { s.groups[1].invented = 1 }, "lost unknown", "do not exist"},
		"a sum that is not right": {func(s *score) { s.groups[1].handled = 499 }, "lost unknown",
			"audit-payments has handled 499 payments and not handled 0, of 500"},
		"missing and not counted": {func(s *score) { lose(s, 0, 1) }, "lost unknown", "1 payments are missing"},
	} {
		t.Run(name, func(t *testing.T) {
			s := whole(c.change)
			err := s.verdict()
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("verdict %v, want %q", err, c.err)
			}
			lost := (*LostError)(nil)
			if isLost := errors.As(err, &lost); isLost != (s.lost > 0) || isLost && lost.Lost != s.lost {
				t.Errorf("LostError %v, %d are lost", lost, s.lost)
			}
			tone, text := lastLine(s)
			if text != c.last || (tone == good) != (err == nil) {
				t.Errorf("last line %q in tone %q, want %q", text, tone, c.last)
			}
		})
	}
	if _, text := lastLine(nil); text != "lost unknown" {
		t.Errorf("without a score the last line is %q", text)
	}
}

func lose(s *score, byGroup ...int64) {
	for i, n := range byGroup {
		s.groups[i].handled -= n
		s.groups[i].missing += n
	}
}

func TestTable(t *testing.T) {
	want := []string{
		"group              produced    handled  run again  dead left   redriven       lost",
		"charge-cards            500        499          7          0          3          1",
		"audit-payments          500        500          0          0          0          0",
	}
	if diff := cmp.Diff(want, whole(func(s *score) { lose(s, 1); s.lost = 1 }).table()); diff != "" {
		t.Error(diff)
	}
}
