package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams/bench/internal/measure"
	"github.com/sqlstreams/sqlstreams/bench/internal/worker"
)

// TestMain lets the test binary be what programs start processes of.
func TestMain(m *testing.M) {
	if worker.Main(roles()) {
		return
	}
	os.Exit(m.Run())
}

// brief are options with which each case takes a moment. What it reaches in that time says nothing.
func brief(t *testing.T, mode string) *options {
	t.Helper()
	return &options{mode: mode, seconds: 300 * time.Millisecond, warm: 200 * time.Millisecond, rounds: 1, sharedBuffers: []string{"64MB"}, size: 1000, idleStreams: 3, lockProcesses: []int{1, 2}, lockBatches: []int{1, 64},
		out: filepath.Join(t.TempDir(), "latest.json"), soakPoint: 500 * time.Millisecond, soakPoints: 3, soakAfter: 1}
}

func TestEveryBarIsMeasured(t *testing.T) {
	o := brief(t, "full")
	o.profile = t.TempDir()
	var table bytes.Buffer
	if err := runBars(t.Context(), o, &table, measure.BarOf(io.Discard, false)); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(o.out)
	if err != nil {
		t.Fatal(err)
	}
	var report measure.Report
	if err := json.Unmarshal(text, &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Rows) != len(bars()) {
		t.Errorf("%d rows for %d bars", len(report.Rows), len(bars()))
	}
	for _, row := range report.Rows {
		if strings.HasPrefix(row.ID, "S12") {
			continue // so short pieces of time may see nothing
		}
		if row.Verdict == measure.NotMeasured || row.Measured == 0 && row.Unit == "/s" {
			t.Errorf("%s, %s: %v %s, %s", row.ID, row.Title, row.Measured, row.Unit, row.Verdict)
		}
		if row.Against != nil && row.Limit == 0 {
			t.Errorf("%s, %s: no limit", row.ID, row.Title)
		}
	}
	for _, name := range []string{"commit", "setup", "samples"} {
		if !strings.Contains(string(text), `"`+name+`"`) {
			t.Errorf("the results do not have %s", name)
		}
	}
	for _, name := range []string{"s1.client.pprof", "s1.server.txt"} {
		if info, err := os.Stat(filepath.Join(o.profile, name)); err != nil || info.Size() == 0 {
			t.Errorf("no profile %s: %v", name, err)
		}
	}
	if t.Failed() {
		t.Log(table.String())
	}
}

func TestMicroBenchmarksRun(t *testing.T) {
	o := brief(t, "micro")
	var table bytes.Buffer
	if err := runMicro(t.Context(), o, &table, measure.BarOf(io.Discard, false)); err != nil {
		t.Error(err)
	}
	for _, word := range []string{"append/s", "share through the inbox"} {
		if !strings.Contains(table.String(), word) {
			t.Errorf("no %q in\n%s", word, table.String())
		}
	}
}

func TestTheListNamesEveryCase(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"list"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, b := range bars() {
		if !strings.Contains(out.String(), b.Title) {
			t.Errorf("%s is not listed", b.Title)
		}
	}
}

func TestEveryBarHasItsPrograms(t *testing.T) {
	o := brief(t, "full")
	var names []string
	for _, p := range programs(o, nil) {
		names = append(names, p.name)
	}
	for name := range needed(bars()) {
		if !slices.Contains(names, name) && !strings.HasPrefix(name, "s12") {
			t.Errorf("nothing runs %q", name)
		}
	}
}

func TestBadOptionsAreRefused(t *testing.T) {
	for _, args := range [][]string{
		{}, {"fast"}, {"short", "-rounds", "2"}, {"short", "-seconds", "0"}, {"short", "extra"}, {"full", "-soak", "1"}, {"-only", "S1"}, {"short", "-only", "S99", "-out", filepath.Join(t.TempDir(), "x")},
	} {
		if err := run(t.Context(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("accepted: %v", args)
		}
	}
}
