// Command chaos runs producers and consumers as processes, kills, freezes and cuts them off as a seed says, and checks that nothing was lost.
//
// It ends with 0 if all promises were kept, 1 if one was broken, 2 if that could not be decided.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/chaos"
	"github.com/sqlstreams/sqlstreams/internal/ledger"
)

func main() {
	if chaos.IsWorker() {
		os.Exit(chaos.WorkerMain())
	}
	os.Exit(run())
}

func run() int {
	var cfg chaos.Config
	flag.Uint64Var(&cfg.Seed, "seed", 1, "decides the schedule, what is produced and how handlers behave")
	flag.StringVar(&cfg.Mode, "mode", chaos.ModeChaos, "chaos; kill: 100,000 messages of 1 kB while every three seconds one process of each group is killed; keys: 40,000 messages of ordered keys while every second a process is killed")
	flag.DurationVar(&cfg.Duration, "duration", 0, "how long faults happen (default 1m; 2m in keys mode)")
	flag.IntVar(&cfg.Messages, "messages", 0, "how many messages are produced (default 20000; 100000 in kill mode, 40000 in keys mode)")
	flag.IntVar(&cfg.Keys, "keys", 0, "how many keys there are in keys mode (default 10000)")
	flag.IntVar(&cfg.Producers, "producers", 0, "processes that produce (default 3; 2 in kill mode and keys mode)")
	flag.IntVar(&cfg.Groups, "groups", 0, "consumer groups (default 2; keys mode has its own)")
	flag.IntVar(&cfg.Processes, "processes", 0, "consumer processes of each group (default 3; 10 in keys mode, each in all groups)")
	flag.DurationVar(&cfg.DrainWithin, "drain", 0, "how long the groups may take to finish after the last fault (default 1m; 2m in keys mode)")
	flag.StringVar(&cfg.Sabotage, "sabotage", "", "break the product on purpose: token, row, tx or order")
	flag.BoolVar(&cfg.Trace, "trace", false, "write down every change of ranges and deliveries, and print those of what is found")
	faults := flag.String("faults", "", "kinds of faults, separated by commas (default "+strings.Join(chaos.AllFaults(), ",")+")")
	flag.Parse()
	if *faults != "" {
		cfg.Faults = strings.Split(*faults, ",")
	}
	cfg.Out = os.Stdout
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	began := time.Now()
	result, err := chaos.Run(ctx, cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		if result == nil {
			return 2
		}
	}
	fmt.Println()
	fmt.Print(result)
	summary(&cfg, result, time.Since(began))
	switch result.Verdict() {
	case ledger.Pass:
		return 0
	case ledger.Fail:
		return 1
	default:
		return 2
	}
}

// summary are the last lines: what somebody looks for who has seen many runs.
func summary(cfg *chaos.Config, result *chaos.Result, took time.Duration) {
	r := result.Report
	fmt.Println()
	fmt.Printf("seed           %d (%s mode, %.0f s)\n", cfg.Seed, cfg.Mode, took.Seconds())
	runs, keyed, outlived := 0, 0, 0
	for _, g := range r.Groups {
		runs, keyed, outlived = runs+g.Runs, keyed+g.Keyed, outlived+g.Outlived
	}
	fmt.Print("faults        ")
	for _, kind := range slices.Sorted(maps.Keys(r.Faults)) {
		fmt.Printf(" %s %d", kind, r.Faults[kind])
	}
	fmt.Printf(" (%d found nobody)\n", result.Skipped)
	fmt.Printf("produced       %d confirmed, %d unknown, %d refused, %d rolled back; %d stored\n", r.Confirmed, r.Unknown, r.Refused, r.RolledBack, r.Stored)
	for _, g := range r.Groups {
		fmt.Printf("handled        %d in group %s, %d run again, %d dead\n", g.Handled, g.Group, g.RunAgain, g.Dead)
	}
	if result.Drained > 0 {
		fmt.Printf("drained        after %.1f s\n", result.Drained.Seconds())
	} else {
		fmt.Println("drained        no")
	}
	if result.Took > 0 {
		fmt.Printf("throughput     %.0f runs a second (%d in %.1f s)\n", float64(runs)/result.Took.Seconds(), runs, result.Took.Seconds())
	}
	fmt.Printf("run again      %d\n", r.RunAgain())
	fmt.Printf("dead           %d\n", r.Dead())
	fmt.Printf("lost           %d\n", r.Counts[ledger.KindLost])
	fmt.Printf("invented       %d\n", r.Counts[ledger.KindInvented])
	fmt.Printf("stored twice   %d\n", r.Counts[ledger.KindStoredTwice])
	fmt.Printf("out of order   %d\n", r.Counts[ledger.KindOrder])
	if keyed > 0 {
		fmt.Printf("keys           %d runs in line, %d out of order, %d at once (%d outlived their lease or timeout)\n", keyed, r.Counts[ledger.KindKeyOrder], r.Counts[ledger.KindKeyTogether], outlived)
	}
	if result.Effects != nil {
		fmt.Printf("effects        %s\n", result.Effects)
	}
	fmt.Printf("verdict        %s\n", result.Verdict())
}
