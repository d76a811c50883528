// Package worker runs parts of a program in processes of their own: this program again, in a role.
//
// The parent writes one line of JSON to the child's standard input, then "mark" as often as it likes; the child answers each with a line. The end of
// the input, whatever ends the parent, ends the child, which answers with its result last.
package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"
)

// Env says which role a process has.
const Env = "SQLSTREAMS_BENCH_ROLE"

// stopTimeout is how long a child may take to end by itself.
const stopTimeout = 20 * time.Second

// line is what a child says.
type line struct {
	Ready  bool            `json:"ready,omitempty"`
	Count  int64           `json:"count"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// Control is a role's connection to its parent.
type Control struct {
	Config json.RawMessage
	// Count is what the parent reads while the role runs.
	Count atomic.Int64

	ready sync.Once
	out   *json.Encoder
	mu    sync.Mutex
}

// Ready tells the parent that work begins.
func (c *Control) Ready() {
	c.ready.Do(func() { c.say(line{Ready: true}) })
}

func (c *Control) say(l line) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// A parent that is gone reads nothing, and the end of the input says so.
	_ = c.out.Encode(l)
}

// Role works until ctx ends and returns its result.
type Role func(ctx context.Context, c *Control) (any, error)

// Main runs a role if this process has one; else it returns false.
func Main(roles map[string]Role) bool {
	name := os.Getenv(Env)
	if name == "" {
		return false
	}
	c := &Control{out: json.NewEncoder(os.Stdout)}
	result, err := run(name, roles, c, os.Stdin)
	l := line{}
	if err != nil {
		l.Error = err.Error()
	} else if l.Result, err = json.Marshal(result); err != nil {
		l.Error = err.Error()
	}
	c.say(l)
	return true
}

func run(name string, roles map[string]Role, c *Control, in io.Reader) (any, error) {
	role, ok := roles[name]
	if !ok {
		return nil, fmt.Errorf("there is no role %q", name)
	}
	lines := bufio.NewReader(in)
	config, err := lines.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	c.Config = config
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		defer cancel()
		for {
			if _, err := lines.ReadBytes('\n'); err != nil {
				return
			}
			c.say(line{Count: c.Count.Load()})
		}
	}()
	return role(ctx, c)
}

// Worker is a process in a role.
type Worker struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *json.Decoder
	role string
}

// Start starts a process and waits until it is ready.
func Start(ctx context.Context, role string, config any) (*Worker, error) {
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), Env+"="+role)
	cmd.Stderr = os.Stderr
	w := &Worker{cmd: cmd, role: role}
	if w.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.out = json.NewDecoder(out)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if _, err = w.in.Write(append(text, '\n')); err == nil {
		var l line
		l, err = w.next()
		if err == nil && !l.Ready {
			err = errors.New("it ended before it was ready")
		}
	}
	if err != nil {
		_, stopErr := w.Stop()
		return nil, fmt.Errorf("%s: %w", role, errors.Join(err, stopErr))
	}
	return w, nil
}

func (w *Worker) next() (line, error) {
	var l line
	if err := w.out.Decode(&l); err != nil {
		return l, fmt.Errorf("%s: %w", w.role, err)
	}
	if l.Error != "" {
		return l, fmt.Errorf("%s: %s", w.role, l.Error)
	}
	return l, nil
}

// PID returns the process's id.
func (w *Worker) PID() int { return w.cmd.Process.Pid }

// Count asks how far the process is.
func (w *Worker) Count() (int64, error) {
	if _, err := io.WriteString(w.in, "mark\n"); err != nil {
		return 0, err
	}
	l, err := w.next()
	return l.Count, err
}

// Stop ends the process and returns its result.
func (w *Worker) Stop() (json.RawMessage, error) {
	_ = w.in.Close() // a process that has ended has closed it
	timer := time.AfterFunc(stopTimeout, func() { _ = w.cmd.Process.Kill() })
	defer timer.Stop()
	l, err := w.next()
	// Whatever follows is of no interest, but Wait must find the pipe read.
	return l.Result, errors.Join(err, w.cmd.Wait())
}

// Group is several processes in one role.
type Group []*Worker

// StartGroup starts n processes at once and waits until all are ready.
func StartGroup(ctx context.Context, n int, role string, config any) (Group, error) {
	g := make(Group, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { g[i], errs[i] = Start(ctx, role, config) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		var started Group
		for _, w := range g {
			if w != nil {
				started = append(started, w)
			}
		}
		return nil, errors.Join(err, started.Stop())
	}
	return g, nil
}

// PIDs returns the processes' ids.
func (g Group) PIDs() []int {
	var all []int
	for _, w := range g {
		all = append(all, w.PID())
	}
	return all
}

// Count adds up how far the processes are.
func (g Group) Count() (float64, error) {
	total := int64(0)
	for _, w := range g {
		n, err := w.Count()
		if err != nil {
			return 0, err
		}
		total += n
	}
	return float64(total), nil
}

// Stop ends all of them.
func (g Group) Stop() error {
	errs := make([]error, len(g))
	var wg sync.WaitGroup
	for i, w := range g {
		wg.Go(func() { _, errs[i] = w.Stop() })
	}
	wg.Wait()
	return errors.Join(errs...)
}
