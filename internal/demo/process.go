package demo

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// stopTimeout is what the parent waits for a child that was told to stop.
const stopTimeout = 15 * time.Second

// process is a child as its parent sees it.
type process struct {
	group string
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{} // closed when it has been waited for
	err   error         // how it ended; to be read after ended

	mu    sync.Mutex
	last  report
	ready bool
}

// startProcess starts a child. stop or kill ends it and waits for it.
func startProcess(s *story, o orders, args []string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	told, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	p := &process{group: o.Group, cmd: exec.Command(self, args...), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), childVariable+"="+string(told))
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	p.cmd.Stdout = &lines{each: p.read}
	p.cmd.Stderr = &lines{each: func(l []byte) { s.tell(logged(p.String(), l)) }}
	// A killed process's pipes close with it, so its last output is not waited for in vain.
	p.cmd.WaitDelay = 5 * time.Second
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", o.Group, err), p.stdin.Close())
	}
	go func() {
		defer close(p.ended)
		p.err = p.cmd.Wait()
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) String() string { return fmt.Sprintf("pid %d", p.pid()) }

func (p *process) read(text []byte) {
	var r report
	if err := json.Unmarshal(text, &r); err != nil {
		r = report{Failed: fmt.Sprintf("it wrote %q", text)}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = r
	p.ready = p.ready || r.Ready
}

// lastReport returns what the child said last, and whether it ever was ready.
func (p *process) lastReport() (r report, ready bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last, p.ready
}

// check says why the child no longer consumes; nil while it does.
func (p *process) check() error {
	if r, _ := p.lastReport(); r.Failed != "" {
		return fmt.Errorf("%s, %s: %s", p.group, p, r.Failed)
	}
	select {
	case <-p.ended:
		return fmt.Errorf("%s, %s, ended: %v", p.group, p, p.err)
	default:
		return nil
	}
}

// kill ends the child as a crash would (SIGKILL, where there are signals): it cannot finish, record or say anything.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill %s, %s: %w", p.group, p, err)
	}
	<-p.ended
	return nil
}

// stop asks the child to stop and waits until it has; one that does not is killed.
func (p *process) stop() error {
	select {
	case <-p.ended:
		return nil // what became of it was said when it was noticed
	default:
	}
	// It fails only if the child has gone meanwhile, which the wait shows.
	_ = p.stdin.Close()
	patience := time.NewTimer(stopTimeout)
	defer patience.Stop()
	select {
	case <-p.ended:
	case <-patience.C:
		return errors.Join(fmt.Errorf("%s, %s, did not stop within %s", p.group, p, stopTimeout), p.kill())
	}
	if p.err != nil {
		return fmt.Errorf("%s, %s: %w", p.group, p, p.err)
	}
	return nil
}

// logged makes a line of the story from a line of a process's log.
func logged(whose string, text []byte) line {
	var entry struct {
		Msg, Code string
		Message   int64
		Error     string
	}
	if err := json.Unmarshal(text, &entry); err != nil {
		return say(alarm, "output", "%s: %s", whose, text)
	}
	out := fmt.Sprintf("%s logs %s %s", whose, entry.Code, entry.Msg)
	if entry.Message != 0 {
		out += fmt.Sprintf(" (message %d)", entry.Message)
	}
	if entry.Error != "" {
		out += ": " + entry.Error
	}
	return say(note, "log", "%s", out)
}

// lines is a writer that hands on whole lines.
type lines struct {
	each func(line []byte)
	rest []byte
}

func (l *lines) Write(data []byte) (int, error) {
	l.rest = append(l.rest, data...)
	for {
		one, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(data), nil
		}
		if len(one) > 0 {
			l.each(one)
		}
		l.rest = rest
	}
}
