package main

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

// process is a child as its parent sees it.
type process struct {
	group string
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{} // closed when it has been waited for
	err   error         // how it ended; to be read after ended

	mu          sync.Mutex
	ready       bool
	failed      string
	redelivered []report
}

// startProcess starts a child. stop or kill, and then wait, end it.
func startProcess(tale *story, dsn string, flags childFlags) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{group: flags.group, cmd: exec.Command(self, flags.args()...), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), childDSN+"="+dsn)
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	p.cmd.Stdout = &lines{each: p.read}
	p.cmd.Stderr = &lines{each: func(line []byte) { tale.note("warning", "%s, pid %d: %s", p.group, p.pid(), line) }}
	// A killed process's pipes close with it, so its last output is not waited for in vain.
	p.cmd.WaitDelay = 5 * time.Second
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", flags.group, err), p.stdin.Close())
	}
	go func() {
		defer close(p.ended)
		p.err = p.cmd.Wait()
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) read(line []byte) {
	var r report
	if err := json.Unmarshal(line, &r); err != nil {
		r = report{Failed: fmt.Sprintf("it wrote %q", line)}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case r.Ready:
		p.ready = true
	case r.Failed != "":
		p.failed = r.Failed
	case r.Redelivered > 0:
		p.redelivered = append(p.redelivered, r)
	}
}

// check says why the child no longer consumes; nil while it does.
func (p *process) check() error {
	p.mu.Lock()
	failed := p.failed
	p.mu.Unlock()
	if failed != "" {
		return fmt.Errorf("%s, pid %d: %s", p.group, p.pid(), failed)
	}
	select {
	case <-p.ended:
		return fmt.Errorf("%s, pid %d, ended: %v", p.group, p.pid(), p.err)
	default:
		return nil
	}
}

func (p *process) isReady() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ready
}

// takenOver returns the messages of ranges that another process had claimed before, from those that began after a moment.
func (p *process) takenOver(after time.Time) (found []report) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.redelivered {
		if r.At.After(after) {
			found = append(found, r)
		}
	}
	return found
}

// kill ends the child as a crash would (SIGKILL, where there are signals): it cannot finish, record or say anything.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill %s, pid %d: %w", p.group, p.pid(), err)
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
		return errors.Join(fmt.Errorf("%s, pid %d, did not stop within %s", p.group, p.pid(), stopTimeout), p.kill())
	}
	if p.err != nil {
		return fmt.Errorf("%s, pid %d: %w", p.group, p.pid(), p.err)
	}
	return nil
}

// lines is a writer that hands on whole lines.
type lines struct {
	each func(line []byte)
	rest []byte
}

func (l *lines) Write(data []byte) (int, error) {
	l.rest = append(l.rest, data...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(data), nil
		}
		if len(line) > 0 {
			l.each(line)
		}
		l.rest = rest
	}
}
