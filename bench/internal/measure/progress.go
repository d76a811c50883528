package measure

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// BarOf returns a progress bar that writes to w: one line that is overwritten on a terminal, a line a step elsewhere.
func BarOf(w io.Writer, terminal bool) Progress { return &progressBar{w: w, terminal: terminal} }

type progressBar struct {
	w        io.Writer
	terminal bool
	steps    int
	began    time.Time
}

func (p *progressBar) Begin(steps int) {
	p.steps, p.began = steps, time.Now()
}

func (p *progressBar) Step(done int, title string) {
	const width = 30
	filled := width
	if p.steps > 0 {
		filled = width * done / p.steps
	}
	line := fmt.Sprintf("[%s%s] %*d/%d  %s  %s", strings.Repeat("#", filled), strings.Repeat(".", width-filled), len(fmt.Sprint(p.steps)), done, p.steps,
		time.Since(p.began).Truncate(time.Second), title)
	// Nothing depends on what becomes of a progress bar.
	if p.terminal {
		_, _ = fmt.Fprintf(p.w, "\r\x1b[K%s", line)
	} else {
		_, _ = fmt.Fprintln(p.w, line)
	}
}

func (p *progressBar) End() {
	if p.terminal {
		_, _ = fmt.Fprintln(p.w)
	}
}
