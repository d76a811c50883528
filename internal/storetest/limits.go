package storetest

import (
	"encoding/json"
	"math"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

// room is how much of a group's limits one call may use.
type room struct {
	g     *group
	start int64 // how many messages may start now
	free  int64 // and how many of them the caller could start at once
	rate  float64
}

// room looks at the limits in the group's config.
func (g *group) room(req *delivery.WorkRequest, now time.Time) *room {
	r := &room{g: g, start: math.MaxInt64, free: math.MaxInt64}
	var config struct {
		MaxRunning *int64   `json:"max_running"`
		Rate       *float64 `json:"rate_per_second"`
	}
	if json.Unmarshal(g.config, &config) != nil {
		return r
	}
	if config.MaxRunning != nil {
		r.start, r.free = *config.MaxRunning, int64(req.Free)
		for _, c := range g.claims {
			if c.expires.After(now) {
				r.start -= c.most()
			}
		}
		for _, d := range g.deliveries {
			if d.running && d.expires.After(now) {
				r.start--
			}
		}
	}
	if config.Rate == nil {
		g.tokensAt = time.Time{} // the next rate begins with a full bucket
	} else {
		r.rate = *config.Rate
		if g.tokensAt.IsZero() {
			g.tokens = math.Inf(1)
		}
		g.tokens = min(g.tokens+max(now.Sub(g.tokensAt).Seconds(), 0)*r.rate, max(r.rate, 1))
		g.tokensAt = now
		r.start = min(r.start, int64(g.tokens))
	}
	return r
}

// most is how many messages the range may hold.
func (c *claim) most() int64 {
	if c.messages < 0 {
		return c.high - c.low
	}
	return c.messages
}

func (r *room) most() int64 { return min(r.start, r.free) }

func (r *room) take(n int64) {
	if r.start != math.MaxInt64 {
		r.start -= n
	}
	if r.free != math.MaxInt64 {
		r.free -= n
	}
	r.g.tokens -= float64(n)
}

func (r *room) limited() time.Duration {
	if r.rate == 0 || r.start > 0 || r.g.tokens >= 1 {
		return 0
	}
	return time.Duration((1 - r.g.tokens) / r.rate * float64(time.Second))
}
