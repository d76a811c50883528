// Package wake tells consumers when looking for work is worth while: announcements, adaptive polling, and moving what waits in inboxes.
//
// A process has one Hub, however many groups it consumes. Nothing here decides what is delivered: a wake-up is a hint to look, and losing
// every one of them costs the poll interval.
//
// # Goroutines
//
// The hub owns them all, and Close waits for them.
//
//	poller     runs while there is a subscription: one probe for all groups
//	listener   runs while there is a subscription, unless polling only
//	a drain    one a stream, only while rows are expected in its inbox
//	announcer  runs from the first announcement to Close
//
// # States of the listener
//
//	connecting --Listen--> deaf --own hello heard--> listening
//	deaf, listening --the connection ends, or a ping fails--> pausing --backoff--> connecting
//	any --the last subscription is closed, Close--> gone
//
// Listening is believed only once an announcement of its own, sent over another connection, has come back: through a pooler in transaction
// mode LISTEN succeeds and nothing ever arrives. In every state but listening, groups with recent work are polled fast.
//
// # What goes wrong
//
//   - An announcement is lost, or sent while nobody listens: the next probe finds the work. Each successful LISTEN is followed by a probe of
//     all groups at once.
//   - The connection is half-open: a ping after five quiet seconds is not answered within five, the connection is made anew.
//   - It leads to a standby: refused when it is made. A standby would never hear an announcement.
//   - The server is down: each loop tries with a backoff of its own, 50 ms to 5 s, and the first probe that succeeds is followed by a probe
//     of all groups at once.
//   - Another process holds the stream's lock when an inbox is to be drained: the drain is tried again within milliseconds, and then by the
//     look-again schedule. If that process moved the rows, the higher head in the drain's reply says so, and the groups are woken.
//   - A row of an announced transaction is not visible yet: look again, see lookAgain.
package wake
