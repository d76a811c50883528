package chaos

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
)

// process is a worker, seen from the run.
type process struct {
	cfg   workerConfig
	slot  int // whose place it took
	cmd   *exec.Cmd
	in    io.WriteCloser
	ready chan struct{} // closed when it may be harmed
	done  chan struct{} // closed when it has ended and been waited for

	stopped bool // by SIGSTOP
	leaving bool
	killed  bool
	status  atomic.Pointer[string]
}

// spawn starts a worker and writes it down.
func (r *run) spawn(cfg workerConfig, slot int) (*process, error) {
	cfg.Dir, cfg.DSN, cfg.Stream = r.books, r.dsn, streamName
	text, err := json.Marshal(&cfg)
	if err != nil {
		return nil, err
	}
	p := &process{cfg: cfg, slot: slot, ready: make(chan struct{}), done: make(chan struct{})}
	p.cmd = exec.Command(r.cfg.Executable)
	p.cmd.Env = append(os.Environ(), workerVariable+"="+string(text))
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(r.logs, cfg.Name+".log"))
	if err != nil {
		return nil, err
	}
	p.cmd.Stderr = log
	err = p.cmd.Start()
	// The child has its own descriptor.
	err = errors.Join(err, log.Close())
	if err != nil {
		return nil, fmt.Errorf("start process %s: %w", cfg.Name, err)
	}
	if err := r.book.Spawned(cfg.Name, p.cmd.Process.Pid); err != nil {
		return nil, errors.Join(err, p.cmd.Process.Kill(), p.cmd.Wait())
	}
	r.wg.Go(func() { r.await(p, out) })
	r.processes = append(r.processes, p)
	return p, nil
}

// await follows a process until it has ended.
func (r *run) await(p *process, out io.Reader) {
	lines := bufio.NewScanner(out)
	told := false
	for lines.Scan() {
		if lines.Text() == readyLine && !told {
			told = true
			close(p.ready)
		}
	}
	// How it ended is in its state, and of interest only to the checker.
	_ = p.cmd.Wait()
	status := p.cmd.ProcessState.String()
	p.status.Store(&status)
	if err := r.book.Exited(p.cfg.Name, p.cmd.Process.Pid, status); err != nil {
		r.fail(err)
	}
	close(p.done)
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// works says whether a process can be chosen to be harmed.
func (p *process) works() bool {
	if p.stopped || p.leaving || p.killed || p.ended() {
		return false
	}
	select {
	case <-p.ready:
		return true
	default:
		return false
	}
}

// leave asks a process to end.
func (p *process) leave() error {
	p.leaving = true
	if _, err := io.WriteString(p.in, stopLine+"\n"); err != nil && !p.ended() {
		return fmt.Errorf("ask process %s to end: %w", p.cfg.Name, err)
	}
	return nil
}
