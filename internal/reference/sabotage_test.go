package reference_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/reference"
)

// told makes the engine play another plan than the one it is judged by.
func told(change func(*reference.Plan)) func(*play) {
	return func(p *play) {
		other := *p.plan
		other.Messages = slices.Clone(other.Messages)
		change(&other)
		p.told = &other
	}
}

// spoiled changes what is recorded.
func spoiled(change func(*delivery.Outcome)) func(*play) {
	return func(p *play) {
		p.spoil = func(req *delivery.WorkRequest) {
			for i := range req.Results {
				for o := range req.Results[i].Outcomes {
					change(&req.Results[i].Outcomes[o])
				}
			}
			for i := range req.Deliveries {
				change(&req.Deliveries[i].Outcome)
			}
		}
	}
}

// A product that does wrong is found out, or the histories prove nothing.
func TestHistoriesFindSabotage(t *testing.T) {
	t.Parallel()
	for _, s := range []struct {
		name   string
		change func(*play)
		rules  string // one of which finds it
	}{
		{"failures are forgotten", spoiled(func(o *delivery.Outcome) {
			if o.Kind == delivery.Failed {
				o.Kind = delivery.Succeeded
			}
		}), "lost"},
		{"delays are counted", spoiled(func(o *delivery.Outcome) {
			if o.Kind == delivery.Delayed {
				o.Attempt++
			}
		}), "counted"},
		{"failures are counted twice", spoiled(func(o *delivery.Outcome) {
			if o.Kind == delivery.Failed {
				o.Attempt++
			}
		}), "counted"},
		{"dead ones are forgotten", spoiled(func(o *delivery.Outcome) {
			if o.Kind == delivery.Dead {
				o.Kind = delivery.Succeeded
			}
		}), "wrong end"},
		{"everything is parallel", told(func(p *reference.Plan) { p.Override = reference.Parallel }), "overlap, sequence"},
		{"everything is exclusive", told(func(p *reference.Plan) { p.Override = reference.Exclusive }), "sequence"},
		{"no key is parked", told(func(p *reference.Plan) { p.Park = false }), "sequence"},
		{"every key is parked", told(func(p *reference.Plan) { p.Park = true }), "waits, flagged"},
		{"keys are mixed up", told(func(p *reference.Plan) {
			for i := range p.Messages {
				if p.Messages[i].Key != "" {
					p.Messages[i].Key = p.Messages[i].Name
				}
			}
		}), "overlap, sequence"},
	} {
		t.Run(s.name, func(t *testing.T) {
			for seed := uint64(1); seed <= 500; seed++ {
				found := false
				synctest.Test(t, func(t *testing.T) {
					objections, _ := playInMemory(t, reference.Draw(seed, memoryScale()), s.change)
					found = slices.ContainsFunc(objections, func(o string) bool {
						rule, _, _ := strings.Cut(o, " (")
						return slices.Contains(strings.Split(s.rules, ", "), rule)
					})
				})
				if found {
					return
				}
			}
			t.Error("500 histories did not find it")
		})
	}
}
