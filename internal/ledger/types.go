package ledger

import "time"

// Outcome is what a producer learnt of a call.
type Outcome string

// What becomes of a call.
const (
	Confirmed  Outcome = "confirmed"   // the product said that it is stored
	Refused    Outcome = "refused"     // the product said that it is not
	Unknown    Outcome = "unknown"     // the product said that it may be
	RolledBack Outcome = "rolled back" // its transaction was rolled back by the producer
)

// Result is how a handler ended.
type Result string

// How handlers end.
const (
	OK        Result = "ok"
	Failed    Result = "error"     // to be retried
	Terminal  Result = "terminal"  // to be a dead letter at once
	Delayed   Result = "delayed"   // to be run again later, without a failure
	Abandoned Result = "abandoned" // it outlived timeout and grace, so it counted as failed before it returned
	Altered   Result = "altered"   // the message is not what was produced
)

// Process says whose ledger a file is.
type Process struct {
	Name string `json:"name"` // unique in the run; the file is called after it
	Role string `json:"role"`
	PID  int    `json:"pid"`
}

// How messages of a key follow each other in a group; anything else means that they do not.
const (
	Exclusive = "exclusive" // one at a time
	Ordered   = "ordered"   // one at a time, each after all lower ordered ones have a recorded success or are dead
)

// Message is one message as its producer knows it.
type Message struct {
	Business string `json:"b"` // unique in the run: two messages of one business id are one message stored twice
	Key      string `json:"key,omitempty"`
	Order    string `json:"order,omitempty"` // what the producer requested for the key; handlers do not write it
}

// Call is one call of a producer: all of its messages are stored or none.
type Call struct {
	Stream   string
	Way      string // how it was produced, for the report: single, batch, tx
	Messages []Message
	Began    time.Time
	Ended    time.Time // zero: the process ended first
	Outcome  Outcome
	IDs      []int64 // as the product told them; empty: it did not
	// The places of its records in the file, which order calls within the process whatever the clock does.
	BeganAt, EndedAt int
}

// Run is one run of a handler.
type Run struct {
	Stream, Group string
	ID            int64
	Message       Message
	Attempt       int
	Redelivered   bool
	Lease         time.Time // until when the product said the message is this process's; zero: not told
	Began         time.Time
	Ended         time.Time // zero: it did not return while the process lived
	Result        Result
}

// What a product tells a consumer, as far as the checker uses it.
const (
	ToldStale     = "stale"      // too little lease remained for what waited
	ToldLeaseLost = "lease_lost" // a result was refused, or a range was not the process's any longer
	ToldAgain     = "again"      // a handler's success could not be committed in its transaction, so the message runs again
	ToldAbandoned = "abandoned"  // a handler outlived timeout and grace, and counts as failed whatever it returns
)

// Event is something that the product told a consumer about ids (Low, High], or about one message if Message is set.
type Event struct {
	At            time.Time
	Kind          string
	Stream, Group string
	Low, High     int64
	Message       int64
	Detail        string
}

func (e *Event) covers(id int64) bool { return e.Message == id || e.Low < id && id <= e.High }

// What is done to processes and servers.
const (
	Kill            = "kill"             // SIGKILL of a process
	Stop            = "stop"             // SIGSTOP of a process
	Cont            = "cont"             // SIGCONT of it
	Leave           = "leave"            // a process was asked to end
	TerminateConn   = "terminate"        // pg_terminate_backend on a connection of a process
	KillBackend     = "kill-backend"     // SIGKILL of a server process: the server restarts by itself
	ServerImmediate = "server-immediate" // pg_ctl stop -m immediate
	ServerStart     = "server-start"     // the server answers again
)

// Fault is something that the run did on purpose.
type Fault struct {
	At     time.Time
	Kind   string
	Target string // name of the process concerned; empty: the server, so everybody
	PID    int
	Detail string
}

// serverWide says whether a fault undid or hid the last moments of everybody's progress.
func (f *Fault) serverWide() bool { return f.Kind == KillBackend || f.Kind == ServerImmediate }

// isStart says whether a fault begins something; the others end what began.
func (f *Fault) isStart() bool { return f.Kind != Cont && f.Kind != ServerStart }

// Spawn is a process that the run started; Exit is how it ended.
type Spawn struct {
	At     time.Time
	Name   string
	PID    int
	Exited bool
	Status string // how it ended, as the system puts it
}

// Ledger is what one file says.
type Ledger struct {
	Process Process
	Opened  time.Time
	Calls   []Call
	Runs    []Run
	Events  []Event
	Faults  []Fault
	Spawned []Spawn
	Leaving time.Time // when the process began an orderly end; zero: never
	Closed  bool      // the process said goodbye
	Torn    int       // records whose end is missing: 0 or 1
	Damage  string    // why the file cannot be trusted; empty: it can
}

// Book is everything that was written down in a run.
type Book struct {
	Ledgers []*Ledger
}

// Snapshot is what the tables hold after a run.
type Snapshot struct {
	Streams []StreamRows
}

// StreamRows is one stream.
type StreamRows struct {
	Name     string
	FirstID  int64        // ids below it were removed on purpose
	Messages []MessageRow // ascending by id
	Inbox    []MessageRow // without ids
	Groups   []GroupRows
}

// MessageRow is one stored message.
type MessageRow struct {
	ID int64
	Message
}

// GroupRows is one consumer group.
type GroupRows struct {
	Name       string
	Claimed    int64
	Claims     []Span
	Done       []int64 // finished inside an open range
	Deliveries []int64
	Dead       []DeadRow
	Attempts   []AttemptRow
	KeyOrder   string // overrides what messages request; empty: it does not
}

// Span is an open range of ids (Low, High].
type Span struct{ Low, High int64 }

// DeadRow is a dead letter.
type DeadRow struct {
	ID       int64
	Reason   string
	Attempts int
	DiedAt   time.Time
}

// AttemptRow is a recorded failure.
type AttemptRow struct {
	ID      int64
	Attempt int
}
