package consume

import (
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

func TestScriptDeliveries(t *testing.T) {
	converse(t, Options{Handlers: 2}, delivery.Policy{MaxAttempts: 3}, `
next
  work claim 2 or take over
reply due 2s
next
  wait 2s
wait 2s
next
  work claim 2 deliveries
reply deliveries 7,9 attempt 2
next
  read [7 9]
read all
take
  start 7, attempt 3, 47.1s left
take
  start 9, attempt 3, 47.1s left
end 9
next
  wait 5ms
# The last attempt failed.
end 7 error
  ! SQL0108 dead message 7
next
  work record 9:ok/2, record 7:dead/3
`)
}

func TestScriptDeliveryThatDiedAlone(t *testing.T) {
	converse(t, Options{Handlers: 2}, delivery.Policy{MaxAttempts: 3}, `
next
  work claim 2 or take over
reply solodue 0s
next
  ask for the gate
gate closed
next
  wait
gate mine
next
  work claim a solo delivery
reply deliveries 5 attempt 3
next
  read [5]
read all
  ! SQL0108 dead message 5
gate open
next
  work record 5:dead/3 solo
`)
}

func TestScriptSolo(t *testing.T) {
	converse(t, Options{Handlers: 2, BatchMin: 2, BatchLimit: 2}, delivery.Policy{}, `
next
  work claim 2 or take over
reply range 1-2 more solodue 0s
next
  read 1-2
read all
take
  start 1, attempt 1, 47.1s left
next
  ask for the gate
gate closed
take
  nothing
end 1
gate mine
next
  work claim a solo delivery
reply deliveries 5
next
  read [5]
read all
take
  start 5, attempt 2, 47.1s left
take
  nothing
end 5 error
# It is over when the handler has returned, not when that is recorded.
gate open
take
  start 2, attempt 1, 47.1s left
next
  work record 5:retry/2 in 2s solo, claim 2
`)
}

// A call that brings more than was asked for is borne with.
func TestScriptTwoSoloAtOnce(t *testing.T) {
	converse(t, Options{Handlers: 2}, delivery.Policy{}, `
next
  work claim 2 or take over
reply solodue 0s
next
  ask for the gate
gate mine
next
  work claim a solo delivery
reply deliveries 5,6
next
  read [5 6]
read all
take
  start 5, attempt 2, 47.1s left
take
  nothing
end 5
gate open
take
  nothing
next
  work record 5:ok/1, release 6
`)
}

func TestScriptUnreadableDeliveries(t *testing.T) {
	converse(t, Options{Handlers: 2, QueueMargin: time.Second}, delivery.Policy{}, `
next
  work claim 2 or take over
reply due 0s
next
  work claim 2 deliveries
reply deliveries 7,9
next
  read [7 9]
read failed
next
  wait 37.5ms
wait 990ms
next
  read [7 9]
read failed
next
  work release 7, release 9
# They are due at once.
reply due 0s
next
  work claim 2 deliveries
`)
}

func TestScriptLostDelivery(t *testing.T) {
	converse(t, Options{Handlers: 2}, delivery.Policy{}, `
next
  work claim 2 or take over
reply due 0s
next
  work claim 2 deliveries
reply deliveries 7
next
  read [7]
read all
take
  start 7, attempt 2, 47.1s left
end 7
next
  work record 7:ok/1
reply lost
  ! SQL0100 lease_lost message 7
next
  wait
`)
}
