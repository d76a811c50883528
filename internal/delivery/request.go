package delivery

import (
	"encoding/json"
	"math"
	"time"
)

// requestVersion is the newest form of a stored request that this program writes.
const requestVersion = 1

// request is what a producer asks for one message, as stored beside it. Durations are in milliseconds, with a fraction where there is one.
// Fields that are not known are passed over, so that an older consumer can run what a newer producer wrote.
type request struct {
	V           int     `json:"v"`
	TimeoutMS   float64 `json:"timeout_ms,omitempty"`
	MaxAttempts int     `json:"max_attempts,omitempty"`
	BaseDelayMS float64 `json:"base_delay_ms,omitempty"`
	Exponent    float64 `json:"exponent,omitempty"`
	MaxDelayMS  float64 `json:"max_delay_ms,omitempty"`
	KeyOrder    string  `json:"key_order,omitempty"` // read by SQL, too
}

// EncodeRequest returns the stored form of what a producer requests for a message; nil if it requests nothing.
func EncodeRequest(p Policy) []byte {
	if p == (Policy{}) {
		return nil
	}
	b, err := json.Marshal(request{
		V: requestVersion, TimeoutMS: toMillis(p.Timeout), MaxAttempts: p.MaxAttempts, BaseDelayMS: toMillis(p.BaseDelay),
		Exponent: bounded(p.Exponent), MaxDelayMS: toMillis(p.MaxDelay),
		KeyOrder: string(p.KeyOrder),
	})
	if err != nil { // no value of this struct can fail: its numbers are finite
		return nil
	}
	return b
}

// DecodeRequest reads what EncodeRequest wrote, by this version or a newer one. Values that make no sense count as not requested.
func DecodeRequest(b []byte) (Policy, error) {
	if len(b) == 0 {
		return Policy{}, nil
	}
	var r request
	if err := json.Unmarshal(b, &r); err != nil {
		return Policy{}, err
	}
	return Policy{
		Timeout: fromMillis(r.TimeoutMS), MaxAttempts: max(r.MaxAttempts, 0), BaseDelay: fromMillis(r.BaseDelayMS),
		Exponent: bounded(r.Exponent), MaxDelay: fromMillis(r.MaxDelayMS), KeyOrder: KeyOrder(r.KeyOrder),
	}, nil
}

func bounded(f float64) float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) || f < 0 {
		return 0
	}
	return f
}

func toMillis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func fromMillis(ms float64) time.Duration {
	ns := bounded(ms) * float64(time.Millisecond)
	if ns >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(math.Round(ns))
}
