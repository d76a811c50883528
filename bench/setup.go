package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/sqlstreams/sqlstreams/bench/internal/measure"
	"github.com/sqlstreams/sqlstreams/bench/internal/plain"
	"github.com/sqlstreams/sqlstreams/bench/internal/rig"
)

// describeSetup says what was measured on what.
func describeSetup(ctx context.Context, o *options, server *rig.Server) (map[string]any, error) {
	settings, err := server.Shown(ctx)
	if err != nil {
		return nil, err
	}
	setup := map[string]any{
		"started": time.Now().UTC().Truncate(time.Second), "os": runtime.GOOS, "arch": runtime.GOARCH, "cpus": runtime.NumCPU(), "cpu": firstOf("/proc/cpuinfo", "model name"),
		"memory": firstOf("/proc/meminfo", "MemTotal"), "load_before": loadAverage(), "go": runtime.Version(), "postgres": server.Version(), "settings": settings,
		"payload_bytes": o.size, "seconds": o.seconds.Seconds(), "rounds": o.rounds, "ahead": plain.Ahead, "shared_buffers": o.sharedBuffers,
		"connection": "TCP on the same machine, which client and server share",
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == "github.com/jackc/pgx/v5" {
				setup["pgx"] = dep.Version
			}
		}
	}
	if o.profile != "" {
		setup["profiled"] = "client and server were profiled: the figures are lower than without"
	}
	return setup, nil
}

// firstOf returns the value of the first line of a file in /proc that has the name; "" where there is none.
func firstOf(file, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // nothing was written
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// loadAverage says what else the machine did: ratios of alternating runs bear a neighbour, absolute figures do not.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(text))
	return strings.Join(fields[:min(3, len(fields))], " ")
}

// commit returns the commit that is measured, with a plus if the tree was changed since.
func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	name := strings.TrimSpace(string(out))
	if changed, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--untracked-files=no", "..").Output(); err == nil && len(changed) > 0 {
		name += "+"
	}
	return name
}

// describe is the line below the table.
func describe(r *measure.Report) string {
	s := r.Setup
	settings, _ := s["settings"].(map[string]string)
	ended := ""
	if r.Ended != "" {
		ended = "ENDED EARLY (" + r.Ended + "): the rows show what was measured until then. "
	}
	return ended + fmt.Sprintf("%v payload bytes, windows of %v s, medians of %v rounds; %v x %v, load before %v; PostgreSQL %v, %v, fsync %s, synchronous_commit %s, full_page_writes %s, autovacuum %s, shared_buffers %s, max_wal_size %s; commit %s",
		s["payload_bytes"], s["seconds"], s["rounds"], s["cpus"], s["cpu"], s["load_before"], s["postgres"], s["go"], settings["fsync"], settings["synchronous_commit"],
		settings["full_page_writes"], settings["autovacuum"], settings["shared_buffers"], settings["max_wal_size"], r.Commit)
}
