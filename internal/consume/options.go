package consume

import (
	"fmt"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// Options are a session's settings. A zero field gets its default.
type Options struct {
	Handlers      int           // handlers that run at once; default 10
	BatchLimit    int           // most messages a claim; default 1,000
	BatchMin      int           // size below which a claim is not shrunk; 0: fully adaptive
	MaxBatchBytes int64         // most payload bytes a claim; default 8 MiB
	QueueSize     int           // ranges with work to start; default 2
	QueueMargin   time.Duration // allowance for waiting in the queue; default 15 s
	TimeoutGrace  time.Duration // allowance for responding to cancellation; default 100 ms
	RecordMargin  time.Duration // allowance for recording the result; default 2 s
	StopTimeout   time.Duration // how long running handlers are awaited at a stop; default: timeout ceiling + grace + record margin
	PollInterval  time.Duration // how often a paused group is looked at; default 1 s
	ReleaseStale  bool          // record and free a range that went stale, instead of leaving it to its expiry
	MaxReclaims   int           // takeovers of a range before it is broken up; default 3
}

func (o Options) withDefaults() Options {
	def(&o.Handlers, 10)
	def(&o.BatchLimit, 1000)
	def(&o.MaxBatchBytes, 8<<20)
	def(&o.QueueSize, 2)
	def(&o.QueueMargin, 15*time.Second)
	def(&o.TimeoutGrace, 100*time.Millisecond)
	def(&o.RecordMargin, 2*time.Second)
	def(&o.PollInterval, time.Second)
	def(&o.MaxReclaims, 3)
	o.BatchMin = min(o.BatchMin, o.BatchLimit)
	return o
}

func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (o Options) check() error {
	bad := func(name string, value any) error {
		return &diag.Error{Code: diag.InvalidOption, Op: "consume", Detail: fmt.Sprintf("%s is %v; it must not be negative", name, value)}
	}
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"Handlers", int64(o.Handlers)}, {"BatchLimit", int64(o.BatchLimit)}, {"BatchMin", int64(o.BatchMin)}, {"MaxBatchBytes", o.MaxBatchBytes},
		{"QueueSize", int64(o.QueueSize)}, {"MaxReclaims", int64(o.MaxReclaims)},
	} {
		if f.value < 0 {
			return bad(f.name, f.value)
		}
	}
	for _, f := range []struct {
		name  string
		value time.Duration
	}{
		{"QueueMargin", o.QueueMargin}, {"TimeoutGrace", o.TimeoutGrace}, {"RecordMargin", o.RecordMargin}, {"StopTimeout", o.StopTimeout},
		{"PollInterval", o.PollInterval},
	} {
		if f.value < 0 {
			return bad(f.name, f.value)
		}
	}
	return nil
}

// Margins is what a claim's lease adds to the group's timeout ceiling.
func (o Options) Margins() time.Duration { return o.QueueMargin + o.TimeoutGrace + o.RecordMargin }

// stopTimeout is how long running handlers are awaited.
func (o Options) stopTimeout(limits delivery.Limits) time.Duration {
	if o.StopTimeout > 0 {
		return o.StopTimeout
	}
	return limits.Max.Timeout + o.TimeoutGrace + o.RecordMargin
}
