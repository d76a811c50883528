package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// story writes what happens, as it happens: lines that read the same in a terminal and in a pipe, and on a terminal also colours and a last line
// that shows the progress and is written over. Its methods may be called from several goroutines.
type story struct {
	mu       sync.Mutex
	out      io.Writer
	began    time.Time
	terminal bool
	colours  bool
	drawn    bool // the progress line stands there
}

func newStory(out *os.File) *story {
	info, err := out.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	return &story{out: out, began: time.Now(), terminal: terminal, colours: terminal && os.Getenv("NO_COLOR") == ""}
}

const (
	plain  = ""
	bold   = "\x1b[1m"
	dim    = "\x1b[2m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	reset  = "\x1b[0m"
	erase  = "\r\x1b[K"
)

func (s *story) paint(colour, text string) string {
	if !s.colours || colour == plain || text == "" {
		return text
	}
	return colour + text + reset
}

func (s *story) write(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wipe()
	// Nobody is left to be told that the output is gone.
	_, _ = fmt.Fprintln(s.out, line)
}

func (s *story) wipe() {
	if s.drawn {
		_, _ = io.WriteString(s.out, erase)
		s.drawn = false
	}
}

func (s *story) event(colour, label, text string) {
	since := fmt.Sprintf("%5.1f s", time.Since(s.began).Seconds())
	s.write(s.paint(dim, since) + "  " + s.paint(colour, fmt.Sprintf("%-11s", label)) + text)
}

func (s *story) title(text string) { s.write(s.paint(bold, text)) }

// say tells one thing that happened.
func (s *story) say(label, format string, args ...any) {
	s.event(bold, label, fmt.Sprintf(format, args...))
}

// alarm is say for what is bad.
func (s *story) alarm(label, format string, args ...any) {
	s.event(red, label, fmt.Sprintf(format, args...))
}

// note is say for what deserves a look.
func (s *story) note(label, format string, args ...any) {
	s.event(yellow, label, fmt.Sprintf(format, args...))
}

// more goes on with what was said.
func (s *story) more(format string, args ...any) {
	s.write(strings.Repeat(" ", 20) + fmt.Sprintf(format, args...))
}

// result is a line of the end.
func (s *story) result(good bool, format string, args ...any) {
	colour := green
	if !good {
		colour = red
	}
	s.write(s.paint(colour, fmt.Sprintf(format, args...)))
}

// progress replaces the progress line; in a pipe it writes nothing.
func (s *story) progress(format string, args ...any) {
	if !s.terminal {
		return
	}
	text := fmt.Sprintf("%5.1f s  ", time.Since(s.began).Seconds()) + fmt.Sprintf(format, args...)
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = io.WriteString(s.out, erase+s.paint(dim, text))
	s.drawn = true
}

// clear removes the progress line.
func (s *story) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wipe()
}

// bar draws how much of something is done.
func bar(done, all int) string {
	const width = 14
	n := min(width*done/max(all, 1), width)
	return strings.Repeat("█", n) + strings.Repeat("░", width-n)
}

// count writes a number with its thousands apart.
func count[N int | int64](n N) string {
	digits := strconv.FormatInt(int64(n), 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// quietLogger passes on what the library warns of; what it does as a matter of course would drown the story.
func quietLogger(out io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey && a.Value.Any() == slog.LevelWarn) {
			return slog.Attr{}
		}
		return a
	}}))
}
