package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sqlstreams/sqlstreams/bench/internal/measure"
	"github.com/sqlstreams/sqlstreams/bench/internal/payload"
	"github.com/sqlstreams/sqlstreams/bench/internal/product"
	"github.com/sqlstreams/sqlstreams/bench/internal/rig"
)

// setSize is the number of different messages.
const setSize = 1000

// runBars measures the bars and reports.
func runBars(ctx context.Context, o *options, stdout io.Writer, p measure.Progress) error {
	all, err := chosen(o)
	if err != nil {
		return err
	}
	for i := range all {
		all[i].Rounds = o.rounds
		if slices.Contains(measuredOnce(), all[i].Case.Program) {
			all[i].Rounds = 1
		}
	}
	set, err := payload.NewSet(setSize, o.size)
	if err != nil {
		return err
	}
	// Both are what the run begins with: the tree may change meanwhile.
	report := &measure.Report{Mode: o.mode, Commit: commit(ctx), Details: map[string]any{}}
	var failures []error
	for i, buffers := range o.sharedBuffers {
		use := all
		if i > 0 {
			// Another setting moves the limit and what is closest to it; the rest would take as long again.
			use = slices.DeleteFunc(slices.Clone(all), func(b measure.Bar) bool { return b.ID != "limit" && b.ID != "S1" })
		}
		if len(use) == 0 {
			continue
		}
		part, setup, err := onServer(ctx, o, buffers, set, use, report.Details, p)
		if setup != nil && i == 0 {
			report.Setup = setup
		}
		for j := range part {
			if i > 0 {
				part[j].Program += "@" + buffers
			}
		}
		report.Samples = append(report.Samples, part...)
		rows := measure.EvaluateAll(named(use, i, buffers), report.Samples)
		report.Rows = append(report.Rows, rows...)
		if len(o.sharedBuffers) > 1 {
			fmt.Fprintf(stdout, "\nshared_buffers %s\n", buffers)
		}
		if tableErr := measure.Table(stdout, rows); tableErr != nil {
			return tableErr
		}
		failures = append(failures, err, measure.Failed(part))
		if err != nil || ctx.Err() != nil {
			report.Ended = fmt.Sprint(errors.Join(err, context.Cause(ctx)))
			break
		}
	}
	if err := costs(stdout, report.Samples); err != nil {
		return err
	}
	if report.Setup != nil {
		fmt.Fprintf(stdout, "\n%s\n", describe(report))
	}
	return errors.Join(append(failures, report.WriteJSON(o.out))...)
}

// named points bars at the samples of another setting.
func named(all []measure.Bar, i int, buffers string) []measure.Bar {
	if i == 0 {
		return all
	}
	all = slices.Clone(all)
	for j := range all {
		all[j].Case.Program += "@" + buffers
		if all[j].Limit.Program != "" {
			all[j].Limit.Program += "@" + buffers
		}
	}
	return all
}

// onServer runs what the bars need on a server of its own.
func onServer(ctx context.Context, o *options, buffers string, set *payload.Set, use []measure.Bar, details map[string]any, p measure.Progress) (samples []measure.Sample, setup map[string]any, err error) {
	server, err := rig.Start(ctx, buffers)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	if err := errors.Join(server.Durable(ctx), product.Prepare(ctx, server.DSN())); err != nil {
		return nil, nil, err
	}
	if setup, err = describeSetup(ctx, o, server); err != nil {
		return nil, nil, err
	}
	m := &rig.Meter{Server: server, ProfileDir: o.profile, Detail: func(name string, what any) { details[name] = what }}
	names := needed(use)
	var list []measure.Program
	for _, c := range programs(o, set) {
		if names[c.name] {
			list = append(list, runnable(c, o, m))
		}
	}
	samples, err = measure.Run(ctx, list, o.rounds, measure.Window{Warm: o.warm, Length: o.seconds}, p)
	if err != nil {
		return samples, setup, err
	}
	soaks := soakPrograms(o, set, m, names, samples)
	if len(soaks) > 0 {
		var more []measure.Sample
		more, err = measure.Run(ctx, soaks, 1, measure.Window{Length: o.soakPoint * time.Duration(o.soakPoints+o.soakAfter)}, p)
		samples = append(samples, more...)
	}
	return samples, setup, err
}

func runnable(c program, o *options, m *rig.Meter) measure.Program {
	return measure.Program{Name: c.name, Title: c.title, Once: slices.Contains(measuredOnce(), c.name), Run: func(ctx context.Context, w measure.Window) (measure.Values, error) {
		if c.length != nil {
			w = c.length(o)
		}
		return c.run(ctx, m, c.name, w)
	}}
}

// soakPrograms are made after the rounds, as they run at half of what those reached.
func soakPrograms(o *options, set *payload.Set, m *rig.Meter, names map[string]bool, samples []measure.Sample) []measure.Program {
	half := func(program string) float64 {
		return measure.Evaluate(measure.Bar{Case: measure.Metric{Program: program, Value: "rate"}}, samples).Measured / 2
	}
	var all []measure.Program
	add := func(name, title string, flow product.Flow) {
		if !names[name] || flow.Rate == 0 || math.IsNaN(flow.Rate) {
			return
		}
		flow.Set, flow.Size = set, o.size
		soak := &product.Soak{Flow: flow, Every: o.soakPoint, Points: o.soakPoints, After: o.soakAfter}
		all = append(all, measure.Program{Name: name, Title: title, Once: true, Run: func(ctx context.Context, _ measure.Window) (measure.Values, error) {
			return soak.Run(ctx, m, name)
		}})
	}
	add("s12", "S12, soak with batches", product.Flow{Callers: 1, Batch: 1000, Rate: half("s1")})
	add("s12tx", "S12, soak with ProduceTx and failures", product.Flow{Callers: 64, Batch: 1, InTx: true, FailOnce: true, Rate: half("s3b-tx")})
	return all
}

// costs prints what client and server spend on a message.
func costs(w io.Writer, samples []measure.Sample) error {
	var order []string
	of := map[string]map[string][]float64{}
	for _, s := range samples {
		if _, ok := s.Values["server_us"]; !ok || s.Error != "" {
			continue
		}
		if of[s.Program] == nil {
			of[s.Program] = map[string][]float64{}
			order = append(order, s.Program)
		}
		for _, name := range []string{"rate", "client_us", "server_us"} {
			of[s.Program][name] = append(of[s.Program][name], s.Values[name])
		}
	}
	if len(order) == 0 {
		return nil
	}
	var lines [][]string
	for _, program := range order {
		client, server := measure.Median(of[program]["client_us"]), measure.Median(of[program]["server_us"])
		var spread []string
		for _, v := range of[program]["rate"] {
			spread = append(spread, measure.Number(v))
		}
		lines = append(lines, []string{program, measure.Number(client), measure.Number(server), measure.Number(client + server), " " + strings.Join(spread, " ")})
	}
	fmt.Fprintln(w)
	return measure.Lines(w, []string{"processor time a message, µs", "client", "server", "both", " rates of the rounds"}, lines)
}
