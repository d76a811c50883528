package measure

import (
	"math"
	"slices"
)

// Metric names one value of one program.
type Metric struct {
	Program string `json:"program"`
	Value   string `json:"value"`
}

// Bar is one line of the table: a value, what it is compared with, and what it should reach.
type Bar struct {
	ID    string
	Title string
	Unit  string
	Case  Metric
	Limit Metric // no program: the bar is absolute
	// Ratio is what Case/Limit should reach; 0: no such bar.
	Ratio float64
	// Absolute is what Case should reach. With Ratio, either will do.
	Absolute float64
	// AtMost: smaller is better.
	AtMost bool
	// Rounds is how many rounds a verdict needs. Default 1.
	Rounds int
}

// Row is a bar with what was measured.
type Row struct {
	ID       string  `json:"id"`
	Title    string  `json:"title"`
	Unit     string  `json:"unit"`
	Case     Metric  `json:"case"`
	Against  *Metric `json:"against,omitempty"`
	Measured float64 `json:"measured"`        // median over the rounds
	Limit    float64 `json:"limit,omitempty"` // likewise
	Ratio    float64 `json:"ratio,omitempty"` // median of the rounds' own ratios, whose two sides ran side by side
	Bar      string  `json:"bar,omitempty"`
	Rounds   int     `json:"rounds"`  // that were measured, of both sides
	Verdict  string  `json:"verdict"` // met, not met, no bar, not measured, incomplete
}

// The verdicts.
const (
	Met         = "met"
	NotMet      = "not met"
	NoBar       = "no bar"
	NotMeasured = "not measured"
	Incomplete  = "incomplete" // fewer rounds than the verdict needs
)

// Median of values; NaN for none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// Quantile returns the smallest value that at least the fraction q of sorted values do not exceed; NaN for none.
func Quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

// perRound returns a metric's values by round.
func perRound(samples []Sample, m Metric) map[int]float64 {
	values := map[int]float64{}
	for _, s := range samples {
		if v, ok := s.Values[m.Value]; ok && s.Program == m.Program && s.Error == "" {
			values[s.Round] = v
		}
	}
	return values
}

func collect(values map[int]float64) []float64 {
	all := make([]float64, 0, len(values))
	for _, v := range values {
		all = append(all, v)
	}
	return all
}

// Evaluate compares one bar with the samples.
func Evaluate(b Bar, samples []Sample) Row {
	row := Row{ID: b.ID, Title: b.Title, Unit: b.Unit, Case: b.Case, Bar: b.text(), Verdict: NotMeasured}
	measured := perRound(samples, b.Case)
	limits := map[int]float64{}
	if b.Limit.Program != "" {
		row.Against = &b.Limit
		limits = perRound(samples, b.Limit)
	}
	if len(limits) > 0 {
		row.Limit = Median(collect(limits))
	}
	if len(measured) == 0 {
		return row
	}
	row.Measured = Median(collect(measured))
	ratios := map[int]float64{}
	for round, v := range measured {
		if limit, ok := limits[round]; ok && limit != 0 {
			ratios[round] = v / limit
		}
	}
	if len(ratios) > 0 {
		row.Ratio = Median(collect(ratios))
	}
	row.Rounds = len(measured)
	if row.Against != nil {
		row.Rounds = len(ratios)
	}
	row.Verdict = b.verdict(row, len(ratios) > 0)
	if row.Verdict != NotMeasured && row.Rounds < b.Rounds {
		row.Verdict = Incomplete
	}
	return row
}

// EvaluateAll compares all bars with the samples.
func EvaluateAll(bars []Bar, samples []Sample) []Row {
	rows := make([]Row, 0, len(bars))
	for _, b := range bars {
		rows = append(rows, Evaluate(b, samples))
	}
	return rows
}

func (b Bar) verdict(row Row, compared bool) string {
	reaches := func(v, want float64) bool {
		if b.AtMost {
			return v <= want
		}
		return v >= want
	}
	switch {
	case b.Ratio == 0 && b.Absolute == 0:
		return NoBar
	case b.Absolute != 0 && reaches(row.Measured, b.Absolute), b.Ratio != 0 && compared && reaches(row.Ratio, b.Ratio):
		return Met
	case b.Absolute == 0 && !compared:
		return NotMeasured
	}
	return NotMet
}

func (b Bar) text() string {
	sign := "≥ "
	if b.AtMost {
		sign = "≤ "
	}
	absolute, ratio := "", ""
	if b.Absolute != 0 {
		absolute = sign + number(b.Absolute) + " " + b.Unit
	}
	if b.Ratio != 0 {
		ratio = sign + number(b.Ratio) + "x"
	}
	if absolute != "" && ratio != "" {
		return absolute + " or " + ratio
	}
	return absolute + ratio
}
