//go:build unix

package chaos

import (
	"errors"
	"os"
	"syscall"
)

const (
	sigKill = syscall.SIGKILL
	sigStop = syscall.SIGSTOP
	sigCont = syscall.SIGCONT
	// sigQuit makes a Go program write down what its goroutines do, and end.
	sigQuit = syscall.SIGQUIT
)

// signal sends a signal to a process that has not been waited for. One that has ended is no error.
func signal(p *process, sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}
