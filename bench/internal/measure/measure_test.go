package measure

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

type quiet struct{}

func (quiet) Begin(int)        {}
func (quiet) Step(int, string) {}
func (quiet) End()             {}

func TestRoundsAlternate(t *testing.T) {
	var order []string
	program := func(name string, once bool) Program {
		return Program{Name: name, Once: once, Run: func(context.Context, Window) (Values, error) {
			order = append(order, name)
			if name == "b" {
				return nil, errors.New("broken")
			}
			return Values{"rate": 1}, nil
		}}
	}
	samples, err := Run(t.Context(), []Program{program("a", false), program("b", false), program("c", true)}, 3, Window{}, quiet{})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"a", "b", "c", "b", "a", "a", "b"}; !slices.Equal(order, want) {
		t.Errorf("order %v, not %v", order, want)
	}
	if err := Failed(samples); err == nil || strings.Count(err.Error(), "broken") != 3 {
		t.Errorf("failures of single runs are not told: %v", err)
	}
}

func TestBars(t *testing.T) {
	samples := []Sample{
		{Program: "case", Round: 1, Values: Values{"rate": 80}}, {Program: "limit", Round: 1, Values: Values{"rate": 100}},
		{Program: "case", Round: 2, Values: Values{"rate": 30}}, {Program: "limit", Round: 2, Values: Values{"rate": 50}},
		{Program: "case", Round: 3, Values: Values{"rate": 70}}, {Program: "limit", Round: 3, Values: Values{"rate": 100}},
		{Program: "case", Round: 4, Values: Values{"rate": 1}, Error: "broken"}, {Program: "limit", Round: 4, Values: Values{"rate": 100}},
	}
	rate := func(p string) Metric { return Metric{p, "rate"} }
	for _, c := range []struct {
		name    string
		bar     Bar
		verdict string
		ratio   float64
	}{
		{"ratio reached", Bar{Case: rate("case"), Limit: rate("limit"), Ratio: 0.7}, Met, 0.7},
		{"ratio missed", Bar{Case: rate("case"), Limit: rate("limit"), Ratio: 0.75}, NotMet, 0.7},
		{"at most", Bar{Case: rate("case"), Limit: rate("limit"), Ratio: 0.75, AtMost: true}, Met, 0.7},
		{"absolute", Bar{Case: rate("case"), Absolute: 71}, NotMet, 0},
		{"either", Bar{Case: rate("case"), Limit: rate("limit"), Absolute: 71, Ratio: 0.5}, Met, 0.7},
		{"no bar", Bar{Case: rate("case")}, NoBar, 0},
		{"no limit", Bar{Case: rate("case"), Limit: rate("nothing"), Ratio: 0.1}, NotMeasured, 0},
		{"too few rounds", Bar{Case: rate("case"), Limit: rate("limit"), Ratio: 0.7, Rounds: 4}, Incomplete, 0.7},
		{"no case", Bar{Case: rate("nothing"), Limit: rate("limit"), Ratio: 0.1}, NotMeasured, 0},
	} {
		row := Evaluate(c.bar, samples)
		if row.Verdict != c.verdict || math.Abs(row.Ratio-c.ratio) > 1e-9 {
			t.Errorf("%s: %s with ratio %v, not %s with %v", c.name, row.Verdict, row.Ratio, c.verdict, c.ratio)
		}
	}
}

func TestQuantiles(t *testing.T) {
	values := []float64{1, 2, 3, 4}
	for q, want := range map[float64]float64{0.5: 2, 0.99: 4, 0.25: 1, 0: 1, 1: 4} {
		if got := Quantile(values, q); got != want {
			t.Errorf("quantile %v is %v, not %v", q, got, want)
		}
	}
	if !math.IsNaN(Quantile(nil, 0.5)) || !math.IsNaN(Median(nil)) {
		t.Error("no values have a quantile")
	}
}

func TestNumbersAreReadable(t *testing.T) {
	for v, want := range map[float64]string{0.7: "0.7", 0.75: "0.75", 3: "3", 12.34: "12.3", 812.3: "812", 56789.4: "56,789", 1234567: "1,234,567", 0.014: "0.01", 1.999: "2", 0.001: "0"} {
		if got := number(v); got != want {
			t.Errorf("%v is written %q, not %q", v, got, want)
		}
	}
}
