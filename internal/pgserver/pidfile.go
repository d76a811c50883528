package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// pidFile is what postmaster.pid says. The zero value: there is none.
type pidFile struct {
	pid int
	// The System V segment, of a few bytes, by which a postmaster finds out
	// whether another still has the data folder. A killed one leaves it behind.
	shmKey int32
	shmID  string // "" when the file does not say
}

func readPIDFile(data string) (pidFile, error) {
	text, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if errors.Is(err, fs.ErrNotExist) {
		return pidFile{}, nil
	}
	if err != nil {
		return pidFile{}, err
	}
	lines := strings.Split(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(lines[0]))
	if err != nil {
		return pidFile{}, fmt.Errorf("postmaster.pid: %w", err)
	}
	f := pidFile{pid: pid}
	// The seventh line holds key and id, the key as the unsigned form of what
	// is an int to the system.
	if len(lines) > 6 {
		if fields := strings.Fields(lines[6]); len(fields) == 2 {
			if key, err := strconv.ParseUint(fields[0], 10, 64); err == nil {
				f.shmKey, f.shmID = int32(key), fields[1] //nolint:gosec // the cut is the point
			}
		}
	}
	return f, nil
}

// removeSegment removes the segment of a postmaster that was killed, where the
// system lists segments: ids are used again, after a reboot from the first, so
// only one that has the key too and that nobody is attached to is removed.
//
// The children of a killed postmaster notice its end by themselves, a moment
// later, so they are given a little time to leave the segment.
func removeSegment(ctx context.Context, f pidFile) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(segmentPatience); ; {
		users, there := segmentUsers(f)
		if !there {
			return
		}
		if users == 0 {
			// When that fails, a few bytes stay until the machine restarts.
			_ = exec.CommandContext(ctx, "ipcrm", "-m", f.shmID).Run()
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if time.Now().After(deadline) {
			return
		}
	}
}

// segmentPatience is how long a killed postmaster's children may take to leave.
const segmentPatience = 2 * time.Second

// unusedSegment says that a postmaster's segment is there and nobody is
// attached to it.
func unusedSegment(f pidFile) bool {
	users, there := segmentUsers(f)
	return there && users == 0
}

// segmentUsers says how many processes are attached to a postmaster's segment.
func segmentUsers(f pidFile) (users int, there bool) {
	if f.shmID == "" {
		return 0, false
	}
	table, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(table)) {
		// key shmid perms size cpid lpid nattch …
		fields := strings.Fields(line)
		if len(fields) < 7 || fields[1] != f.shmID {
			continue
		}
		key, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil || int32(key) != f.shmKey { //nolint:gosec // as above
			return 0, false
		}
		users, err = strconv.Atoi(fields[6])
		return users, err == nil
	}
	return 0, false
}
