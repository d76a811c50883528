package demo

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// tone is how a line looks on a terminal.
type tone string

const (
	plain tone = "\x1b[1m"  // of the label alone
	good  tone = "\x1b[32m" // something was mended
	note  tone = "\x1b[33m" // deserves a look
	alarm tone = "\x1b[31m" // something went wrong, on purpose or not

	dim   = "\x1b[2m"
	reset = "\x1b[0m"
)

// line is one line of the story. A label begins something new; without one a line goes on with what was said.
type line struct {
	tone  tone
	label string
	text  string
}

func say(t tone, label, format string, args ...any) line {
	return line{t, label, fmt.Sprintf(format, args...)}
}

func more(format string, args ...any) line { return line{text: fmt.Sprintf(format, args...)} }

// labelWidth is the width of the column of labels.
const labelWidth = 11

// render writes one line, stamped with the time since the start.
func (l line) render(since time.Duration, colour bool) string {
	stamp, label := fmt.Sprintf("%5.1f s", since.Seconds()), fmt.Sprintf("%-*s", labelWidth, l.label)
	if colour {
		stamp = dim + stamp + reset
		if l.label != "" {
			label = string(l.tone) + label + reset
		}
	}
	return stamp + "  " + label + l.text
}

// story writes lines as things happen. Its methods may be called from several goroutines.
type story struct {
	colour bool
	began  time.Time

	mu  sync.Mutex
	out io.Writer
}

func newStory(out io.Writer, colour bool) *story {
	return &story{out: out, colour: colour, began: time.Now()}
}

// tell writes lines that belong together.
func (s *story) tell(lines ...line) {
	since := time.Since(s.began)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range lines {
		// Nobody is left to be told that the output is gone.
		_, _ = fmt.Fprintln(s.out, l.render(since, s.colour))
	}
}

// end writes a line of the end, which carries no time: programs read those.
func (s *story) end(t tone, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.colour {
		text = string(t) + text + reset
	}
	_, _ = fmt.Fprintln(s.out, text)
}

// seconds writes a duration as people read it.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// number writes how many there are of something.
func number[N int | int64](n N, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
