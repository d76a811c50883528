package pgserver

import (
	"fmt"
	"os"
	"os/exec"
)

// watchdogScript reads the postmaster's pid, 0 when it is down, from a pipe,
// again and again. At the end of the pipe, which comes when the program that
// holds the other end ends in whatever way, it stops the postmaster and removes
// the folder. A postmaster stopped by SIGQUIT takes its children along, within
// five seconds even those that do not answer.
//
// The pid is that of a process which the program has not waited for while it
// stood in the pipe, so it cannot be anybody else's.
const watchdogScript = `
pid=0
while read -r next; do pid=$next; done
if [ "$pid" -gt 0 ]; then
	kill -QUIT "$pid"
	kill -CONT "$pid"
	n=0
	while kill -0 "$pid"; do
		n=$((n + 1))
		if [ "$n" -gt 80 ]; then kill -KILL "$pid"; break; fi
		sleep 0.1
	done
fi
rm -rf "$1"
`

// watchdog is the process that outlives this one by a moment.
type watchdog struct {
	cmd  *exec.Cmd
	pipe *os.File
}

// startWatchdog guards the folder.
func startWatchdog(folder string) (*watchdog, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start the watchdog: %w", err)
	}
	cmd := exec.Command("/bin/sh", "-c", watchdogScript, "sh", folder)
	cmd.Stdin = read
	cmd.Dir = "/"
	cmd.SysProcAttr = sysProcAttr(nil)
	err = cmd.Start()
	_ = read.Close() // the shell has its own
	if err != nil {
		_ = write.Close()
		return nil, fmt.Errorf("start the watchdog: %w", err)
	}
	return &watchdog{cmd: cmd, pipe: write}, nil
}

// guard tells which postmaster to stop; 0 for none.
func (w *watchdog) guard(pid int) error {
	if _, err := fmt.Fprintln(w.pipe, pid); err != nil {
		return fmt.Errorf("tell the watchdog: %w", err)
	}
	return nil
}

// close ends the watchdog, which removes the folder if that is still there.
func (w *watchdog) close() error {
	if err := w.pipe.Close(); err != nil {
		return err
	}
	// How it ended does not matter: by now there is nothing to guard.
	_ = w.cmd.Wait()
	return nil
}
