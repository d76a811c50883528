package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/sqlstreams/sqlstreams/bench/internal/measure"
)

// Meter measures a window of a program that is running: how far counters move, and what client and server spend on it.
type Meter struct {
	Server *Server
	// ProfileDir gets profiles of client and server for each run; "": none are made.
	ProfileDir string
	// Clients are further processes of the client.
	Clients func() []int
	// Detail keeps what does not fit into single values; nil: it is dropped.
	Detail func(name string, what any)
}

// Counter reads how far something has come.
type Counter func() (float64, error)

// Window lets the program run for the warm-up and then measures. For each counter there is a rate of its name; the first one is what the costs are divided by:
// client_us and server_us are microseconds of processor time for one of it.
func (m *Meter) Window(ctx context.Context, name string, w measure.Window, names []string, counters ...Counter) (values measure.Values, err error) {
	if err := pause(ctx, w.Warm); err != nil {
		return nil, err
	}
	stopProfile, err := m.profile(ctx, name)
	if err != nil {
		return nil, err
	}
	profiled := false
	defer func() {
		if !profiled {
			err = errors.Join(err, stopProfile(0))
		}
	}()
	read := func() ([]float64, error) {
		all := make([]float64, len(counters))
		for i, c := range counters {
			v, err := c()
			if err != nil {
				return nil, err
			}
			all[i] = v
		}
		return all, nil
	}
	client, server := m.client(), m.Server.CPU()
	began := time.Now()
	from, err := read()
	if err != nil {
		return nil, err
	}
	if err := pause(ctx, w.Length); err != nil {
		return nil, err
	}
	to, err := read()
	// Where nothing was done the window goes on until something is, and the rate says how slow that was.
	for err == nil && to[0] == from[0] {
		if err = pause(ctx, w.Length/10); err == nil {
			to, err = read()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	seconds := time.Since(began).Seconds()
	client, server = m.client()-client, m.Server.CPU()-server
	values = measure.Values{}
	for i, n := range names {
		values[n] = (to[i] - from[i]) / seconds
	}
	count := to[0] - from[0]
	if server > 0 {
		values["client_us"] = float64(client.Microseconds()) / count
		values["server_us"] = float64(server.Microseconds()) / count
	}
	profiled = true
	return values, stopProfile(count)
}

func (m *Meter) client() time.Duration {
	total := Used(os.Getpid())
	if m.Clients != nil {
		for _, pid := range m.Clients() {
			total += Used(pid)
		}
	}
	return total
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// profile begins to profile client and server, if that is wanted.
func (m *Meter) profile(ctx context.Context, name string) (func(count float64) error, error) {
	if m.ProfileDir == "" {
		return func(float64) error { return nil }, nil
	}
	if err := os.MkdirAll(m.ProfileDir, 0o755); err != nil {
		return nil, err
	}
	if m.Server.Counts {
		if err := m.Server.Track(ctx, TrackAll); err != nil {
			return nil, err
		}
	}
	f, err := os.Create(filepath.Join(m.ProfileDir, name+".client.pprof"))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, err
	}
	return func(count float64) error {
		pprof.StopCPUProfile()
		if err := f.Close(); err != nil {
			return err
		}
		if !m.Server.Counts {
			return nil
		}
		all, err := m.Server.Statements(ctx, 60)
		if err != nil {
			return err
		}
		if err := m.Server.Track(ctx, TrackNone); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(m.ProfileDir, name+".server.txt"), []byte(statementTable(all, count)), 0o644)
	}, nil
}

// statementTable lists statements with their share of one message. Statements inside procedures are in the time of the CALL above them too.
func statementTable(all []Statement, count float64) string {
	var lines [][]string
	for _, st := range all {
		level := "inner"
		if st.Top {
			level = "sent"
		}
		lines = append(lines, []string{level, measure.Number(float64(st.Calls)), measure.Number(st.TotalMS), measure.Number(st.MeanMS),
			measure.Number(st.TotalMS * 1000 / max(count, 1)), measure.Number(float64(st.Rows)), measure.Number(float64(st.WALBytes) / max(count, 1)), " " + Short(st.Text, 140)})
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s messages in the window\n", measure.Number(count))
	// A strings.Builder takes everything.
	_ = measure.Lines(&b, []string{"level", "calls", "total ms", "mean ms", "µs/message", "rows", "wal/message", " statement"}, lines)
	return b.String()
}
