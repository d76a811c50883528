package delivery

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestRequestForm(t *testing.T) {
	if b := EncodeRequest(Policy{}); b != nil {
		t.Errorf("nothing requested: %s", b)
	}
	p := Policy{Timeout: 5 * time.Second, MaxAttempts: 3, BaseDelay: 1500 * time.Microsecond, Exponent: 1.5, MaxDelay: time.Minute}
	const want = `{"v":1,"timeout_ms":5000,"max_attempts":3,"base_delay_ms":1.5,"exponent":1.5,"max_delay_ms":60000}`
	if b := EncodeRequest(p); string(b) != want {
		t.Errorf("%s", b)
	}
	for in, want := range map[string]Policy{
		"":   {},
		"{}": {},
		`{"v":7,"timeout_ms":5000,"color":"red"}`:                                         {Timeout: 5 * time.Second},
		`{"v":1,"timeout_ms":-5,"max_attempts":-1,"exponent":-2}`:                         {},
		`{"v":1,"timeout_ms":1e300,"base_delay_ms":0.000001}`:                             {Timeout: math.MaxInt64, BaseDelay: 1},
		`{"v":1,"timeout_ms":null,"max_attempts":4}`:                                      {MaxAttempts: 4},
		`{"v":1,"max_delay_ms":250,"exponent":2,"max_attempts":1,"base_delay_ms":125.25}`: {MaxDelay: 250 * time.Millisecond, Exponent: 2, MaxAttempts: 1, BaseDelay: 125250 * time.Microsecond},
	} {
		if got, err := DecodeRequest([]byte(in)); err != nil || got != want {
			t.Errorf("%s: %+v, %v", in, got, err)
		}
	}
	for _, in := range []string{"{", "[]", `"x"`, `{"timeout_ms":"5s"}`, `{"max_attempts":1.5}`} {
		if got, err := DecodeRequest([]byte(in)); err == nil {
			t.Errorf("%s: %+v", in, got)
		}
	}
}

func TestRequestSurvives(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := func(name string) time.Duration {
			return time.Duration(rapid.Int64Range(0, int64(1000*time.Hour)).Draw(rt, name))
		}
		p := Policy{Timeout: d("timeout"), MaxAttempts: rapid.IntRange(0, 1<<30).Draw(rt, "attempts"), BaseDelay: d("base"), Exponent: rapid.Float64Range(0, 100).Draw(rt, "exponent"), MaxDelay: d("max")}
		got, err := DecodeRequest(EncodeRequest(p))
		if err != nil || got != p {
			rt.Fatalf("%+v became %+v, %v", p, got, err)
		}
	})
}
