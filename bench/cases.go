package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/bench/internal/measure"
	"github.com/sqlstreams/sqlstreams/bench/internal/micro"
	"github.com/sqlstreams/sqlstreams/bench/internal/payload"
	"github.com/sqlstreams/sqlstreams/bench/internal/plain"
	"github.com/sqlstreams/sqlstreams/bench/internal/product"
	"github.com/sqlstreams/sqlstreams/bench/internal/rig"
	"github.com/sqlstreams/sqlstreams/bench/internal/worker"
)

// roles is what processes of this program can be.
func roles() map[string]worker.Role {
	all := product.Roles()
	maps.Copy(all, map[string]worker.Role{
		plain.InsertRole: plain.RunInsert, plain.ListenRole: plain.RunListen, plain.NotifyRole: plain.RunNotify,
		micro.AppendRole: micro.RunAppend,
	})
	return all
}

// pickupRate is the messages per second while the time to pick up is measured.
const pickupRate = 50

// program makes a runnable program of one case. The meter comes at the start, as there may be several servers.
type program struct {
	name, title string
	length      func(o *options) measure.Window // nil: the usual window
	run         func(ctx context.Context, m *rig.Meter, name string, w measure.Window) (measure.Values, error)
}

// programs returns everything that can be run, in the order in which it runs: each case stands beside what it is compared with.
func programs(o *options, set *payload.Set) []program {
	flow := func(f product.Flow) func(context.Context, *rig.Meter, string, measure.Window) (measure.Values, error) {
		f.Set, f.Size = set, o.size
		return f.Run
	}
	copied := func(batch int, column string, encode bool) func(context.Context, *rig.Meter, string, measure.Window) (measure.Values, error) {
		return (&plain.Copy{Batch: batch, Column: column, Encode: encode, Set: set}).Run
	}
	insert := func(i plain.Insert) func(context.Context, *rig.Meter, string, measure.Window) (measure.Values, error) {
		i.Size = o.size
		return i.Run
	}
	picked := func(by string, pollOnly bool) func(context.Context, *rig.Meter, string, measure.Window) (measure.Values, error) {
		c := &product.Pickup{By: by, PollOnly: pollOnly, Rate: pickupRate, Size: o.size}
		return func(ctx context.Context, m *rig.Meter, _ string, w measure.Window) (measure.Values, error) {
			return c.Run(ctx, m, w)
		}
	}
	idle := func(streams, groups int) func(context.Context, *rig.Meter, string, measure.Window) (measure.Values, error) {
		c := &product.Idle{Streams: streams, Groups: groups}
		return func(ctx context.Context, m *rig.Meter, _ string, w measure.Window) (measure.Values, error) {
			return c.Run(ctx, m, w)
		}
	}
	keyed := func(order sqlstreams.KeyOrder) func(context.Context, *rig.Meter, string, measure.Window) (measure.Values, error) {
		return (&product.Keyed{Order: order, Keys: 10_000, Instances: 2, Handlers: 8, Work: time.Millisecond, Set: set}).Run
	}
	// A p99 needs some hundred messages.
	// A key that is left behind shows after a while only.
	filling := func(o *options) measure.Window { return measure.Window{Warm: 2 * o.warm, Length: 2 * o.seconds} }
	longer := func(o *options) measure.Window { return measure.Window{Warm: o.warm, Length: o.seconds * 3 / 2} }
	idling := func(o *options) measure.Window { return measure.Window{Warm: 3 * o.warm, Length: 3 * o.seconds} }
	return []program{
		{name: "limit-1000-bare", title: "limit, 1,000 a batch, not encoded", run: copied(1000, "json", false)},
		{name: "limit-1000", title: "limit, 1,000 a batch", run: copied(1000, "json", true)},
		{name: "s1", title: "S1", run: flow(product.Flow{Callers: 1, Batch: 1000})},
		{name: "s11", title: "S11, five groups", run: flow(product.Flow{Callers: 1, Batch: 1000, Groups: 5})},
		{name: "s3", title: "S3, 64 callers", run: flow(product.Flow{Callers: 64, Batch: 1})},
		{name: "s1-raw", title: "S1 with raw payloads", run: flow(product.Flow{Callers: 1, Batch: 1000, Raw: true})},
		{name: "limit-1000-bytea", title: "limit, 1,000 a batch, bytea, not encoded", run: copied(1000, "bytea", false)},
		{name: "limit-250-bare", title: "limit, 250 a batch, not encoded", run: copied(250, "json", false)},
		{name: "limit-250", title: "limit, 250 a batch", run: copied(250, "json", true)},
		{name: "s2", title: "S2, 250 from four callers", run: flow(product.Flow{Callers: 4, Batch: 250})},
		{name: "insert-16", title: "plain inserts, 16 processes", run: insert(plain.Insert{Processes: 16})},
		{name: "s3b-processes", title: "S3b, Produce from 16 processes", run: flow(product.Flow{Processes: 16})},
		{name: "insert-64", title: "plain inserts, 64 connections", run: insert(plain.Insert{Conns: 64})},
		{name: "s3b-tx", title: "S3b, ProduceTx from 64 callers", run: flow(product.Flow{Callers: 64, Batch: 1, InTx: true})},
		{name: "insert-64-tx", title: "plain inserts in transactions, 64 connections", run: insert(plain.Insert{Conns: 64, InTx: true})},
		{name: "s4", title: "S4, what ProduceTx adds", run: func(ctx context.Context, m *rig.Meter, _ string, w measure.Window) (measure.Values, error) {
			return (&product.Addition{Size: o.size}).Run(ctx, m, w)
		}},
		{name: "s5-bare", title: "pick-up, bare LISTEN and select", length: longer, run: (&plain.Listen{Rate: pickupRate, Size: o.size}).Run},
		{name: "s5-produce", title: "S5, pick-up after Produce", length: longer, run: picked(product.ByProduce, false)},
		{name: "s5-intx", title: "S5, pick-up after InTx", length: longer, run: picked(product.ByInTx, false)},
		{name: "s5-tx", title: "S5, pick-up after ProduceTx", length: longer, run: picked(product.ByTx, false)},
		{name: "s5-poll", title: "S5, pick-up without LISTEN", length: longer, run: picked(product.ByProduce, true)},
		{name: "s9", title: "S9, every message fails once", run: flow(product.Flow{Callers: 1, Batch: 1000, FailOnce: true})},
		{name: "s10", title: "S10, ordered keys", length: filling, run: keyed(sqlstreams.Ordered)},
		{name: "s10-parallel", title: "S10, the same in any order", length: filling, run: keyed(sqlstreams.Parallel)},
		{name: "idle", title: "one idle group", length: idling, run: idle(1, 1)},
		{name: "s6", title: "S6, 1,000 streams with 2,000 idle groups", length: idling, run: idle(o.idleStreams, 2)},
	}
}

// bars are the lines of the table.
func bars() []measure.Bar {
	rate := func(program string) measure.Metric { return measure.Metric{Program: program, Value: "rate"} }
	of := func(program, value string) measure.Metric { return measure.Metric{Program: program, Value: value} }
	all := []measure.Bar{
		{ID: "limit", Title: "COPY of 1,000 and a reader, encoded and decoded", Unit: "/s", Case: rate("limit-1000")},
		{ID: "limit", Title: "the same bytes, neither encoded nor decoded", Unit: "/s", Case: rate("limit-1000-bare")},
		{ID: "limit", Title: "the same as bytea, neither encoded nor decoded", Unit: "/s", Case: rate("limit-1000-bytea")},
		{ID: "limit", Title: "COPY of 250 and a reader, encoded and decoded", Unit: "/s", Case: rate("limit-250")},
		{ID: "limit", Title: "the same bytes, neither encoded nor decoded", Unit: "/s", Case: rate("limit-250-bare")},
		{ID: "S1", Title: "ProduceBatch of 1,000, one group", Unit: "/s", Case: rate("s1"), Limit: rate("limit-1000"), Ratio: 0.75},
		{ID: "S1", Title: "the same with raw payloads, against bytea not encoded", Unit: "/s", Case: rate("s1-raw"), Limit: rate("limit-1000-bytea"), Ratio: 0.8},
		{ID: "S2", Title: "ProduceBatch of 250 from four callers", Unit: "/s", Case: rate("s2"), Limit: rate("limit-250"), Ratio: 0.75},
		{ID: "S3", Title: "Produce from 64 callers", Unit: "/s", Case: rate("s3"), Limit: rate("limit-1000"), Ratio: 0.4},
		{ID: "S3b", Title: "Produce from 16 processes, against plain inserts", Unit: "/s", Case: rate("s3b-processes"), Limit: rate("insert-16"), Ratio: 0.8},
		{ID: "S3b", Title: "ProduceTx from 64 callers, against plain inserts", Unit: "/s", Case: rate("s3b-tx"), Limit: rate("insert-64"), Ratio: 0.8},
		{ID: "S3b", Title: "the same, against inserts in transactions", Unit: "/s", Case: rate("s3b-tx"), Limit: rate("insert-64-tx")},
		{ID: "S4", Title: "ProduceTx adds, against a plain insert", Unit: "µs", Case: of("s4", "added_produce"), Limit: of("s4", "added_plain"), Ratio: 1.3, AtMost: true},
		{ID: "S4", Title: "its statement alone", Unit: "µs", Case: of("s4", "produce_statement"), Limit: of("s4", "plain_statement"), AtMost: true},
	}
	for _, way := range []struct {
		program, title string
		p50, p99       float64
	}{{"s5-produce", "Produce", 3, 15}, {"s5-intx", "InTx", 3, 15}, {"s5-tx", "ProduceTx", 3, 30}, {"s5-poll", "Produce, without LISTEN", 0, 60}} {
		ratio := 2.0
		if way.p50 == 0 {
			ratio = 0
		}
		all = append(all,
			measure.Bar{ID: "S5", Title: way.title + ": p50 to the handler's start", Unit: "ms", Case: of(way.program, "p50"), Limit: of("s5-bare", "p50"), Absolute: way.p50, Ratio: ratio, AtMost: true},
			measure.Bar{ID: "S5", Title: way.title + ": p99", Unit: "ms", Case: of(way.program, "p99"), Limit: of("s5-bare", "p99"), Absolute: way.p99, Ratio: ratio, AtMost: true})
	}
	return append(all,
		measure.Bar{ID: "S9", Title: "every message fails once and then succeeds", Unit: "/s", Case: rate("s9"), Absolute: 8000},
		measure.Bar{ID: "S10", Title: "10,000 ordered keys by Zipf, 2 x 8 handlers of 1 ms, against any order", Unit: "/s", Case: rate("s10"), Limit: rate("s10-parallel"), Ratio: 0.5},
		measure.Bar{ID: "S10", Title: "what the most frequent key allows (10.2 %, one at a time)", Unit: "/s", Case: of("s10", "ceiling")},
		measure.Bar{ID: "S10", Title: "its share in what was handled, of that in what was produced", Unit: "%", Case: of("s10", "hottest_percent")},
		measure.Bar{ID: "S11", Title: "five groups together, against one", Unit: "/s", Case: rate("s11"), Limit: rate("s1"), Ratio: 3.5},
		measure.Bar{ID: "idle", Title: "one idle group: statements", Unit: "/s", Case: of("idle", "statements"), Absolute: 10, AtMost: true},
		measure.Bar{ID: "idle", Title: "client and server together", Unit: "% of a core", Case: of("idle", "core_percent"), Absolute: 2, AtMost: true},
		measure.Bar{ID: "S6", Title: "1,000 streams, 2,000 groups: statements", Unit: "/s", Case: of("s6", "statements"), Absolute: 10, AtMost: true},
		measure.Bar{ID: "S6", Title: "client and server together", Unit: "% of a core", Case: of("s6", "core_percent"), Absolute: 2, AtMost: true},
		measure.Bar{ID: "S12", Title: "soak, batches: rate kept", Unit: "x", Case: of("s12", "rate_kept"), Absolute: 0.9},
		measure.Bar{ID: "S12", Title: "time of a claim, last against first", Unit: "x", Case: of("s12", "claim_growth"), Absolute: 1.1, AtMost: true},
		measure.Bar{ID: "S12", Title: "time of sequencing, last against first", Unit: "x", Case: of("s12", "sequence_growth"), Absolute: 1.1, AtMost: true},
		measure.Bar{ID: "S12", Title: "control tables while the transaction lives", Unit: "B a claim", Case: of("s12", "bytes_per_claim"), Absolute: 100, AtMost: true},
		measure.Bar{ID: "S12", Title: "control tables at the end", Unit: "MB", Case: of("s12", "megabytes_after"), Absolute: 20, AtMost: true},
		measure.Bar{ID: "S12tx", Title: "soak, ProduceTx and failures: rate kept", Unit: "x", Case: of("s12tx", "rate_kept"), Absolute: 0.9},
		measure.Bar{ID: "S12tx", Title: "time of a claim, last against first", Unit: "x", Case: of("s12tx", "claim_growth"), Absolute: 1.1, AtMost: true},
		measure.Bar{ID: "S12tx", Title: "time of sequencing, last against first", Unit: "x", Case: of("s12tx", "sequence_growth"), Absolute: 1.1, AtMost: true},
		measure.Bar{ID: "S12tx", Title: "control tables while the transaction lives", Unit: "B a claim", Case: of("s12tx", "bytes_per_claim"), Absolute: 100, AtMost: true},
		measure.Bar{ID: "S12tx", Title: "control tables at the end", Unit: "MB", Case: of("s12tx", "megabytes_after"), Absolute: 20, AtMost: true},
	)
}

// longOnly are the cases of the full pass alone.
func longOnly() []string { return []string{"S6", "S12", "S12tx"} }

// measuredOnce are the programs that run in one round only.
func measuredOnce() []string { return []string{"idle", "s6", "s12", "s12tx"} }

// chosen returns the bars of a run.
func chosen(o *options) ([]measure.Bar, error) {
	known := []string{}
	for _, b := range bars() {
		known = append(known, b.ID)
	}
	for _, id := range o.only {
		if !slices.Contains(known, id) {
			return nil, fmt.Errorf("there is no case %q; there are %s", id, strings.Join(slices.Compact(known), ", "))
		}
	}
	var all []measure.Bar
	for _, b := range bars() {
		switch {
		case len(o.only) > 0 && !slices.Contains(o.only, b.ID), len(o.only) == 0 && o.mode == "short" && slices.Contains(longOnly(), b.ID):
		default:
			all = append(all, b)
		}
	}
	return all, nil
}

// needed returns the names of the programs that bars compare. A soak needs the rates that it halves.
func needed(all []measure.Bar) map[string]bool {
	names := map[string]bool{}
	for _, b := range all {
		names[b.Case.Program] = true
		if b.Limit.Program != "" {
			names[b.Limit.Program] = true
		}
	}
	if names["s12"] {
		names["s1"] = true
	}
	if names["s12tx"] {
		names["s3b-tx"] = true
	}
	return names
}

// list prints the cases.
func list(w io.Writer, o *options) error {
	o.mode = "full"
	all, err := chosen(o)
	if err != nil {
		return err
	}
	return measure.Table(w, measure.EvaluateAll(all, nil))
}
