package sqlstreamstest

import (
	"cmp"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams"
)

// Consume runs the handler for the group's messages until the test ends, or stop is called, which waits for the end. If Consume returns an error, the test fails. Of opts, which may be nil, two fields have defaults for tests:
// QueueMargin 1 s, PollInterval 20 ms. The time between attempts is the group's own; see DrainNow.
func Consume[T any](t testing.TB, consumer *sqlstreams.Consumer[T], handler func(ctx context.Context, payload *T) error, opts *sqlstreams.ConsumeOptions) (stop func()) {
	t.Helper()
	return Run(t, func(ctx context.Context) error { return consumer.Consume(ctx, handler, Quick(opts)) })
}

// Quick returns a copy of opts, which may be nil, with defaults for tests: QueueMargin 1 s, PollInterval 20 ms.
func Quick(opts *sqlstreams.ConsumeOptions) *sqlstreams.ConsumeOptions {
	var o sqlstreams.ConsumeOptions
	if opts != nil {
		o = *opts
	}
	o.QueueMargin = cmp.Or(o.QueueMargin, time.Second)
	o.PollInterval = cmp.Or(o.PollInterval, 20*time.Millisecond)
	return &o
}

// Run is Consume for any other way to consume: it calls f, which is to return when its context ends (ConsumeTx, ConsumeBatch, a service's own loop), on a goroutine. The context ends with the test, or when stop is called, which
// waits for f. If f returns an error, the test fails.
func Run(t testing.TB, f func(ctx context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	var once sync.Once
	stop = func() {
		t.Helper()
		once.Do(func() {
			t.Helper()
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("sqlstreamstest: consuming ended: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}
