package cli

import (
	"fmt"
	"strings"
	"time"
)

// progress is one line on a terminal's standard error that is written over; elsewhere it writes nothing.
type progress struct {
	app   *app
	on    bool
	total int64 // bytes of the input; 0: unknown
	drawn time.Duration
	width int
}

// progressEvery is how often the line is written.
const progressEvery = 200 * time.Millisecond

func (a *app) newProgress(total int64) *progress {
	return &progress{app: a, on: a.errTerminal && a.env.Getenv("TERM") != "dumb", total: total}
}

// draw is called as often as one likes.
func (p *progress) draw(messages, bytes int64, elapsed time.Duration) {
	if !p.on || elapsed-p.drawn < progressEvery {
		return
	}
	p.drawn = elapsed
	line := progressLine(messages, bytes, p.total, elapsed)
	pad := strings.Repeat(" ", max(p.width-len(line), 0))
	p.width = len(line)
	_, _ = fmt.Fprintf(p.app.env.Stderr, "\r%s%s", line, pad) // a bar that cannot be drawn is no reason to stop
}

func (p *progress) clear() {
	if p.on && p.width > 0 {
		_, _ = fmt.Fprintf(p.app.env.Stderr, "\r%s\r", strings.Repeat(" ", p.width)) // as above
	}
}

const barWidth = 20

// progressLine fits into 80 columns. Without a total there is neither a bar nor an end to foretell.
func progressLine(messages, bytes, total int64, elapsed time.Duration) string {
	rate := float64(messages) / max(elapsed.Seconds(), 0.001)
	if total <= 0 {
		return fmt.Sprintf("%d messages, %s, %.0f/s", messages, size(bytes), rate)
	}
	part := min(float64(bytes)/float64(total), 1)
	full := int(part * barWidth)
	eta := "-"
	if part > 0 {
		eta = time.Duration(float64(elapsed) * (1 - part) / part).Round(time.Second).String()
	}
	return fmt.Sprintf("[%s%s] %3.0f%%  %d messages, %.0f/s, %s left", strings.Repeat("=", full), strings.Repeat(" ", barWidth-full), part*100, messages, rate, eta)
}
