// Package chaos runs producers and consumers as real processes, does them and the server real harm, and keeps the score.
//
// # A run
//
//	server, schema, stream, groups   a throw-away server of its own
//	processes                        this program again, with a role: producer or consumer
//	faults                           as the schedule says, which follows from the seed and is printed
//	drain                            producers stop; the groups have a stated time to finish
//	check                            ledgers against tables (package ledger)
//
// # Faults
//
//	kill-consumer, kill-producer     SIGKILL; another process takes the place at once
//	stop-consumer, stop-producer     SIGSTOP for longer than a lease, then SIGCONT
//	leave-consumer                   an orderly end; another process takes the place
//	terminate                        pg_terminate_backend on a connection of the library
//	kill-backend                     SIGKILL of one server process: the server recovers by itself
//	server-immediate                 pg_ctl stop -m immediate, a moment of silence, start
//
// Keys mode has messages of 10,000 keys, some of them hot, ten processes that each consume in two groups (one ordered by its config, with effects; one as messages request), and attempts of which one in
// five fails. Each second a process is killed, every five one is frozen.
//
// # Leases
//
// They are short, or a minute would not do: timeout 1 s, queue margin 1 s (its minimum), grace 100 ms, record margin 500 ms, so 2.6 s. A frozen process is frozen
// for 3 to 5 s.
//
// # Who owns what
//
// The run owns its processes: each has one goroutine that waits for its end, and the run waits for all of them. A process ends when it is told to, when it is killed,
// and when its standard input closes, which is how it learns that the run is gone.
package chaos
