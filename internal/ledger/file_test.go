package ledger

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// childDir names, in a child of this test binary, the folder that it is to write to until it is killed.
const childDir = "LEDGER_TEST_CHILD_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		writeUntilKilled(dir)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func readOne(t *testing.T, dir, name string) *Ledger {
	t.Helper()
	book, err := ReadDir(dir)
	must(t, err)
	for _, l := range book.Ledgers {
		if l.Process.Name == name {
			return l
		}
	}
	t.Fatalf("no ledger of %s", name)
	return nil
}

// writeAll writes one record of each kind.
func writeAll(t *testing.T, dir string) {
	t.Helper()
	w, err := Create(dir, Process{Name: "all", Role: "test", PID: 7})
	must(t, err)
	call, err := w.Call("orders", "batch", []Message{{Business: "m1", Key: "k1"}, {Business: "m2", Key: "a \"key\"\twith\u2028everything\x1e", Order: Ordered}})
	must(t, err)
	run, err := w.Start(&Run{Stream: "orders", Group: "a", ID: 3, Message: Message{Business: "m1", Key: "k1"}, Attempt: 2, Redelivered: true, Lease: at(5)})
	must(t, err)
	must(t, w.Outcome(call, Confirmed, []int64{3, 4}, ""))
	must(t, w.End(run, Failed))
	_, err = w.Start(&Run{Stream: "orders", Group: "a", ID: 4, Message: Message{Business: "m2"}, Attempt: 1})
	must(t, err)
	_, err = w.Call("orders", "tx", []Message{{Business: "m3"}})
	must(t, err)
	must(t, w.Event(&Event{Kind: ToldStale, Stream: "orders", Group: "a", Low: 2, High: 9, Detail: "x"}))
	must(t, w.Spawned("p1", 12))
	must(t, w.Exited("p1", 12, "signal: killed"))
	must(t, w.Fault(&Fault{Kind: Kill, Target: "p1", PID: 12, Detail: "y"}))
	must(t, w.Leaving())
	must(t, w.Close())
}

func TestWhatWasWrittenIsRead(t *testing.T) {
	dir := t.TempDir()
	began := time.Now().Round(0)
	writeAll(t, dir)
	l := readOne(t, dir, "all")
	if l.Damage != "" || l.Torn != 0 || !l.Closed || l.Process != (Process{"all", "test", 7}) || l.Opened.Before(began) || l.Leaving.Before(l.Opened) {
		t.Fatalf("%+v", l)
	}
	c := l.Calls[0]
	if c.Stream != "orders" || c.Way != "batch" || len(c.Messages) != 2 || c.Messages[1].Key != "a \"key\"\twith\u2028everything\x1e" || c.Outcome != Confirmed ||
		c.IDs[1] != 4 || c.BeganAt != 1 || c.EndedAt != 3 || c.Ended.Before(c.Began) || c.Began.Before(began) {
		t.Errorf("%+v", c)
	}
	if c := l.Calls[1]; c.Outcome != Unknown || !c.Ended.IsZero() {
		t.Errorf("a call without an outcome: %+v", c)
	}
	r := l.Runs[0]
	if r.Stream != "orders" || r.Group != "a" || r.ID != 3 || r.Message != (Message{Business: "m1", Key: "k1"}) || r.Attempt != 2 || !r.Redelivered || !r.Lease.Equal(at(5)) ||
		r.Result != Failed || r.Ended.Before(r.Began) {
		t.Errorf("%+v", r)
	}
	if r := l.Runs[1]; !r.Ended.IsZero() || !r.Lease.IsZero() || r.Redelivered {
		t.Errorf("a run without an end: %+v", r)
	}
	if e := l.Events[0]; e.Kind != ToldStale || e.Low != 2 || e.High != 9 || e.Detail != "x" {
		t.Errorf("%+v", e)
	}
	if p := l.Spawned[0]; p.Name != "p1" || p.PID != 12 || !p.Exited || p.Status != "signal: killed" {
		t.Errorf("%+v", p)
	}
	if f := l.Faults[0]; f.Kind != Kill || f.Target != "p1" || f.PID != 12 || f.Detail != "y" {
		t.Errorf("%+v", f)
	}
}

func TestAFileCutAnywhereLosesAtMostItsLastRecord(t *testing.T) {
	dir := t.TempDir()
	writeAll(t, dir)
	text, err := os.ReadFile(filepath.Join(dir, "all"+extension))
	must(t, err)
	for cut := range len(text) {
		l := parse(text[:cut])
		whole := bytes.Count(text[:cut], []byte("\n"))
		torn := 0
		if cut > 0 && text[cut-1] != '\n' {
			torn = 1
		}
		if l.Torn != torn || whole > 0 && l.Damage != "" || whole == 0 && l.Damage == "" || l.Closed {
			t.Fatalf("cut at %d of %d: torn %d, damage %q", cut, len(text), l.Torn, l.Damage)
		}
	}
}

func TestDamageIsNoticed(t *testing.T) {
	const open = `{"k":"open","t":1,"process":{"name":"x","role":"r","pid":1}}` + "\n"
	for _, c := range []struct{ text, want string }{
		{"", "no first record"},
		{`{"k":"close","t":1}` + "\n", "line 1"},
		{`{"k":"open","t":1}` + "\n", "names no process"},
		{open + open, "line 2"},
		{open + "garbage\n", "line 2"},
		{open + `{"k":"what","t":1}` + "\n", "not known"},
		{open + `{"k":"outcome","t":1,"of":1}` + "\n", "a call that is not open"},
		{open + `{"k":"end","t":1,"of":1}` + "\n", "a run that is not open"},
		{open + `{"k":"start","t":1}` + "\n", "names no message"},
		{open + `{"k":"exit","t":1,"name":"p"}` + "\n", "never began"},
		{open + `{"k":"close","t":1}` + "\n" + `{"k":"leaving","t":1}` + "\n", "behind the last record"},
		{open + `{"k":"call","t":1,"m":[{"b":"m"}]}` + "\n" + strings.Repeat(`{"k":"outcome","t":1,"of":1}`+"\n", 2), "line 4"},
	} {
		if l := parse([]byte(c.text)); !strings.Contains(l.Damage, c.want) {
			t.Errorf("damage %q, want %q, in:\n%s", l.Damage, c.want, c.text)
		}
	}
	dir := t.TempDir()
	writeAll(t, dir)
	must(t, os.Rename(filepath.Join(dir, "all"+extension), filepath.Join(dir, "other"+extension)))
	if l := readOne(t, dir, "all"); !strings.Contains(l.Damage, `the file of "other"`) {
		t.Errorf("damage %q", l.Damage)
	}
}

func TestALedgerIsBegunOnceAndEndsWithItsFirstError(t *testing.T) {
	dir := t.TempDir()
	w, err := Create(dir, Process{Name: "p"})
	must(t, err)
	if _, err := Create(dir, Process{Name: "p"}); err == nil {
		t.Error("begun twice")
	}
	for _, name := range []string{"", "a/b"} {
		if _, err := Create(dir, Process{Name: name}); err == nil {
			t.Errorf("%q is a name", name)
		}
	}
	must(t, w.file.Close())
	if _, err := w.Call("s", "single", nil); err == nil {
		t.Error("written to a closed file")
	}
	if err := w.Leaving(); err == nil {
		t.Error("written behind a failed write")
	}
	if _, err := ReadDir(filepath.Join(dir, "none")); err == nil {
		t.Error("read a folder that is not there")
	}
}

func TestManyWritersOfOneLedgerDoNotMixTheirRecords(t *testing.T) {
	dir := t.TempDir()
	w, err := Create(dir, Process{Name: "p"})
	must(t, err)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				run, err := w.Start(&Run{Stream: "s", Group: fmt.Sprint(g), ID: int64(i + 1), Message: Message{Business: strings.Repeat("x", i)}})
				if err == nil {
					err = w.End(run, OK)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	must(t, w.Close())
	l := readOne(t, dir, "p")
	if l.Damage != "" || len(l.Runs) != 1600 || !l.Closed {
		t.Errorf("%d runs, damage %q", len(l.Runs), l.Damage)
	}
	for i, r := range l.Runs {
		if r.Ended.Before(r.Began) || i > 0 && r.Began.Before(l.Runs[i-1].Began) {
			t.Fatalf("run %d is out of time", i)
		}
	}
}

// writeUntilKilled is the child of the test below.
func writeUntilKilled(dir string) {
	w, err := Create(dir, Process{Name: "child", PID: os.Getpid()})
	for i := 1; err == nil; i++ {
		if _, err = w.Call("s", "single", []Message{{Business: fmt.Sprint(i)}}); err == nil {
			_, err = fmt.Println(i)
		}
	}
	fmt.Fprintln(os.Stderr, err)
}

func TestWhatAProcessHasWrittenOutlivesItsSIGKILL(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewScanner(out)
	acknowledged := 0
	for acknowledged < 5000 && lines.Scan() {
		acknowledged++
	}
	must(t, cmd.Process.Kill())
	for lines.Scan() {
		acknowledged++
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the child ended by itself")
	}
	l := readOne(t, dir, "child")
	// The line that tells of the last record may have come through in part, the record may have been written and not told.
	if n := len(l.Calls); n < acknowledged-1 || n > acknowledged+1 || l.Damage != "" || l.Torn > 1 || l.Closed {
		t.Errorf("%d records, %d told; damage %q, torn %d", n, acknowledged, l.Damage, l.Torn)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"k":"open","t":1,"process":{"name":"x","role":"r","pid":1}}` + "\n" + `{"k":"call","t":1,"m":[{"b":"m"}]}` + "\n" + `{"k":"outcome","t":1,"of":1}` + "\n"))
	f.Add([]byte("\n\n{}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		l := parse(text)
		if l.Damage == "" && l.Opened.IsZero() {
			t.Error("sound, without a first record")
		}
		// Whatever was read can be judged.
		Check(&Book{Ledgers: []*Ledger{l}}, &Snapshot{}, Settings{Chaos: true})
	})
}
