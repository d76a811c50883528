package sqlstreams

import (
	"strings"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/store"
)

// What holds a group is found from its status alone, and what keeps it from moving comes first.
func TestReasons(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	live := []InstanceInfo{{ID: "i", Host: "h", PID: 7, SeenAt: now.Add(-10 * time.Second)}}
	gone := []InstanceInfo{{ID: "i", Host: "h", PID: 7, SeenAt: now.Add(-2 * time.Minute)}}
	base := func(change func(*GroupStatus)) *GroupStatus {
		s := &GroupStatus{Stream: "s", Group: "g", Now: now, FirstID: 1, Head: 10, Claimed: 10, Committed: 10, Instances: live}
		change(s)
		return s
	}
	behind := func(s *GroupStatus) { s.Claimed, s.Backlog = 4, 6 }
	held := []store.LockHolder{{Kind: "group", PID: 99, State: "idle in transaction", Application: "psql", Seconds: 61}}
	for _, c := range []struct {
		name    string
		status  *GroupStatus
		holders []store.LockHolder
		want    []string // "! " for what blocks, then a part of the text, then the remedy
	}{
		{"caught up", base(func(*GroupStatus) {}), nil, []string{"It has caught up. | "}},
		{"caught up without instances", base(func(s *GroupStatus) { s.Instances = nil }), nil, []string{"It has caught up. | "}},
		{"about to claim", base(behind), nil, []string{"Work is there, and 1 instance is | "}},
		{"at work", base(func(s *GroupStatus) {
			s.OpenClaims, s.Claims = 1, []OpenClaim{{Low: 1, High: 5, Alive: true, ExpiresIn: time.Second}}
		}), nil, []string{"It is at work: 1 open range, 0 retries | "}},
		{"paused with nothing to do", base(func(s *GroupStatus) { s.Paused = true }), nil, []string{"The group is paused. | sqlstreams group resume s g"}},
		{"paused with a backlog", base(func(s *GroupStatus) { behind(s); s.Paused = true }), nil, []string{"! The group is paused. | sqlstreams group resume s g"}},
		{"no instance", base(func(s *GroupStatus) { behind(s); s.Instances = nil }), nil, []string{"! No instance of the group is running | sqlstreams consume s --group g"}},
		{"instances that are gone", base(func(s *GroupStatus) { behind(s); s.Instances = gone }), nil, []string{"! No instance | sqlstreams consume s --group g"}},
		{"lock held", base(behind), held, []string{"! The lock of the group has been held for 1m1s by server process 99 (psql), idle in transaction | select pg_terminate_backend(99)"}},
		{"lock held for a moment", base(behind), []store.LockHolder{{Kind: "group", PID: 99, Seconds: 0.2}}, []string{"Work is there | "}},
		{"stream's lock held and nothing waits for it", base(func(*GroupStatus) {}), []store.LockHolder{{Kind: "stream", PID: 99, Seconds: 60}}, []string{"It has caught up. | "}},
		{"stream's lock held", base(func(s *GroupStatus) { s.Inbox, s.InboxOldest = 3, now }), []store.LockHolder{{Kind: "stream", PID: 99, Seconds: 60}},
			[]string{"! The lock of the stream | select pg_terminate_backend(99)"}},
		{"holder gone", base(func(s *GroupStatus) {
			s.OpenClaims, s.Claims = 1, []OpenClaim{{Low: 3, High: 5, Host: "h", PID: 7, ExpiresIn: 30 * time.Second}}
		}), nil,
			[]string{"! Messages 4 to 5 are under the lease of an instance that is gone (process 7 on h); it ends in 30s | "}},
		{"expired range", base(func(s *GroupStatus) {
			s.OpenClaims, s.Claims = 1, []OpenClaim{{Low: 3, High: 5, ExpiresIn: -time.Second}}
		}), nil, []string{"It is at work | "}},
		{"stale range", base(func(s *GroupStatus) {
			s.OpenClaims, s.Claims = 1, []OpenClaim{{Low: 3, High: 5, Alive: true, Stale: 1, ExpiresIn: 3 * time.Second}}
		}), nil, []string{"! 1 open range was left by the holder | "}},
		{"position lost", base(func(s *GroupStatus) { s.FirstID, s.Claimed, s.Backlog = 8, 2, 3 }), nil, []string{"Messages 3 to 7 are gone | ", "Work is there | "}},
		{"inbox", base(func(s *GroupStatus) { s.Inbox, s.InboxOldest = 10_000, now.Add(-time.Minute) }), nil, []string{"! 10,000 or more committed messages wait for their ids, the first for 1m0s | "}},
		{"backoff", base(func(s *GroupStatus) { s.Pending, s.NextDue = 2, now.Add(90*time.Second) }), nil, []string{"2 messages wait in backoff; the next is due in 1m30s | sqlstreams group retry-now s g --all"}},
		{"a parked key", base(func(s *GroupStatus) {
			s.Waiting, s.Keys = 3, []BlockedKey{{Key: "k", First: 8, Waiting: 3, State: "parked", ID: 7}}
		}), nil, []string{"! 3 messages of key \"k\" wait behind dead letter 7 | sqlstreams dead redrive s g --id 7"}},
		{"a key behind a retry", base(func(s *GroupStatus) {
			s.Pending, s.NextDue, s.Waiting = 1, now.Add(5*time.Second), 1
			s.Keys = []BlockedKey{{Key: "k", First: 8, Waiting: 1, State: "pending", ID: 7, In: 5 * time.Second}}
		}), nil, []string{"1 message of key \"k\" waits for message 7, which has failed or was delayed and runs again in 5s | sqlstreams group retry-now s g --id 7",
			"1 message waits in backoff; the next is due in 5s | sqlstreams group retry-now s g --all"}},
		{"a key in a range", base(func(s *GroupStatus) {
			s.OpenClaims, s.Waiting = 1, 20_000
			s.Keys = []BlockedKey{{Key: "k", First: 8, Waiting: 10_000, State: "claimed", Range: OpenClaim{Low: 2, High: 5}, In: time.Second}, {Key: "l", First: 9, Waiting: 1, State: "running", ID: 7}}
		}), nil, []string{"10,000 or more messages of key \"k\" wait for range 3 to 5, whose lease ends in 1s | ", "It is at work | "}},
		{"due and nobody there", base(func(s *GroupStatus) { s.Pending, s.NextDue, s.Instances = 2, now, nil }), nil, []string{"! No instance | sqlstreams consume s --group g"}},
		{"dead letters beside a block", base(func(s *GroupStatus) { behind(s); s.Dead, s.Instances = 3, nil }), nil, []string{"! No instance | sqlstreams consume s --group g", "3 messages are dead letters | sqlstreams dead list s g"}},
	} {
		got := reasons(c.status, c.holders)
		if len(got) != len(c.want) {
			t.Errorf("%s: %+v", c.name, got)
			continue
		}
		for i, r := range got {
			text, remedy, _ := strings.Cut(c.want[i], " | ")
			text, blocking := strings.CutPrefix(text, "! ")
			if !strings.Contains(r.Text, text) || r.Remedy != remedy || r.Blocking != blocking {
				t.Errorf("%s: %+v, want %q", c.name, r, c.want[i])
			}
		}
	}
}

func TestPace(t *testing.T) {
	for _, rate := range []float64{0.01, 0.5, 1, 9, 10, 15, 500, 4999, 5000, 1e6} {
		size, every := pace(rate)
		if got := float64(size) / every.Seconds(); size < 1 || size > stepSize || got > rate*1.001 || got < rate*0.999 {
			t.Errorf("rate %v: %d every %v", rate, size, every)
		}
	}
	if size, every := pace(0); size != stepSize || every != 0 {
		t.Errorf("%d every %v", size, every)
	}
}
