package delivery

import (
	"math"
	"time"
)

// Policy says how one message is run: every field is set.
type Policy struct {
	Timeout     time.Duration
	MaxAttempts int
	BaseDelay   time.Duration
	Exponent    float64
	MaxDelay    time.Duration
	KeyOrder    KeyOrder
}

// DefaultPolicy is what applies where nothing is said.
func DefaultPolicy() Policy {
	return Policy{Timeout: 30 * time.Second, MaxAttempts: 10, BaseDelay: time.Second, Exponent: 2, MaxDelay: 5 * time.Minute, KeyOrder: Parallel}
}

// Or fills the zero fields of p from q.
func (p Policy) Or(q Policy) Policy {
	if p.Timeout == 0 {
		p.Timeout = q.Timeout
	}
	if p.MaxAttempts == 0 {
		p.MaxAttempts = q.MaxAttempts
	}
	if p.BaseDelay == 0 {
		p.BaseDelay = q.BaseDelay
	}
	if p.Exponent == 0 {
		p.Exponent = q.Exponent
	}
	if p.MaxDelay == 0 {
		p.MaxDelay = q.MaxDelay
	}
	if p.KeyOrder == "" {
		p.KeyOrder = q.KeyOrder
	}
	return p
}

// Limits are a group's settings after its declaration was checked: Min ≤ Default ≤ Max, field by field.
type Limits struct {
	Default, Min, Max Policy
	KeyOrder          KeyOrder // overrides what messages request; "": it does not
	Park              bool     // a dead letter of an ordered key keeps its successors waiting
}

// Resolve clamps what a message requests (zero fields: nothing requested) into the limits.
func (l Limits) Resolve(request Policy) Policy {
	p := request.Or(l.Default)
	p.KeyOrder = l.orderOf(request.KeyOrder)
	p.Timeout = min(max(p.Timeout, l.Min.Timeout), l.Max.Timeout)
	p.MaxAttempts = min(max(p.MaxAttempts, l.Min.MaxAttempts), l.Max.MaxAttempts)
	p.BaseDelay = min(max(p.BaseDelay, l.Min.BaseDelay), l.Max.BaseDelay)
	p.Exponent = min(max(p.Exponent, l.Min.Exponent), l.Max.Exponent)
	p.MaxDelay = min(max(p.MaxDelay, l.Min.MaxDelay), l.Max.MaxDelay)
	return p
}

// orderOf is the order of a message that requests this one. An order that this program does not know is none.
func (l Limits) orderOf(request KeyOrder) KeyOrder {
	if l.KeyOrder != "" {
		request = l.KeyOrder
	}
	if request.InLine() {
		return request
	}
	return Parallel
}

// Backoff is the wait after the attempt-th failure: min(MaxDelay, BaseDelay × Exponent^(attempt-1)), ±10 % by jitter in [0, 1).
// It is computed in floating point and bounded before it is converted, so that no attempt number overflows.
func (p Policy) Backoff(attempt int, jitter float64) time.Duration {
	if attempt < 1 {
		attempt = 1
	}
	d := float64(p.BaseDelay) * math.Pow(p.Exponent, float64(attempt-1))
	if math.IsNaN(d) || d > float64(p.MaxDelay) {
		d = float64(p.MaxDelay)
	}
	d *= 0.9 + 0.2*jitter
	if d < 0 || math.IsNaN(d) {
		return 0
	}
	if d > float64(math.MaxInt64/2) {
		return math.MaxInt64 / 2
	}
	return time.Duration(d)
}
