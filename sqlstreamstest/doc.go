// Package sqlstreamstest helps to test code that produces and consumes, on a Postgres of yours.
//
// New gives a test an installation in a schema of its own, which goes when the test ends, so that tests run in parallel. Consume runs a group in the test, Drain waits until it has nothing left to do, DrainNow does so without
// waiting for retries, BringForward makes due what waits for its time. Produced and RequireProduced look at what a stream holds. Handle runs a handler against one message, without a database.
//
// The tests of examples/testsuite show them at work.
//
// A helper that fails ends the test, at the line that called it.
package sqlstreamstest
