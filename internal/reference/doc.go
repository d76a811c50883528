// Package reference says what a consumer group must do, a second time and in another way than the engine: it draws histories, keeps what was seen
// while one is played, and judges that against what the plan alone allows. It imports the standard library only, so it can share no mistake with what it judges.
//
// # A history
//
//	Plan      messages with keys, orders and what each attempt at them does; operators' actions; where instances die. Drawn from a seed
//	Recorder  the trace of a history that is played: handlers that start and end, results on their way to the store, deaths, operators' actions
//	Trace     what the Recorder has kept, in one order
//	Final     what the store holds when nothing moves any longer
//
// # Who is authoritative
//
// The trace. An event stands in it before what it can cause: a start before the handler works, an end before it returns, a result before it is handed to the store (Strict:
// once the store has it), an operator's action before it is asked for. So of two events the one that caused the other comes first, whatever clocks and goroutines do.
//
// # The verdict
//
// Judge replays the trace through an automaton a message (life.go), whose state is the set of what can be recorded of it, and holds every start and the end against the rules (judge.go).
package reference
