package chaos

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/ledger"
)

// The modes of a run.
const (
	ModeChaos = "chaos" // every fault, every way of producing, handlers that misbehave
	ModeKill  = "kill"  // a stated number of messages, and every three seconds one process of each group killed
	ModeKeys  = "keys"  // a stated number of messages with ordered keys, and every second a process killed that consumes in all groups
)

// What a run can break on purpose, to show that the checker sees it.
const (
	SabotageToken = "token" // results are recorded whoever holds the range now
	SabotageRow   = "row"   // one message is deleted behind the product's back
	SabotageTx    = "tx"    // handlers' transactions are committed whoever owns the message now
	SabotageOrder = "order" // ranges and deliveries hold no keys, so nobody waits for another instance
)

// Config describes a run. The zero value of each field means its default.
type Config struct {
	// Seed decides the schedule, what is produced and how handlers behave. Default 1.
	Seed uint64
	// Mode is ModeChaos (default), ModeKill or ModeKeys.
	Mode string
	// Duration is how long faults happen. Default 60 s; 120 s in keys mode.
	Duration time.Duration
	// Messages are how many are produced in that time: about so many in chaos mode (default 20,000), exactly in kill mode (default 100,000) and in keys mode (default 40,000).
	Messages int
	// Size is the size of a payload in bytes. Default: 400 on average in chaos mode, 1,000 in kill mode, 200 in keys mode.
	Size int
	// Keys are how many keys there are, in keys mode. Default 10,000.
	Keys int
	// Producers are how many processes produce. Default 3 in chaos mode, else 2.
	Producers int
	// Groups are how many consumer groups there are. Default 2; keys mode has its own two.
	Groups int
	// Processes are how many consumer processes each group has. Default 3; in keys mode 10, each of which consumes in all groups.
	Processes int
	// Faults are the kinds of faults. Default: all. Kill mode and keys mode have their own.
	Faults []string
	// DrainWithin is how long the groups may take to finish after the last fault. Default 60 s; 120 s in keys mode.
	DrainWithin time.Duration
	// Quick runs a server that does not sync. Only the operating system's end could lose what it wrote. Default off.
	Quick bool
	// Sabotage is what the run breaks on purpose. Default nothing.
	Sabotage string
	// Trace has the server write down what becomes of ranges and deliveries, and prints it for the first findings of each kind. Default off.
	Trace bool
	// Executable is the program whose processes are workers if IsWorker says so. Default: this one.
	Executable string
	// Out gets what happens, line by line, and where ledgers and logs are if not all went well. Default: nobody.
	Out io.Writer

	// settings are further settings of the server, for scripts.
	settings map[string]string
}

func (c Config) withDefaults() (Config, error) {
	def(&c.Seed, 1)
	def(&c.Mode, ModeChaos)
	def(&c.Groups, 2)
	switch c.Mode {
	case ModeKeys:
		def(&c.Messages, 40_000)
		def(&c.Size, 200)
		def(&c.Producers, 2)
		def(&c.Processes, 10)
		def(&c.Keys, 10_000)
		def(&c.Duration, 2*time.Minute)
		def(&c.DrainWithin, 2*time.Minute)
	case ModeChaos:
		def(&c.Messages, 20_000)
		def(&c.Size, 400)
		def(&c.Producers, 3)
		if c.Faults == nil {
			c.Faults = AllFaults()
		}
	case ModeKill:
		def(&c.Messages, 100_000)
		def(&c.Size, 1_000)
		def(&c.Producers, 2)
	default:
		return c, fmt.Errorf("%q is no mode; there are %s, %s and %s", c.Mode, ModeChaos, ModeKill, ModeKeys)
	}
	def(&c.Duration, time.Minute)
	def(&c.Processes, 3)
	def(&c.DrainWithin, time.Minute)
	switch c.Sabotage {
	case "", SabotageToken, SabotageRow, SabotageTx, SabotageOrder:
	default:
		return c, fmt.Errorf("%q cannot be broken; there are %s, %s, %s and %s", c.Sabotage, SabotageToken, SabotageRow, SabotageTx, SabotageOrder)
	}
	if c.Duration < 0 || c.Messages < 0 || c.Size < 0 || c.Keys < 0 || c.Producers < 0 || c.Groups < 0 || c.Processes < 0 || c.DrainWithin < 0 {
		return c, errors.New("a negative number")
	}
	if c.Out == nil {
		c.Out = io.Discard
	}
	if c.Executable == "" {
		var err error
		if c.Executable, err = os.Executable(); err != nil {
			return c, err
		}
	}
	return c, nil
}

func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Result is what a run came to.
type Result struct {
	Report *ledger.Report
	// Complaints are what the run itself saw go wrong. One is enough to fail.
	Complaints []string
	// Skipped are faults for which there was nobody to do them to.
	Skipped int
	// Drained is how long the groups took to finish after the last fault; 0: they did not.
	Drained time.Duration
	// Took is how long messages were produced and handled: from the first fault's time on until the groups had finished.
	Took time.Duration
	// Effects are what handlers' transactions left behind; nil: none did.
	Effects *Effects
}

// Verdict is the report's, unless the run itself has something to complain of.
func (r *Result) Verdict() ledger.Verdict {
	if len(r.Complaints) > 0 {
		return ledger.Fail
	}
	return r.Report.Verdict
}

// String is the whole of it, for people.
func (r *Result) String() string {
	text := r.Report.String()
	for _, c := range r.Complaints {
		text += "complaint: " + c + "\n"
	}
	return text
}
