//go:build !unix

package chaos

import (
	"errors"
	"syscall"
)

// Elsewhere the package builds, and says when it is used that it cannot: a process cannot be frozen.
const (
	sigKill = syscall.SIGKILL
	sigStop = syscall.Signal(0)
	sigCont = syscall.Signal(0)
	sigQuit = syscall.SIGQUIT
)

func signal(*process, syscall.Signal) error { return errors.ErrUnsupported }
