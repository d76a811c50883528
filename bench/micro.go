package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/sqlstreams/sqlstreams/bench/internal/measure"
	"github.com/sqlstreams/sqlstreams/bench/internal/micro"
	"github.com/sqlstreams/sqlstreams/bench/internal/payload"
	"github.com/sqlstreams/sqlstreams/bench/internal/product"
	"github.com/sqlstreams/sqlstreams/bench/internal/rig"
)

// appendBatches are the sizes of a single CALL.
func appendBatches() []int { return []int{1, 10, 100, 1000} }

// lockCases are the circumstances in which the policies for the stream's lock are compared.
func lockCases(o *options) []micro.Lock {
	var all []micro.Lock
	for _, processes := range o.lockProcesses {
		for _, batch := range o.lockBatches {
			for _, policy := range []micro.Policy{micro.Try, micro.Wait, micro.Inbox} {
				if processes > 1 || policy != micro.Wait {
					all = append(all, micro.Lock{Processes: processes, Batch: batch, Policy: policy, Size: o.size})
				}
			}
		}
	}
	return all
}

// runMicro measures single statements and reports.
func runMicro(ctx context.Context, o *options, stdout io.Writer, p measure.Progress) (err error) {
	set, err := payload.NewSet(setSize, o.size)
	if err != nil {
		return err
	}
	server, err := rig.Start(ctx, o.sharedBuffers[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	if err := errors.Join(server.Durable(ctx), product.Prepare(ctx, server.DSN())); err != nil {
		return err
	}
	setup, err := describeSetup(ctx, o, server)
	if err != nil {
		return err
	}
	m := &rig.Meter{Server: server, ProfileDir: o.profile}
	var list []measure.Program
	wants := func(kind string) bool { return len(o.only) == 0 || len(o.only) == 1 && o.only[0] == kind }
	if wants("append") {
		for _, batch := range appendBatches() {
			list = append(list,
				measure.Program{Name: micro.AppendName(batch), Title: fmt.Sprintf("append of %d", batch), Run: func(ctx context.Context, w measure.Window) (measure.Values, error) {
					return (&micro.Append{Batch: batch, Set: set}).Run(ctx, m, micro.AppendName(batch), w)
				}},
				measure.Program{Name: micro.CopyName(batch), Title: fmt.Sprintf("COPY of %d", batch), Run: func(ctx context.Context, w measure.Window) (measure.Values, error) {
					return (&micro.Copy{Batch: batch, Set: set}).Run(ctx, m, micro.CopyName(batch), w)
				}})
		}
	}
	if wants("lock") {
		for _, c := range lockCases(o) {
			list = append(list, measure.Program{Name: c.Name(), Title: c.Name(), Run: func(ctx context.Context, w measure.Window) (measure.Values, error) { return c.Run(ctx, m, w) }})
		}
	}
	if len(list) == 0 {
		return errors.New("-only of micro is append or lock")
	}
	samples, err := measure.Run(ctx, list, o.rounds, measure.Window{Warm: o.warm / 2, Length: o.seconds}, p)
	report := &measure.Report{Mode: o.mode, Commit: commit(ctx), Setup: setup, Samples: samples}
	if wants("append") {
		head, lines := micro.AppendTable(samples, appendBatches())
		err = errors.Join(err, measure.Lines(stdout, head, lines))
		fmt.Fprintln(stdout)
	}
	if wants("lock") {
		head, lines := micro.LockTable(samples, lockCases(o))
		err = errors.Join(err, measure.Lines(stdout, head, lines))
		fmt.Fprintln(stdout)
	}
	fmt.Fprintln(stdout, describe(report))
	return errors.Join(err, measure.Failed(samples), report.WriteJSON(o.out))
}
