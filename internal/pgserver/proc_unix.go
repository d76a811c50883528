//go:build unix

package pgserver

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

const (
	sigQuit = syscall.SIGQUIT
	sigInt  = syscall.SIGINT
	sigTerm = syscall.SIGTERM
	sigKill = syscall.SIGKILL
	sigStop = syscall.SIGSTOP
	sigCont = syscall.SIGCONT
)

// sysProcAttr starts a process in its own session, so that a Ctrl-C in the
// terminal does not reach it, and as the account.
func sysProcAttr(as *account) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	if as != nil {
		attr.Credential = &syscall.Credential{
			Uid: uint32(as.uid), Gid: uint32(as.gid), //nolint:gosec // ids of the system's own table
		}
	}
	return attr
}

// signal sends a signal to a process. One that is gone is no error.
func signal(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return os.NewSyscallError("kill", err)
	}
	return nil
}

// alive says whether there is such a process, a zombie included.
func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// tryLock takes the lock on an open file, which the kernel gives back when the
// process ends in whatever way. False: somebody else holds it.
func tryLock(f *os.File) (bool, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, os.NewSyscallError("flock", err)
}

// owner returns who owns a file.
func owner(info fs.FileInfo) (uid, gid int, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, 0, false
	}
	return int(st.Uid), int(st.Gid), true
}
