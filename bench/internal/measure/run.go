// Package measure runs programs in alternating rounds and says how they compare.
package measure

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// Values is what one run of a program saw, by name. Rates are per second, times in milliseconds unless the name says otherwise.
type Values map[string]float64

// Window says how long a run is: what happens in Warm is not counted.
type Window struct {
	Warm, Length time.Duration
}

// Program is one thing that is measured.
type Program struct {
	Name  string
	Title string
	// Length of the window in place of the usual one; 0: the usual one.
	Length time.Duration
	// Once: it runs in the first round only.
	Once bool
	// Run does the work for the window and says what it saw. It leaves the server as it found it.
	Run func(ctx context.Context, w Window) (Values, error)
}

// Sample is one run of one program.
type Sample struct {
	Program string    `json:"program"`
	Round   int       `json:"round"`
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	Values  Values    `json:"values,omitempty"`
	Error   string    `json:"error,omitempty"`
}

// Progress is told where a run stands.
type Progress interface {
	Begin(steps int)
	Step(done int, title string)
	End()
}

// slack is what a run may take beyond its window to begin and to clean up.
const slack = 2 * time.Minute

// Run runs all programs in each round. Every second round runs backwards: whatever a neighbour leaves behind (a warm cache, dirty pages, a busy disk) falls on both sides alike.
// A program that fails is noted in its sample and the others go on.
func Run(ctx context.Context, programs []Program, rounds int, w Window, p Progress) ([]Sample, error) {
	steps := 0
	for _, program := range programs {
		if program.Once {
			steps++
		} else {
			steps += rounds
		}
	}
	p.Begin(steps)
	defer p.End()
	var samples []Sample
	for round := 1; round <= rounds; round++ {
		order := slices.Clone(programs)
		if round%2 == 0 {
			slices.Reverse(order)
		}
		for _, program := range order {
			if program.Once && round > 1 {
				continue
			}
			if err := ctx.Err(); err != nil {
				return samples, context.Cause(ctx)
			}
			p.Step(len(samples), fmt.Sprintf("round %d of %d: %s", round, rounds, program.Title))
			samples = append(samples, one(ctx, program, round, w))
		}
	}
	p.Step(len(samples), "done")
	return samples, nil
}

func one(ctx context.Context, program Program, round int, w Window) Sample {
	if program.Length > 0 {
		w.Length = program.Length
	}
	ctx, cancel := context.WithTimeout(ctx, w.Warm+w.Length+slack)
	defer cancel()
	s := Sample{Program: program.Name, Round: round, Started: time.Now().UTC().Truncate(time.Second)}
	began := time.Now()
	values, err := program.Run(ctx, w)
	s.Seconds = time.Since(began).Seconds()
	// What could not be computed is not there.
	maps.DeleteFunc(values, func(_ string, v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
	s.Values = values
	if err != nil {
		s.Error = err.Error()
	}
	return s
}

// Failed joins the errors of all samples.
func Failed(samples []Sample) error {
	var all []error
	for _, s := range samples {
		if s.Error != "" {
			all = append(all, fmt.Errorf("%s, round %d: %s", s.Program, s.Round, s.Error))
		}
	}
	return errors.Join(all...)
}
