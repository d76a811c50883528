package chaos

import (
	"fmt"
	"io"
	"os/exec"
)

// thawer lets frozen processes go on if the run is killed: a frozen process does not see that its input closes, and would stay for ever.
type thawer struct {
	cmd *exec.Cmd
	in  io.WriteCloser
}

// The input closes when the run ends, however it ends. What is frozen then goes on, sees that the run is gone, and ends.
const thawScript = `
trap '' INT TERM HUP
frozen=
while read -r what pid; do
	rest=
	for p in $frozen; do
		[ "$p" = "$pid" ] || rest="$rest $p"
	done
	frozen=$rest
	[ "$what" = cont ] || frozen="$frozen $pid"
done
for p in $frozen; do kill -CONT "$p"; done`

func startThawer() (*thawer, error) {
	t := &thawer{cmd: exec.Command("sh", "-c", thawScript)}
	var err error
	if t.in, err = t.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := t.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start what thaws processes: %w", err)
	}
	return t, nil
}

// tell says that a process is about to be frozen (stop), or has gone on or ended (cont).
func (t *thawer) tell(what string, pid int) error {
	_, err := fmt.Fprintln(t.in, what, pid)
	return err
}

// close ends it, and lets go on what is frozen still.
func (t *thawer) close() error {
	err := t.in.Close()
	// The script's last kill may find nobody; that is no error.
	_ = t.cmd.Wait()
	return err
}
