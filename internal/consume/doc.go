// Package consume is the engine behind Consume: a machine that decides and a session that acts.
//
// The machine (machine.go and its neighbours) holds the open ranges, the queue, the slots, the estimates and the stop state. It has no
// goroutine, no clock and no store: its methods are told what time it is and what happened, and say what to do. The session owns the
// goroutines: workers that take messages under one mutex and run the handler themselves, one loop that talks to the store, one watchdog
// for deadlines, one drainer that feeds the hooks.
//
// # States of a range
//
//	claimed --read--> open --every message has an outcome--> finished --recorded--> gone
//	open --too little lease for the next message--> stale --its lease ended--> gone
//	claimed, open --given back: stop, pause, trimmed, ReleaseStale, unreadable--> surrendered, once nothing of it runs --> gone
//	any --the store refused its token, a seek, settled as not held--> lost
//	any --both clocks parted--> suspect --the store says what remains--> as before
//
// The database is authoritative: a range is ours while the row with its token stands. What is held here is trusted only as far as its
// lease, counted from before the request that claimed it was sent, by the larger of monotonic and wall-clock time.
//
// # States of an attempt
//
//	started --returns--> outcome
//	started --timeout--> cancelled --returns within the grace--> outcome
//	cancelled --grace over--> abandoned (failed; the slot is free) --returns--> cleared
//
// # What goes wrong
//
//   - The store does not answer: running handlers go on, what is too late is not started, the loop tries again with backoff.
//   - The outcome of a call is unknown: the tokens that it carried are looked for (Held) before anything else is sent.
//   - A handler panics or ends its goroutine: a failed attempt. One that hangs: abandoned; another worker takes its slot.
//   - A hook is slow: events wait in one bounded queue; what does not fit is counted, and handlers are not slowed.
package consume
