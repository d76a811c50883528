package storetest

import (
	"context"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// Op is an operation of the store.
type Op string

// The operations.
const (
	OpWork    Op = "work"
	OpRead    Op = "read"
	OpReadIDs Op = "read ids"
	OpHeld    Op = "held"
	OpBeat    Op = "beat"
	OpLeave   Op = "leave"
)

// Fault makes calls fail.
type Fault struct {
	Op    Op    // "": every operation
	Times int   // how many calls; 0: one; -1: all from now on
	After bool  // the call takes effect before it fails
	Hang  bool  // it does not answer until its context ends
	Err   error // nil: a retryable error whose outcome is unknown
	// If is asked whether a call is meant; nil: it is. It runs under the store's mutex.
	If func() bool
}

// Fail plans a fault.
func (m *Memory) Fail(f Fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f.Times == 0 {
		f.Times = 1
	}
	m.faults = append(m.faults, f)
}

// Heal forgets every planned fault.
func (m *Memory) Heal() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = nil
}

// Down is a retryable error of a call that took no effect.
func Down() error { return &diag.Error{Code: diag.Unreachable, Op: "test", Retryable: true} }

// Unclear is a retryable error of a call that may have taken effect.
func Unclear() error {
	return &diag.Error{Code: diag.OutcomeUnknown, Op: "test", Retryable: true, OutcomeUnknown: true}
}

// enter runs one call, with what was planned for it.
func (m *Memory) enter(ctx context.Context, op Op, f func() error) error {
	m.mu.Lock()
	latency := m.latency
	m.mu.Unlock()
	if latency > 0 {
		t := time.NewTimer(latency)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return Unclear()
		}
	}
	m.mu.Lock()
	m.calls[op]++
	fault, ok := m.planned(op)
	if !ok {
		defer m.mu.Unlock()
		return f()
	}
	var err error
	if fault.After {
		err = f()
	}
	m.mu.Unlock()
	if fault.Hang {
		<-ctx.Done()
	}
	switch {
	case err != nil:
		return err
	case fault.Err != nil:
		return fault.Err
	default:
		return Unclear()
	}
}

func (m *Memory) planned(op Op) (Fault, bool) {
	for i := range m.faults {
		f := &m.faults[i]
		if f.Op != "" && f.Op != op || f.If != nil && !f.If() {
			continue
		}
		found := *f
		if f.Times > 0 {
			f.Times--
			if f.Times == 0 {
				m.faults = append(m.faults[:i], m.faults[i+1:]...)
			}
		}
		return found, true
	}
	return Fault{}, false
}
