package rig

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// tick is the unit of /proc/*/stat on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// stat is what /proc says of a process.
type stat struct {
	parent    int
	own, kids time.Duration // kids: of children that ended
}

func readStat(pid int) (stat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	// The name stands in parentheses and may hold anything.
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < 15 {
		return stat{}, fmt.Errorf("process %d: too few fields", pid)
	}
	n := func(i int) int64 {
		v, _ := strconv.ParseInt(string(fields[i]), 10, 64) // the kernel writes numbers
		return v
	}
	return stat{parent: int(n(1)), own: time.Duration(n(11)+n(12)) * tick, kids: time.Duration(n(13)+n(14)) * tick}, nil
}

// CPU returns what the server has used of the processors since it started: the postmaster, its children, and those that ended.
func (s *Server) CPU() time.Duration {
	postmaster := s.pg.PID()
	self, err := readStat(postmaster)
	if err != nil {
		return 0
	}
	total := self.own + self.kids
	paths, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0
	}
	for _, path := range paths {
		pid, err := strconv.Atoi(filepath.Base(path))
		if err != nil {
			continue
		}
		if st, err := readStat(pid); err == nil && st.parent == postmaster {
			total += st.own
		}
	}
	return total
}

// Used returns what a process, without its children, has used of the processors; 0 if it has ended.
func Used(pid int) time.Duration {
	st, err := readStat(pid)
	if err != nil {
		return 0
	}
	return st.own
}
