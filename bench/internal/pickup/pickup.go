// Package pickup measures the time from commit to pick-up between two processes of one machine, which share its clock.
package pickup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/sqlstreams/sqlstreams/bench/internal/measure"
	"github.com/sqlstreams/sqlstreams/bench/internal/worker"
)

// Times is when messages were committed, or picked up, by their numbers.
type Times struct {
	mu  sync.Mutex
	all map[int64]int64
}

// Note notes a message now. What is noted once stays.
func (t *Times) Note(seq int64) { t.NoteAt(seq, time.Now()) }

// NoteAt notes a message. What is noted once stays.
func (t *Times) NoteAt(seq int64, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = map[int64]int64{}
	}
	if _, noted := t.all[seq]; !noted {
		t.all[seq] = at.UnixNano()
	}
}

// All returns nanoseconds since 1970 by number.
func (t *Times) All() map[int64]int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all
}

// Steadily calls send so many times a second until ctx ends, with numbers from 1 on. The moments are moved about at random by up to half an interval, lest they fall into step with
// whatever else has a rhythm. An error after the end is none.
func Steadily(ctx context.Context, rate int, send func(seq int64) error) error {
	interval := time.Second / time.Duration(rate)
	began := time.Now()
	for seq := int64(1); ; seq++ {
		at := began.Add(time.Duration(seq)*interval + rand.N(interval/2))
		timer := time.NewTimer(time.Until(at))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		if err := send(seq); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

// Measure runs a receiving and a sending process for the window. Of what was sent after the warm-up it returns p50, p99 and max in milliseconds, counted from the moment at which
// the sender knew of its commit, and lost: what never arrived.
func Measure(ctx context.Context, w measure.Window, receive string, receiveConfig any, send string, sendConfig any) (measure.Values, error) {
	receiver, err := worker.Start(ctx, receive, receiveConfig)
	if err != nil {
		return nil, err
	}
	sender, err := worker.Start(ctx, send, sendConfig)
	if err != nil {
		_, stopErr := receiver.Stop()
		return nil, errors.Join(err, stopErr)
	}
	began := time.Now()
	waitErr := wait(ctx, w.Warm+w.Length)
	sentText, sendErr := sender.Stop()
	// What was sent last has time to arrive.
	waitErr = errors.Join(waitErr, wait(ctx, time.Second))
	seenText, seeErr := receiver.Stop()
	if err := errors.Join(waitErr, sendErr, seeErr); err != nil {
		return nil, err
	}
	var sent, seen map[int64]int64
	if err := errors.Join(json.Unmarshal(sentText, &sent), json.Unmarshal(seenText, &seen)); err != nil {
		return nil, err
	}
	return compare(sent, seen, began.Add(w.Warm).UnixNano())
}

func compare(sent, seen map[int64]int64, from int64) (measure.Values, error) {
	var ms []float64
	lost := 0
	for seq, at := range sent {
		if at < from {
			continue
		}
		picked, ok := seen[seq]
		if !ok {
			lost++
			continue
		}
		ms = append(ms, float64(picked-at)/1e6)
	}
	slices.Sort(ms)
	if len(ms) == 0 {
		return nil, errors.New("nothing was picked up")
	}
	values := measure.Values{"p50": measure.Quantile(ms, 0.5), "p90": measure.Quantile(ms, 0.9), "p99": measure.Quantile(ms, 0.99), "max": ms[len(ms)-1], "messages": float64(len(ms)), "lost": float64(lost)}
	if lost > 0 {
		return values, fmt.Errorf("%d of %d messages were not picked up", lost, lost+len(ms))
	}
	return values, nil
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
