package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// The kinds of faults that a schedule has.
const (
	killConsumer    = "kill-consumer"
	killProducer    = "kill-producer"
	stopConsumer    = "stop-consumer"
	stopProducer    = "stop-producer"
	leaveConsumer   = "leave-consumer"
	terminate       = "terminate"
	killBackend     = "kill-backend"
	serverImmediate = "server-immediate"
)

// weights are how often each kind comes in a long schedule. In each round of them every kind comes at least once.
func weights() map[string]int {
	return map[string]int{killConsumer: 4, killProducer: 2, stopConsumer: 3, stopProducer: 1, leaveConsumer: 1, terminate: 4, killBackend: 1, serverImmediate: 1}
}

// AllFaults are the kinds of faults, in alphabetical order.
func AllFaults() []string {
	var all []string
	for kind := range weights() {
		all = append(all, kind)
	}
	slices.Sort(all)
	return all
}

// step is one planned fault. Whom it hits is decided by pick, among those that are there then.
type step struct {
	at   time.Duration
	kind string
	pick uint64
	hold time.Duration // how long a process is frozen, or the server stays down
}

func (s step) String() string {
	text := fmt.Sprintf("%6.2fs %s", s.at.Seconds(), s.kind)
	if s.hold > 0 {
		text += fmt.Sprintf(" for %.1fs", s.hold.Seconds())
	}
	return text
}

// faultEvery is the time between two faults, on average.
const faultEvery = 1100 * time.Millisecond

// plan makes the schedule that follows from a seed: at least one fault of each kind wanted, or as many as the time allows, spread over the duration.
func plan(seed uint64, duration time.Duration, wanted []string) ([]step, error) {
	weight := weights()
	var once, more []string
	for _, kind := range wanted {
		if weight[kind] == 0 {
			return nil, fmt.Errorf("%q is no kind of fault; there are %s", kind, strings.Join(AllFaults(), ", "))
		}
		once = append(once, kind)
		for range weight[kind] - 1 {
			more = append(more, kind)
		}
	}
	slices.Sort(once)
	slices.Sort(more)
	once = slices.Compact(once)
	if len(once) == 0 {
		return nil, nil
	}
	random := rand.New(rand.NewPCG(seed, 0))
	shuffle := func(list []string) { random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] }) }
	n := max(int(duration/faultEvery), 1)
	var kinds []string
	for len(kinds) < n {
		// First of each kind one, then the rest of the round.
		shuffle(once)
		shuffle(more)
		kinds = append(append(kinds, once...), more...)
	}
	steps := make([]step, n)
	for i := range steps {
		gap := duration / time.Duration(n)
		s := step{at: time.Duration(i)*gap + time.Duration(random.Int64N(int64(gap))), kind: kinds[i], pick: random.Uint64()}
		switch s.kind {
		case stopConsumer, stopProducer:
			s.hold = leaseTime + 400*time.Millisecond + time.Duration(random.Int64N(int64(2*time.Second)))
		case serverImmediate:
			s.hold = 200*time.Millisecond + time.Duration(random.Int64N(int64(time.Second)))
		}
		steps[i] = s
	}
	return steps, nil
}

// killPlan is the schedule of kill mode: every three seconds one process of each group.
func killPlan(seed uint64, duration time.Duration, groups int) []step {
	random := rand.New(rand.NewPCG(seed, 0))
	var steps []step
	for at := killEvery; at <= duration; at += killEvery {
		for g := range groups {
			// The pick chooses within the group; see victims.
			steps = append(steps, step{at: at, kind: killConsumer + " " + groupName(g), pick: random.Uint64()})
		}
	}
	return steps
}

const killEvery = 3 * time.Second

func groupName(i int) string { return fmt.Sprintf("g%d", i+1) }
