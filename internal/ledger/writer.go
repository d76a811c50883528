package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// extension is what ledgers are called.
const extension = ".ledger"

// record is a line. Which fields it has depends on its kind.
type record struct {
	Kind     string    `json:"k"`
	At       int64     `json:"t"`            // nanoseconds since 1970
	Of       int       `json:"of,omitempty"` // the line that this one ends
	Process  *Process  `json:"process,omitempty"`
	Stream   string    `json:"stream,omitempty"`
	Group    string    `json:"group,omitempty"`
	Way      string    `json:"way,omitempty"`
	Messages []Message `json:"m,omitempty"`
	Outcome  Outcome   `json:"outcome,omitempty"`
	IDs      []int64   `json:"ids,omitempty"`
	ID       int64     `json:"id,omitempty"`
	Attempt  int       `json:"attempt,omitempty"`
	Again    bool      `json:"again,omitempty"`
	Lease    int64     `json:"lease,omitempty"`
	Result   Result    `json:"result,omitempty"`
	What     string    `json:"what,omitempty"`
	Low      int64     `json:"low,omitempty"`
	High     int64     `json:"high,omitempty"`
	Name     string    `json:"name,omitempty"`
	PID      int       `json:"pid,omitempty"`
	Detail   string    `json:"detail,omitempty"`
}

// The kinds of records.
const (
	kindOpen    = "open"
	kindCall    = "call"
	kindOutcome = "outcome"
	kindStart   = "start"
	kindEnd     = "end"
	kindEvent   = "event"
	kindSpawn   = "spawn"
	kindExit    = "exit"
	kindFault   = "fault"
	kindLeaving = "leaving"
	kindClose   = "close"
)

// Writer appends to the ledger of this process. It is safe for concurrent use. After a failed write every further one fails, because what stands behind a torn
// record could not be read.
type Writer struct {
	mu   sync.Mutex
	file *os.File
	line int
	err  error
}

// Create begins the ledger of a process in the folder of the run.
func Create(dir string, p Process) (*Writer, error) {
	if p.Name == "" || filepath.Base(p.Name) != p.Name {
		return nil, fmt.Errorf("ledger: %q is no name for a file", p.Name)
	}
	f, err := os.OpenFile(filepath.Join(dir, p.Name+extension), os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	w := &Writer{file: f}
	if _, err := w.append(record{Kind: kindOpen, Process: &p}); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return w, nil
}

// append writes one record with one write and returns the number of its line.
func (w *Writer) append(r record) (line int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	// Under the lock, so that times ascend within the file.
	r.At = time.Now().UnixNano()
	text, err := json.Marshal(&r)
	if err != nil {
		return 0, fmt.Errorf("ledger: %w", err)
	}
	if _, err := w.file.Write(append(text, '\n')); err != nil {
		w.err = fmt.Errorf("ledger: %w", err)
		return 0, w.err
	}
	line = w.line
	w.line++
	return line, nil
}

// Call writes what a producer is about to produce, and returns what Outcome wants. Nothing may be produced if it fails.
func (w *Writer) Call(stream, way string, messages []Message) (int, error) {
	return w.append(record{Kind: kindCall, Stream: stream, Way: way, Messages: messages})
}

// Outcome writes what became of a call. IDs are those that the product told, if any.
func (w *Writer) Outcome(call int, outcome Outcome, ids []int64, detail string) error {
	_, err := w.append(record{Kind: kindOutcome, Of: call, Outcome: outcome, IDs: ids, Detail: detail})
	return err
}

// Start writes that a handler begins, and returns what End wants. Only what the run knows at its beginning is written.
func (w *Writer) Start(r *Run) (int, error) {
	rec := record{Kind: kindStart, Stream: r.Stream, Group: r.Group, ID: r.ID, Messages: []Message{r.Message}, Attempt: r.Attempt, Again: r.Redelivered}
	if !r.Lease.IsZero() {
		rec.Lease = r.Lease.UnixNano()
	}
	return w.append(rec)
}

// End writes how a handler ends, before it returns.
func (w *Writer) End(run int, result Result) error {
	_, err := w.append(record{Kind: kindEnd, Of: run, Result: result})
	return err
}

// Event writes what the product told.
func (w *Writer) Event(e *Event) error {
	_, err := w.append(record{Kind: kindEvent, What: e.Kind, Stream: e.Stream, Group: e.Group, Low: e.Low, High: e.High, ID: e.Message, Detail: e.Detail})
	return err
}

// Spawned writes that the run started a process, Exited how it ended.
func (w *Writer) Spawned(name string, pid int) error {
	_, err := w.append(record{Kind: kindSpawn, Name: name, PID: pid})
	return err
}

// Exited writes how a process ended.
func (w *Writer) Exited(name string, pid int, status string) error {
	_, err := w.append(record{Kind: kindExit, Name: name, PID: pid, Detail: status})
	return err
}

// Fault writes what is about to be done on purpose: before it is done, so that no effect is older than its cause.
func (w *Writer) Fault(f *Fault) error {
	_, err := w.append(record{Kind: kindFault, What: f.Kind, Name: f.Target, PID: f.PID, Detail: f.Detail})
	return err
}

// Leaving writes that the process begins an orderly end: from now on it gives back what it holds.
func (w *Writer) Leaving() error {
	_, err := w.append(record{Kind: kindLeaving})
	return err
}

// Close writes that the process ends by its own will, and closes the file.
func (w *Writer) Close() error {
	_, err := w.append(record{Kind: kindClose})
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = errors.New("ledger: closed")
	}
	return errors.Join(err, w.file.Close())
}
