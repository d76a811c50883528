//go:build !unix

package pgserver

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// Elsewhere the package builds, so that programs that name it do, and says
// when it is used that it cannot.
const (
	sigQuit = syscall.SIGQUIT
	sigInt  = syscall.SIGINT
	sigTerm = syscall.SIGTERM
	sigKill = syscall.SIGKILL
	sigStop = syscall.Signal(0)
	sigCont = syscall.Signal(0)
)

func sysProcAttr(*account) *syscall.SysProcAttr { return nil }

func signal(int, syscall.Signal) error { return errors.ErrUnsupported }

func alive(int) bool { return false }

func tryLock(*os.File) (bool, error) { return false, errors.ErrUnsupported }

func owner(fs.FileInfo) (uid, gid int, ok bool) { return 0, 0, false }
