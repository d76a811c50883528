package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// producing is one run of produce. Batches are sent one after the other, so that their order is that of the input and what is stored is always a beginning of
// it; the next one is read meanwhile.
type producing struct {
	app    *app
	conn   *connection
	stream *sqlstreams.StreamHandle
	name   string
	batch  int
	in     *intake
	what   string // line, payload
	total  int64  // bytes of the input; 0: unknown
	skip   int64

	started    time.Time
	stored     int64 // messages that are surely stored, duplicates among them
	duplicates int64
	waiting    int64 // of those, whose ids are not told: they got them in the inbox
	first      int64
	last       int64
	line       int64 // the last line that is surely stored
}

type producedView struct {
	Stream     string  `json:"stream"`
	Produced   int64   `json:"produced"`   // surely stored by this run, duplicates not counted
	Duplicates int64   `json:"duplicates"` // stored before
	Waiting    int64   `json:"waiting"`    // of those produced, whose ids are not told: they went through the inbox
	FirstID    *int64  `json:"first_id"`
	LastID     *int64  `json:"last_id"`
	Seconds    float64 `json:"seconds"`
	Complete   bool    `json:"complete"`
	NextLine   *int64  `json:"next_line"` // where the input goes on, when it is not complete
}

// lastBatchTimeout bounds the wait for a batch that is on its way when the command is interrupted.
const lastBatchTimeout = 30 * time.Second

func (p *producing) run(ctx context.Context) error {
	p.started = time.Now()
	bar := p.app.newProgress(p.total)
	var err error
	for {
		var batch []record
		if batch, err = p.in.take(ctx, p.batch); len(batch) == 0 {
			break
		}
		if err = p.send(ctx, batch); err != nil {
			break
		}
		bar.draw(p.stored, p.in.progress(), time.Since(p.started))
	}
	bar.clear()
	if p.waiting > 0 {
		p.number(ctx)
	}
	return p.finish(ctx, err)
}

// send stores one batch. A batch that is refused for one of its messages is sent again one by one, which finds the message, and stores what stands before it.
func (p *producing) send(ctx context.Context, batch []record) error {
	if err := p.store(ctx, batch); err == nil || !refusesMessage(err) {
		return err
	}
	for _, r := range batch {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := p.store(ctx, []record{r}); refusesMessage(err) {
			return &lineError{p.what, r.line, err}
		} else if err != nil {
			return err
		}
	}
	return nil
}

func refusesMessage(err error) bool {
	code := diag.CodeOf(err)
	return code == diag.InvalidMessage || code == diag.TooLarge || code == diag.InvalidOption
}

// store sends what must be stored together, and counts it.
func (p *producing) store(ctx context.Context, batch []record) error {
	out := make([]sqlstreams.Outgoing[[]byte], len(batch))
	for i := range batch {
		out[i] = sqlstreams.Outgoing[[]byte]{Payload: &batch[i].payload, Options: batch[i].options}
	}
	// An interrupt does not cut off what is on its way: its outcome would be unknown.
	sending, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastBatchTimeout+p.app.flags.timeout)
	defer cancel()
	produced, err := p.stream.ProduceBatch(sending, out)
	if err != nil {
		return err
	}
	for _, m := range produced {
		p.stored++
		switch {
		case m.Duplicate:
			p.duplicates++
			continue
		case m.ID == 0:
			p.waiting++
			continue
		case p.first == 0 || m.ID < p.first:
			p.first = m.ID
		}
		p.last = max(p.last, m.ID)
	}
	p.line = batch[len(batch)-1].line
	return nil
}

// number gives ids to what waits for them, so that it can be seen though no consumer runs. If that fails, the next producer or consumer does it.
func (p *producing) number(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.app.flags.timeout)
	defer cancel()
	_, _ = p.conn.Stream(p.name).Sequence(ctx)
}

func (p *producing) view(complete bool) producedView {
	v := producedView{Stream: p.name, Produced: p.stored - p.duplicates, Duplicates: p.duplicates, Waiting: p.waiting, Seconds: time.Since(p.started).Seconds(), Complete: complete}
	if p.first > 0 {
		v.FirstID, v.LastID = &p.first, &p.last
	}
	if !complete {
		next := max(p.line, p.skip) + 1
		v.NextLine = &next
	}
	return v
}

func (v producedView) String() string {
	rate := ""
	if v.Seconds >= 0.001 {
		rate = fmt.Sprintf(" (%.0f/s)", float64(v.Produced+v.Duplicates)/v.Seconds)
	}
	text := fmt.Sprintf("produced %s in %.1fs%s, duplicates %d", plural(v.Produced, "message", "messages"), v.Seconds, rate, v.Duplicates)
	if v.FirstID != nil {
		text += fmt.Sprintf(", ids %d..%d", *v.FirstID, *v.LastID)
	}
	if v.FirstID != nil && v.Waiting > 0 {
		text += fmt.Sprintf(", and %d through the inbox", v.Waiting)
	}
	return text
}

// finish tells what was stored, and where to go on if that is not all.
func (p *producing) finish(ctx context.Context, err error) error {
	if err == nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	v := p.view(err == nil)
	if shown := p.app.show(v, func(w io.Writer) error {
		if err != nil && p.stored == 0 {
			return nil
		} else if err != nil {
			w = p.app.env.Stderr
		}
		_, err := fmt.Fprintln(w, v)
		return err
	}); shown != nil && err == nil {
		return shown
	}
	if err == nil {
		return nil
	}
	return p.resume(err, *v.NextLine)
}

func (p *producing) resume(err error, next int64) error {
	f := &failure{err: err}
	stored := plural(p.stored, "message is surely stored", "messages are surely stored")
	if p.stored == 0 {
		stored = "nothing is surely stored"
	}
	if errors.Is(err, context.Canceled) && diag.CodeOf(err) == "" {
		f.err = failf("interrupted: %s, %s %d comes next", stored, p.what, next)
	} else if diag.Unknown(err) {
		f.err = failf("%w; %s, of those from %s %d on some may be", err, stored, p.what, next)
	} else {
		f.err = failf("%w; %s, nothing from %s %d on", err, stored, p.what, next)
	}
	if p.what == "line" {
		f.hint = fmt.Sprintf("go on with --skip %d", next-1)
		if diag.Unknown(err) {
			f.hint = fmt.Sprintf("look at the end of the stream, where lines from %d on may stand already, before going on with --skip %d", next, next-1)
		}
	}
	return f
}
