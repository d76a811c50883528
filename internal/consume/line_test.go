package consume

import (
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

// lined is two slots, and claims of four.
func lined() Options {
	return Options{Handlers: 2, BatchMin: 4, BatchLimit: 4}
}

func TestScriptLineWithinARange(t *testing.T) {
	converse(t, lined(), delivery.Policy{}, `
next
  work claim 4 or take over
reply range 1-4 keyed ordered
next
  read 1-4
read all a 1,2,4
take
  start 1, attempt 1, 47.1s left
# 2 waits for 1, 3 has no key.
take
  start 3, attempt 1, 47.1s left
end 3
take
  nothing
end 1
take
  start 2, attempt 1, 47.1s left
take
  nothing
end 2
take
  start 4, attempt 1, 47.1s left
end 4
next
  work record 1-, claim 4, claim 4 deliveries and 4 behind
`)
}

func TestScriptFailureInALine(t *testing.T) {
	converse(t, lined(), delivery.Policy{}, `
next
  work claim 4 or take over
reply range 1-4 keyed ordered
next
  read 1-4
read all a 1,2,4 b 3
take
  start 1, attempt 1, 47.1s left
take
  start 3, attempt 1, 47.1s left
# Those behind it wait in the store; the range goes on for another key.
end 1 error
take
  nothing
next
  wait 20ms
wait 20ms
next
  wait 1ns
wait 230ms
next
  wait 1ns
reply woken 1
  nothing was asked
end 3
next
  work record 1- 1:retry/1 in 750ms 2:wait 4:wait, claim 4, claim 2 deliveries and 4 behind
`)
}

// One that is exclusive lets the next one go on whatever became of it.
func TestScriptExclusive(t *testing.T) {
	converse(t, lined(), delivery.Policy{}, `
next
  work claim 4 or take over
reply range 1-4 keyed exclusive
next
  read 1-4
read all a 1,2,3,4
take
  start 1, attempt 1, 47.1s left
take
  nothing
end 1 error
take
  start 2, attempt 1, 47.1s left
end 2 delay 1m
take
  start 3, attempt 1, 47.1s left
end 3 terminal
  ! SQL0108 dead message 3
take
  start 4, attempt 1, 47.1s left
end 4
next
  work record 1- 1:retry/1 in 1s 2:delay in 1m0s 3:dead/1, claim 4, claim 4 deliveries and 4 behind
`)
}

// Across ranges the next one starts when the one before it is recorded.
func TestScriptLineOverTwoRanges(t *testing.T) {
	converse(t, lined(), delivery.Policy{}, `
next
  work claim 4 or take over
reply range 1-4 keyed ordered more
next
  read 1-4
read all a 4
take
  start 1, attempt 1, 47.1s left
take
  start 2, attempt 1, 47.1s left
wait 1s
end 1
take
  start 3, attempt 1, 46.1s left
end 2
take
  start 4, attempt 1, 46.1s left
next
  work claim 4 or take over
reply range 5-8 keyed ordered more
next
  read 5-8
read all a 5
end 4
# 5 waits for the record of 4, which is worth a call of its own.
take
  start 6, attempt 1, 47.1s left
next
  work record of 1- to 2 and [4] free [a]
take
  no slot
reply
end 6
take
  start 5, attempt 1, 47.1s left
`)
}

func TestScriptLowerRangeIsLost(t *testing.T) {
	converse(t, lined(), delivery.Policy{}, `
next
  work claim 4 or take over
reply range 1-4 keyed ordered more
next
  read 1-4
read all a 4
take
  start 1, attempt 1, 47.1s left
take
  start 2, attempt 1, 47.1s left
wait 1s
end 1
take
  start 3, attempt 1, 46.1s left
end 2
take
  start 4, attempt 1, 46.1s left
next
  work claim 4 or take over
reply range 5-8 keyed ordered more
next
  read 5-8
read all a 5,8
end 3
end 4
next
  work record 1-, claim 4, claim 1 deliveries and 2 behind
reply lost
  ! SQL0100 lease_lost range 1-4
# Who has it now runs 4 again; 5 and 8 wait in the store.
take
  start 6, attempt 1, 47.1s left
take
  start 7, attempt 1, 47.1s left
end 6
end 7
next
  work record 5- 5:wait 8:wait, claim 2 deliveries and 4 behind
`)
}

// A range that was claimed before the store learnt of a failure still brings messages of the key.
func TestScriptClaimedBeforeTheFailureWasRecorded(t *testing.T) {
	converse(t, lined(), delivery.Policy{}, `
next
  work claim 4 or take over
reply range 1-4 keyed ordered more
next
  read 1-4
read all a 1
take
  start 1, attempt 1, 47.1s left
take
  start 2, attempt 1, 47.1s left
end 2
take
  start 3, attempt 1, 47.1s left
end 3
take
  start 4, attempt 1, 47.1s left
end 4
next
  work claim 4
# Under way, when 1 fails.
end 1 error
reply range 5-8 keyed ordered
next
  read 5-8
read failed
next
  work record 1- 1:retry/1 in 1s, claim 4, claim 4 deliveries and 4 behind
reply
wait 1s
next
  read 5-8
read all a 5
take
  start 6, attempt 1, 46.1s left
take
  start 7, attempt 1, 46.1s left
end 6
end 7
take
  start 8, attempt 1, 46.1s left
end 8
next
  work record 5- 5:wait, claim 4 deliveries and 4 behind
`)
}

func TestScriptStaleRangeBreaksItsLines(t *testing.T) {
	o := lined()
	o.QueueMargin = 4 * time.Second
	converse(t, o, delivery.Policy{Timeout: 30 * time.Second}, `
next
  work claim 4 or take over
reply range 1-4 keyed ordered more
next
  read 1-4
read all a 1,3
take
  start 1, attempt 1, 36.1s left
take
  start 2, attempt 1, 36.1s left
wait 1s
end 2
next
  work claim 4 or take over
reply range 5-8 keyed ordered more lease 60s
next
  read 5-8
read all a 5
wait 4s
take
  start 6, attempt 1, 56s left
  ! SQL0105: message 4, range 1-4, remaining 31.1s, needed 32.1s
# 5 comes after 3, which is left.
end 1
end 6
take
  start 7, attempt 1, 56s left
take
  start 8, attempt 1, 56s left
next
  work record of 5- to 6 and [] free [a] 5:wait, stale 1-
reply
end 7
end 8
next
  work record 7-, claim 4 or take over, claim 2 deliveries
`)
}

func TestScriptLineOfDeliveries(t *testing.T) {
	converse(t, lined(), delivery.Policy{}, `
next
  work claim 4 or take over
reply due 0s woken 2
next
  work claim 2 deliveries and 2 behind
reply deliveries 3,5,9 attempt 0 order ordered
next
  read [3 5 9]
read all a 3,5,9
take
  start 3, attempt 1, 47.1s left
take
  nothing
end 3
take
  start 5, attempt 1, 47.1s left
next
  wait 5ms
end 5 error
take
  nothing
wait 5ms
next
  work record 3:ok, record 5:retry/1 in 995ms, release 9, claim 4 deliveries and 4 behind
`)
}

func TestScriptStopBreaksLines(t *testing.T) {
	converse(t, lined(), delivery.Policy{}, `
next
  work claim 4 or take over
reply range 1-4 keyed ordered
next
  read 1-4
read all a 1,2 b 3,4
take
  start 1, attempt 1, 47.1s left
take
  start 3, attempt 1, 47.1s left
end 3
stop
end 1
next
  work give back 1- finished to 1 and [3]
`)
}

// The end of a line that would take longer than the lease is given back. Nothing of the range runs then, and no limit was lowered; still it is no whole record.
func TestScriptLineThatIsTooLongIsGivenBack(t *testing.T) {
	converse(t, Options{Handlers: 2, BatchMin: 1, BatchLimit: 4}, delivery.Policy{}, `
next
  work claim 2 or take over
reply range 1-4 keyed ordered
next
  read 1-4
read all a 1,2,3,4
take
  start 1, attempt 1, 47.1s left
wait 9s
end 1
take
  start 2, attempt 1, 38.1s left
wait 5s
next
  wait 500ms
end 2
next
  work give back 1- finished to 2 and [], claim 1 or take over
`)
}

// Until a death is recorded, the message could run again: behind it nothing starts here.
func TestScriptDeathInALine(t *testing.T) {
	converse(t, lined(), delivery.Policy{MaxAttempts: 1}, `
next
  work claim 4 or take over
reply range 1-4 keyed ordered
next
  read 1-4
read all a 1,2,4
take
  start 1, attempt 1, 47.1s left
take
  start 3, attempt 1, 47.1s left
end 1 error
  ! SQL0108 dead message 1
take
  nothing
end 3
next
  work record 1- 1:dead/1 2:wait 4:wait, claim 4, claim 4 deliveries and 4 behind
`)
}

// What waits behind a death breaks the line itself: a range that comes with the record of the death was claimed when the store did not know of it.
func TestScriptWhatWaitsBreaksItsLine(t *testing.T) {
	converse(t, lined(), delivery.Policy{MaxAttempts: 1}, `
next
  work claim 4 or take over
reply range 1-4 keyed ordered more
next
  read 1-4
read all a 1
take
  start 1, attempt 1, 47.1s left
take
  start 2, attempt 1, 47.1s left
end 2
take
  start 3, attempt 1, 47.1s left
end 3
take
  start 4, attempt 1, 47.1s left
end 4
next
  work claim 4
reply range 5-8 keyed ordered more
next
  read 5-8
read all a 5
take
  start 6, attempt 1, 47.1s left
end 6
take
  start 7, attempt 1, 47.1s left
end 1 error
  ! SQL0108 dead message 1
next
  work record 1- 1:dead/1, claim 4, claim 4 deliveries and 4 behind
reply range 9-12 keyed ordered
next
  read 9-12
read all a 9
take
  start 8, attempt 1, 47.1s left
end 8
take
  start 10, attempt 1, 47.1s left
`)
}

// While deliveries that waited for their keys fill every slot nothing fresh is claimed; but ranges whose holder has died are older than these, and are looked for each second all the same.
func TestScriptExpiredRangesAreLookedForWhileLinesFillTheSlots(t *testing.T) {
	converse(t, lined(), delivery.Policy{}, `
next
  work claim 4 or take over
reply due 0s woken 1
next
  work claim 2 deliveries and 2 behind
reply deliveries 3,5,7,9,11,13 attempt 0 order ordered due 0s
next
  read [3 5 7 9 11 13]
read all a 3 b 5 c 7 d 9 e 11 f 13
take
  start 3, attempt 1, 47.1s left
take
  start 5, attempt 1, 47.1s left
end 3
take
  start 7, attempt 1, 47.1s left
woke
wait 5ms
next
  work record 3:ok, claim 1 deliveries and 4 behind
reply due 0s
end 5
take
  start 9, attempt 1, 47.095s left
wait 1s
next
  work record 5:ok, claim 4 or take over, claim 2 deliveries and 4 behind
`)
}
