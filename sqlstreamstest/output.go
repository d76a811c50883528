package sqlstreamstest

import (
	"sync"
	"testing"
)

// output is a test's output for a logger. A handler that was abandoned can log after the test has ended, when the test's own output panics; that is left out.
type output struct {
	mu    sync.Mutex
	t     testing.TB
	ended bool
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return len(p), nil
	}
	return o.t.Output().Write(p)
}

func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
}
