package wake

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// Bounds of the pause after a failure.
const (
	minBackoff = 50 * time.Millisecond
	maxBackoff = 5 * time.Second
)

// backoff is the pause after the nth failure in a row (from 1): doubling, of which a random half is taken off, so that the processes that
// one outage stopped do not come back in step.
func backoff(n int) time.Duration {
	d := maxBackoff
	if n < 8 { // 50 ms << 7 is beyond the cap
		d = min(minBackoff<<max(n-1, 0), maxBackoff)
	}
	return d/2 + rand.N(d/2+1)
}

// logEvery is how often one fault is told while it goes on.
const logEvery = time.Minute

// What can fail.
const (
	whatProbe    = "polling"
	whatDrain    = "sequencing"
	whatListen   = "listening"
	whatAnnounce = "announcing"
)

// A fault is what can fail over and over: a kind of statement and, for drains, a stream.
type fault struct {
	what   string
	stream int // 0: not about one stream
}

// faults tells failures at most once a minute each, and recovery once. The zero value with a logger is ready.
type faults struct {
	log *slog.Logger

	mu    sync.Mutex
	known map[fault]*course
}

// course is how one fault has gone.
type course struct {
	failing bool
	told    bool // this failure was logged, so its end is too
	since   time.Time
	count   int
	logged  time.Time // the last line about it
	leftOut int       // failures since then without a line
}

// fail notes a failure and logs it if it is time. Message says what fails and what happens meanwhile.
func (fs *faults) fail(f fault, message string, err error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	now := time.Now()
	c := fs.known[f]
	if c == nil {
		c = &course{}
		if fs.known == nil {
			fs.known = make(map[fault]*course)
		}
		fs.known[f] = c
	}
	if !c.failing {
		c.failing, c.told, c.since, c.count = true, false, now, 0
	}
	c.count++
	if !c.logged.IsZero() && now.Sub(c.logged) < logEvery {
		c.leftOut++
		return
	}
	code := diag.CodeOf(err)
	if code == "" {
		code = diag.Unreachable
		if f.what == whatListen {
			code = diag.ListenerLost
		}
	}
	fs.log.LogAttrs(context.Background(), slog.LevelWarn, message, f.attrs(
		slog.String("code", string(code)), slog.Any("error", err), slog.Int("left_out", c.leftOut))...)
	c.logged, c.leftOut, c.told = now, 0, true
}

// ok notes that it works. After a failure that was told it says so.
func (fs *faults) ok(f fault) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	c := fs.known[f]
	if c == nil || !c.failing {
		return
	}
	c.failing = false
	if c.told {
		fs.log.LogAttrs(context.Background(), slog.LevelInfo, f.what+" works again", f.attrs(
			slog.Duration("after", time.Since(c.since)), slog.Int("failures", c.count))...)
	}
}

func (f fault) attrs(more ...slog.Attr) []slog.Attr {
	if f.stream == 0 {
		return more
	}
	return append([]slog.Attr{slog.Int("stream_id", f.stream)}, more...)
}
