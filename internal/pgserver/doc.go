// Package pgserver finds PostgreSQL binaries and runs throw-away servers.
//
// A server lives in one temporary folder: data, log, unix socket and a lock
// that says whose it is. It listens on a free port of 127.0.0.1 and on the
// socket. The superuser is postgres and nobody needs a password, unless
// Options.HBA says otherwise.
//
// # States
//
// A server is running, paused or down. Start returns it running.
//
//	running  --Stop, Kill9-->            down
//	running  --Pause-->                  paused
//	paused   --Resume-->                 running
//	paused   --Stop, Kill9-->            down
//	down     --StartAgain-->             running  (same port, same data)
//	any      --Close-->                  gone     (folder removed)
//
// The operating system is the authority on whether the postmaster runs: a
// goroutine waits for its exit, so a server that ends by itself is down too.
//
// # Quick and durable servers
//
// By default fsync and full_page_writes are off, as tests start and drop many
// databases. That loses data only when the operating system stops: whatever a
// server has written is in the kernel's cache, which outlives any process. So
// tests that kill -9 the postmaster, stop it with Immediate or kill a backend
// mean what they say. synchronous_commit stays on: a commit that returned has
// been handed to the kernel. Options.Durable leaves everything at the server's
// own defaults, for measurements.
//
// # When the program dies
//
// Each server has a watchdog: a shell in its own session that reads a pipe
// whose other end only this process holds. However the process ends, kill -9
// included, the kernel closes the pipe, the watchdog stops the postmaster and
// removes the folder. (The parent-death signal of Linux would end the server
// when the operating-system thread that started it ends, which a Go program
// does not control, and other systems have none.) Should the watchdog have
// been killed as well, the next Start finds the folder, sees that nobody holds
// its lock, ends what is left and removes it.
//
// # Root
//
// PostgreSQL refuses to run as root, so a program run by root starts it as the
// user postgres, or nobody where there is none, and gives that user the data
// folder.
//
// # The template
//
// initdb takes about a second and always gives the same result, so its data
// folder is kept as one tar file in the user's cache folder (one for each
// build of PostgreSQL), written once under a lock however many processes start
// at the same moment, and unpacked by each Start.
package pgserver
