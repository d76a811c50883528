package pgserver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// process is one line of the system's process table.
type process struct {
	pid, parent int
	state       byte   // 'T' stopped, 'Z' zombie, and others
	started     string // tells a process from a later one with the same pid; may be empty
}

// processes reads the process table: /proc where there is one, else ps.
func processes(ctx context.Context) (map[int]process, error) {
	names, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return processesByPS(ctx)
	}
	table := make(map[int]process, len(names))
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it ended since
		}
		if p, ok := parseStat(string(text)); ok {
			table[p.pid] = p
		}
	}
	return table, nil
}

// parseStat reads a line of /proc/<pid>/stat: pid (name) state parent …, the
// 22nd field being when it started. The name may hold spaces and parentheses.
func parseStat(line string) (process, bool) {
	open, end := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if open < 1 || end < open {
		return process{}, false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line[:open]))
	if err != nil {
		return process{}, false
	}
	fields := strings.Fields(line[end+1:])
	if len(fields) < 20 {
		return process{}, false
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return process{}, false
	}
	return process{pid: pid, parent: parent, state: fields[0][0], started: fields[19]}, true
}

func processesByPS(ctx context.Context) (map[int]process, error) {
	out, err := exec.CommandContext(ctx, "ps", "-A", "-o", "pid=,ppid=,stat=").Output()
	if err != nil {
		return nil, fmt.Errorf("read the process table: %w", err)
	}
	return parsePS(string(out)), nil
}

func parsePS(out string) map[int]process {
	table := make(map[int]process)
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		pid, errPID := strconv.Atoi(fields[0])
		parent, errParent := strconv.Atoi(fields[1])
		if errPID != nil || errParent != nil {
			continue
		}
		table[pid] = process{pid: pid, parent: parent, state: fields[2][0]}
	}
	return table
}

// children lists the processes of one parent that have not ended.
func children(ctx context.Context, parent int) ([]process, error) {
	table, err := processes(ctx)
	if err != nil {
		return nil, err
	}
	var list []process
	for _, p := range table {
		if p.parent == parent && p.state != 'Z' {
			list = append(list, p)
		}
	}
	return list, nil
}

// waitGone waits until none of the processes is left. A zombie counts as gone:
// whoever should collect it is not ours to wait for.
func waitGone(ctx context.Context, list []process) error {
	return poll(ctx, func() (bool, error) {
		table, err := processes(ctx)
		if err != nil {
			return false, err
		}
		for _, p := range list {
			if now, ok := table[p.pid]; ok && now.started == p.started && now.state != 'Z' {
				return false, nil
			}
		}
		return true, nil
	})
}

// waitStopped waits until the processes have taken note of a SIGSTOP, or ended.
func waitStopped(ctx context.Context, pids ...int) error {
	return poll(ctx, func() (bool, error) {
		table, err := processes(ctx)
		if err != nil {
			return false, err
		}
		for _, pid := range pids {
			if p, ok := table[pid]; ok && p.state != 'T' && p.state != 't' && p.state != 'Z' {
				return false, nil
			}
		}
		return true, nil
	})
}

// poll calls done every few milliseconds until it says true or fails, or ctx ends.
func poll(ctx context.Context, done func() (bool, error)) error {
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// commandLine returns how a process was started, "" when that cannot be told.
func commandLine(ctx context.Context, pid int) string {
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil {
		return strings.ReplaceAll(string(text), "\x00", " ")
	}
	out, err := exec.CommandContext(ctx, "ps", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return ""
	}
	return string(out)
}
