package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// ReadDir reads all ledgers of a folder. A file that is damaged is no error but says so.
func ReadDir(dir string) (*Book, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*"+extension))
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	b := &Book{}
	for _, name := range names {
		l, err := readFile(name)
		if err != nil {
			return nil, err
		}
		b.Ledgers = append(b.Ledgers, l)
	}
	return b, nil
}

func readFile(name string) (*Ledger, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	text, err := io.ReadAll(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	base := filepath.Base(name)
	l := parse(text)
	if want := base[:len(base)-len(extension)]; l.Damage == "" && l.Process.Name != want {
		l.Damage = fmt.Sprintf("the file of %q says that it is of %q", want, l.Process.Name)
	}
	if l.Process.Name == "" {
		l.Process.Name = base[:len(base)-len(extension)]
	}
	return l, nil
}

// parser reads one file.
type parser struct {
	l     *Ledger
	calls map[int]int // by line
	runs  map[int]int
}

func parse(text []byte) *Ledger {
	p := parser{l: &Ledger{}, calls: map[int]int{}, runs: map[int]int{}}
	for line := 0; len(text) > 0; line++ {
		end := bytes.IndexByte(text, '\n')
		if end < 0 {
			p.l.Torn++
			break
		}
		var r record
		err := json.Unmarshal(text[:end], &r)
		if err == nil {
			err = p.take(line, &r)
		}
		if err != nil {
			p.l.Damage = fmt.Sprintf("line %d: %v", line+1, err)
			break
		}
		text = text[end+1:]
	}
	if p.l.Opened.IsZero() && p.l.Damage == "" {
		p.l.Damage = "it has no first record"
	}
	return p.l
}

func (p *parser) take(line int, r *record) error {
	l, at := p.l, time.Unix(0, r.At)
	if (line == 0) != (r.Kind == kindOpen) {
		return fmt.Errorf("a record of kind %q stands there", r.Kind)
	}
	if l.Closed {
		return errors.New("it is behind the last record")
	}
	switch r.Kind {
	case kindOpen:
		if r.Process == nil {
			return errors.New("it names no process")
		}
		l.Process, l.Opened = *r.Process, at
	case kindCall:
		p.calls[line] = len(l.Calls)
		l.Calls = append(l.Calls, Call{Stream: r.Stream, Way: r.Way, Messages: r.Messages, Began: at, Outcome: Unknown, BeganAt: line})
	case kindOutcome:
		i, ok := p.calls[r.Of]
		if !ok {
			return fmt.Errorf("it ends a call that is not open (line %d)", r.Of+1)
		}
		delete(p.calls, r.Of)
		c := &l.Calls[i]
		c.Ended, c.EndedAt, c.Outcome, c.IDs = at, line, r.Outcome, r.IDs
	case kindStart:
		if len(r.Messages) != 1 {
			return errors.New("it names no message")
		}
		p.runs[line] = len(l.Runs)
		run := Run{Stream: r.Stream, Group: r.Group, ID: r.ID, Message: r.Messages[0], Attempt: r.Attempt, Redelivered: r.Again, Began: at}
		if r.Lease != 0 {
			run.Lease = time.Unix(0, r.Lease)
		}
		l.Runs = append(l.Runs, run)
	case kindEnd:
		i, ok := p.runs[r.Of]
		if !ok {
			return fmt.Errorf("it ends a run that is not open (line %d)", r.Of+1)
		}
		delete(p.runs, r.Of)
		l.Runs[i].Ended, l.Runs[i].Result = at, r.Result
	case kindEvent:
		l.Events = append(l.Events, Event{At: at, Kind: r.What, Stream: r.Stream, Group: r.Group, Low: r.Low, High: r.High, Message: r.ID, Detail: r.Detail})
	case kindSpawn:
		l.Spawned = append(l.Spawned, Spawn{At: at, Name: r.Name, PID: r.PID})
	case kindExit:
		for i := range l.Spawned {
			if l.Spawned[i].Name == r.Name {
				l.Spawned[i].Exited, l.Spawned[i].Status = true, r.Detail
				return nil
			}
		}
		return fmt.Errorf("process %q ended and never began", r.Name)
	case kindFault:
		l.Faults = append(l.Faults, Fault{At: at, Kind: r.What, Target: r.Name, PID: r.PID, Detail: r.Detail})
	case kindLeaving:
		l.Leaving = at
	case kindClose:
		l.Closed = true
	default:
		return fmt.Errorf("a record of kind %q is not known", r.Kind)
	}
	return nil
}
