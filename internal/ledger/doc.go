// Package ledger writes down, outside the product, what producers and handlers did, and checks afterwards that it fits what the database holds.
//
// # Files
//
// Each process has one file of lines of JSON in a folder of the run, and only ever appends to it. A record is one write(2), so whatever a process
// has written outlives its SIGKILL; at most the tail of the last record is missing, which is tolerated and counted. Nothing is synced: only
// processes are killed, never the operating system.
//
// A record stands on the side of the truth that cannot be undone: an intent is written before the call, its outcome after it returned; a run is
// written before the handler works and its result before the handler returns to the product. So if the product knows of a success, the ledger does.
//
// # Who writes what
//
//	producers  call, then confirmed | refused | unknown | rolled back
//	handlers   start, then ok | error | terminal | delayed | abandoned | altered; and what the product told them (stale, lease lost)
//	the run    spawned and exited processes, and faults
//
// A call without an outcome (its process was killed) counts as unknown: its messages may or may not be there, but never twice.
//
// # Order by key
//
// A run of an ordered message may begin when every lower ordered one of its key has a recorded success or is dead, and no two exclusive or ordered ones of a key
// run at once. Of several successes of a message the last one was recorded, as a recorded one is not repeated; the tables say who died, when, and who waits still. One exception: what followed the
// end of the lower one in the same instance under the same lease goes on in memory and is recorded with it or after it, so it may come again with it. From the end of its lease or timeout on a
// run is not judged any longer, but counted.
//
// # The verdict
//
// Check joins the ledgers with a Snapshot of the tables. It says fail if a promise was broken, and unknown if the check could not be completed:
// a ledger missing or damaged, a group that was not drained, and in a chaos run no fault or not a single message that ran again, because then nothing
// was tried. It never says pass for want of evidence.
package ledger
