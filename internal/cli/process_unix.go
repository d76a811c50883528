//go:build unix

package cli

import (
	"os/exec"
	"syscall"
)

// ownGroup starts a command as the leader of a process group, so that Ctrl-C on the terminal does not reach it, and its end takes with it what it has started.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
