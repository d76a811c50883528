// Command bench measures what SQLStreams reaches beside what plain programs reach on the same server in the same run.
//
//	go run . short     the bars of speed, at most ten minutes
//	go run . full      longer windows, several settings of the server, and the soak
//	go run . micro     single statements: batch sizes, the policy for the stream's lock
//	go run . list      the cases
//
// Progress goes to standard error, the table to standard output, everything to results/latest.json.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sqlstreams/sqlstreams/bench/internal/measure"
	"github.com/sqlstreams/sqlstreams/bench/internal/worker"
)

func main() {
	if worker.Main(roles()) {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
		stop()
		os.Exit(1)
	}
}

// options are what a run can be told.
type options struct {
	mode          string
	only          []string
	seconds       time.Duration
	warm          time.Duration
	rounds        int
	sharedBuffers []string
	size          int
	profile       string
	out           string
	// What follows is less in tests.
	idleStreams   int   // 1,000
	lockProcesses []int // 1, 4 and 16
	lockBatches   []int
	soakPoint     time.Duration // a minute
	soakPoints    int
	soakAfter     int
}

const usage = `usage: go run . short|full|micro|list [flags]

  short   the bars of speed, at most ten minutes
  full    longer windows, several settings of the server, and the soak S12
  micro   single statements: batch sizes, the policy for the stream's lock
  list    the cases

flags:
`

func parse(args []string, stderr io.Writer) (*options, error) {
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprint(stderr, usage)
		fs.PrintDefaults()
	}
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		fs.Usage()
		return nil, flag.ErrHelp
	}
	o := &options{mode: args[0], soakPoint: time.Minute, idleStreams: 1000, lockProcesses: []int{1, 4, 16}, lockBatches: []int{1, 16, 64, 250}}
	def := map[string]struct {
		seconds float64
		rounds  int
		buffers string
	}{"short": {4, 3, "512MB"}, "full": {15, 5, "512MB,4GB"}, "micro": {2, 3, "512MB"}, "list": {1, 3, ""}}
	d, ok := def[o.mode]
	if !ok {
		fs.Usage()
		return nil, fmt.Errorf("there is no mode %q", o.mode)
	}
	only := fs.String("only", "", "cases to run, as S1,S3,S3b (list names them); default all of the mode")
	seconds := fs.Float64("seconds", d.seconds, "length of a window in seconds; what comes before it (a second) is not counted")
	rounds := fs.Int("rounds", d.rounds, "rounds, at least 3; every second one runs backwards")
	buffers := fs.String("shared-buffers", d.buffers, "the server's shared_buffers; several, with commas: the first for all cases, the others for S1 and its limits")
	fs.IntVar(&o.size, "size", 1000, "bytes of a payload's JSON")
	fs.StringVar(&o.profile, "profile", "", "folder for CPU profiles of the client and times of the server's statements, a pair for each case; slows the run down")
	fs.StringVar(&o.out, "out", filepath.Join("results", "latest.json"), "where the results go")
	fs.IntVar(&o.soakPoints, "soak", 10, "minutes of S12 with the old transaction open")
	fs.IntVar(&o.soakAfter, "soak-after", 5, "minutes of S12 after its end")
	if err := fs.Parse(args[1:]); err != nil {
		return nil, err
	}
	o.seconds, o.rounds = time.Duration(*seconds*float64(time.Second)), *rounds
	o.warm = time.Second
	o.sharedBuffers = strings.Split(*buffers, ",")
	if *only != "" {
		o.only = strings.Split(*only, ",")
	}
	switch {
	case fs.NArg() > 0:
		return nil, fmt.Errorf("%q is no flag", fs.Arg(0))
	case o.rounds < 3:
		return nil, errors.New("a median of fewer than 3 rounds says nothing")
	case o.seconds < time.Second/10:
		return nil, errors.New("a window is at least 0.1 seconds long")
	case o.soakPoints < 3 || o.soakAfter < 0:
		return nil, errors.New("a soak has at least 3 minutes")
	}
	return o, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	switch o.mode {
	case "list":
		return list(stdout, o)
	case "micro":
		return runMicro(ctx, o, stdout, progressOn(stderr))
	default:
		return runBars(ctx, o, stdout, progressOn(stderr))
	}
}

// progressOn returns a bar that overwrites itself where that can be seen.
func progressOn(w io.Writer) measure.Progress {
	terminal := false
	if f, ok := w.(*os.File); ok {
		info, err := f.Stat()
		terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return measure.BarOf(w, terminal)
}
