package consume

import (
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

// four is a claim of four messages with one handler, as on the page on consumer leases.
func four() Options {
	return Options{Handlers: 1, BatchMin: 4, BatchLimit: 4, QueueMargin: 15 * time.Second, TimeoutGrace: time.Second, RecordMargin: 2 * time.Second}
}

func TestScriptLeaseExample(t *testing.T) {
	converse(t, four(), delivery.Policy{}, `
next
  work claim 4 or take over
reply range 1-4
next
  read 1-4
read all
take
  start 1, attempt 1, 48s left
wait 10s
end 1
take
  start 2, attempt 1, 38s left
wait 10s
end 2
take
  nothing
  ! SQL0105: message 3, range 1-4, remaining 28s, needed 33s
# The store is told once. Fresh work may go on: a stale range does not count.
next
  work stale 1-, claim 4 or take over
reply
next
  wait 28s
wait 28s
# Its lease has ended: it is forgotten, and a moment later looked for like any other.
next
  wait 250ms
wait 250ms
next
  work claim 4 or take over
reply range 1-4 again stale 1
next
  read 1-4
`)
}

func TestScriptWholeRange(t *testing.T) {
	converse(t, Options{Handlers: 2, BatchMin: 3, BatchLimit: 3, QueueSize: 1}, delivery.Policy{}, `
next
  work claim 3 or take over
wait 1s
# The lease counts from before the request.
reply range 1-3 more
next
  read 1-3
wait 1s
read all
take
  start 1, attempt 1, 45.1s left
take
  start 2, attempt 1, 45.1s left
take
  no slot
next
  wait 500ms
end 2 error
take
  start 3, attempt 1, 45.1s left
next
  wait 20ms
end 3 terminal
  ! SQL0108 dead message 3
wait 500ms
end 1
# Recorded together, and the next one claimed in the same call. The wait of the failed one counts from its failure.
next
  work record 1- 2:retry/1 in 500ms 3:dead/1, claim 3 or take over
reply range 4-6
next
  read 4-6
`)
}

func TestScriptUnknownOutcomes(t *testing.T) {
	converse(t, Options{Handlers: 2, BatchMin: 2, BatchLimit: 2}, delivery.Policy{}, `
next
  work claim 2 or take over
fail unknown
  ! SQL0111 retrying
next
  wait 37.5ms
wait 1s
next
  held? 1 tokens
# It was claimed: ours, for as long as the database says.
held 1-2 40s
next
  read 1-2
read all
take
  start 1, attempt 1, 40s left
take
  start 2, attempt 1, 40s left
end 1
end 2
next
  work record 1-, claim 2 or take over
fail unknown
  ! SQL0111 retrying
wait 1s
next
  held? 2 tokens
held nothing
  ! SQL0100 lease_lost range 1-2
next
  work claim 2 or take over
reply
next
  wait
`)
}

func TestScriptClocks(t *testing.T) {
	converse(t, Options{Handlers: 1, BatchMin: 4, BatchLimit: 4}, delivery.Policy{}, `
next
  work claim 4 or take over
reply range 1-4
next
  read 1-4
read all
take
  start 1, attempt 1, 47.1s left
# Half a second is no reason to ask.
wall 500ms
end 1
take
  start 2, attempt 1, 46.6s left
end 2
# The machine slept: the monotonic clock stood still. Nothing starts before the database has spoken.
asleep 20m
take
  nothing
  ! SQL0110 clocks_parted range 1-4
next
  held? 1 tokens
held nothing
  ! SQL0100 lease_lost range 1-4
# Now the wall clock is set back by five minutes; the lease stands.
woke
next
  work claim 4
reply range 5-8
next
  read 5-8
read all
wall -5m
take
  nothing
  ! SQL0110 clocks_parted range 5-8
next
  held? 1 tokens
held 5-8 47s
take
  start 5, attempt 1, 47s left
`)
}

func TestScriptPause(t *testing.T) {
	converse(t, Options{Handlers: 2, BatchMin: 4, BatchLimit: 4}, delivery.Policy{}, `
next
  work claim 4 or take over
reply range 1-4 more
next
  read 1-4
read all
take
  start 1, attempt 1, 47.1s left
take
  start 2, attempt 1, 47.1s left
wait 1s
woke
next
  work
reply paused
next
  wait 1s
end 2
take
  nothing
end 1 delay 1m
next
  work give back 1- finished to 2 and [] 1:delay in 1m0s
reply paused
wait 400ms
next
  wait 600ms
# Resumed: at once.
woke
next
  work
reply
next
  work claim 4 or take over
`)
}

func TestScriptSeekDropsWhatWaits(t *testing.T) {
	converse(t, Options{Handlers: 1, BatchMin: 2, BatchLimit: 2}, delivery.Policy{}, `
next
  work claim 2 or take over
reply floor 7 range 8-9
next
  read 8-9
read all
take
  start 8, attempt 1, 47.1s left
wait 5s
end 8
take
  start 9, attempt 1, 42.1s left
wait 5s
end 9
next
  work record 8-, claim 2 or take over from 7
reply floor 9 range 1-2 more
next
  read 1-2
read all
take
  start 1, attempt 1, 47.1s left
wait 1s
woke
next
  work
# The group was moved: its claims are gone, and ranges may lie below what was the lowest open one.
reply epoch 2
  ! SQL0100 lease_lost range 1-2
end 1
take
  nothing
next
  work claim 2 or take over
`)
}

func TestScriptAbandoned(t *testing.T) {
	converse(t, Options{Handlers: 1, BatchMin: 2, BatchLimit: 2}, delivery.Policy{Timeout: 5 * time.Second}, `
next
  work claim 2 or take over
reply range 1-2
next
  read 1-2
read all
take
  start 1, attempt 1, 22.1s left
wait 5.099s
late
wait 1ms
late
  abandoned 1
  ! SQL0050 abandoned message 1
take
  start 2, attempt 1, 17s left
end 2
next
  work record 1- 1:retry/1 in 1s, claim 2 or take over
`)
}

func TestScriptStop(t *testing.T) {
	converse(t, Options{Handlers: 2, BatchMin: 5, BatchLimit: 5, StopTimeout: 2 * time.Second}, delivery.Policy{}, `
next
  work claim 5 or take over
reply range 1-5 more due 0s
next
  read 1-5
read all
take
  start 1, attempt 1, 47.1s left
take
  start 2, attempt 1, 47.1s left
end 2
take
  start 3, attempt 1, 47.1s left
stop
end 3 error
take
  nothing
next
  wait 20ms
wait 2s
late
end 1 interrupted
next
  work give back 1- finished to 0 and [2 3] 3:retry/1
reply
next
  end
`)
}

func TestScriptStopGivesUp(t *testing.T) {
	converse(t, Options{Handlers: 2}, delivery.Policy{}, `
next
  work claim 2 or take over
reply range 1-2
stop
next
  work give back 1- finished to 0 and []
fail
  ! SQL0111 retrying
wait 1s
next
  work give back 1- finished to 0 and []
fail
  ! SQL0111 retrying
wait 1s
next
  work give back 1- finished to 0 and []
fail
  ! SQL0111 retrying
wait 1s
next
  work give back 1- finished to 0 and []
fail
  ! SQL0111 retrying
next
  end
`)
}

func TestScriptTakeOverTimers(t *testing.T) {
	converse(t, Options{Handlers: 2}, delivery.Policy{}, `
next
  work claim 2 or take over
# Another instance holds a range for 30 s more.
reply expiry 30s
next
  wait 30.001s
wait 30.001s
next
  work claim 2 or take over
reply range 1-2 again reclaims 1 done 1
next
  read 1-2
read all
take
  start 2, attempt 1, 47.1s left
take
  nothing
`)
}

func TestScriptGrowth(t *testing.T) {
	converse(t, Options{Handlers: 2, BatchLimit: 7, QueueSize: 1}, delivery.Policy{}, `
# It begins with as many as there are handlers, and at most doubles.
next
  work claim 2 or take over
reply range 1-2 more
next
  read 1-2
read all
take
  start 1, attempt 1, 47.1s left
end 1
take
  start 2, attempt 1, 47.1s left
end 2
next
  work record 1-, claim 4
reply range 3-6 more
next
  read 3-6
read 3,6
take
  start 3, attempt 1, 47.1s left
end 3
take
  start 6, attempt 1, 47.1s left
end 6
next
  work record 3-, claim 7
# The end of the stream: the next call asks again, but none is made for it.
reply range 7-7
next
  read 7-7
read all
take
  start 7, attempt 1, 47.1s left
end 7
next
  work record 7-, claim 7
reply
next
  wait
`)
}

// What a call brings that was on its way when the stop began goes back.
func TestScriptStopWhileClaiming(t *testing.T) {
	converse(t, Options{Handlers: 2}, delivery.Policy{}, `
next
  work claim 2 or take over
stop
reply range 1-2 more
next
  work give back 1- finished to 0 and []
reply
next
  end
`)
	converse(t, Options{Handlers: 2}, delivery.Policy{}, `
next
  work claim 2 or take over
reply due 0s
next
  work claim 2 deliveries
stop
reply deliveries 7,9
next
  work release 7, release 9
reply
next
  end
`)
	converse(t, Options{Handlers: 2}, delivery.Policy{}, `
next
  work claim 2 or take over
stop
fail unknown
  ! SQL0111 retrying
wait 1s
next
  held? 1 tokens
held 1-2 40s
next
  work give back 1- finished to 0 and []
`)
}
