// Package manager runs upkeep: a fixed, small set of duties, each leased in the database, each serving all streams in one bounded pass.
//
// A duty is leased for 30 s, renewed at half time, freed on a clean stop. Who holds it is decided by the database; a holder that is frozen past
// its lease may run a pass beside its successor, so every pass is repeatable and safe beside another of its kind. Nothing that producers or consumers promise depends on
// upkeep having run.
package manager

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/store"
)

const (
	lease = 30 * time.Second
	// takeTimeout bounds the question who has a duty, and with it what a stop waits for.
	takeTimeout = 5 * time.Second
	// Passes are bounded; what is left waits for the next.
	batch = 5000
	// A part of the inbox that has grown so far makes room for another; a retired one is emptied when no young snapshot can miss what was moved out of it.
	partBytes = 8 << 20
	partAge   = time.Minute
)

// Store is what the duties need. internal/store implements it.
type Store interface {
	TakeDuty(ctx context.Context, name string, holder uuid.UUID, lease time.Duration) (bool, error)
	FreeDuties(ctx context.Context, names []string, holder uuid.UUID) error
	StreamsShortOfLeaves(ctx context.Context, after int) ([]int, error)
	MakeLeaves(ctx context.Context, stream int) error
	StreamsWithInbox(ctx context.Context) ([]int, error)
	Drain(ctx context.Context, stream, limit int) (store.DrainReply, error)
	OrphanInbox(ctx context.Context, stream int) error
	RotateInbox(ctx context.Context, size int64) (string, error)
	InboxParts(ctx context.Context) ([]int, error)
	EmptyInboxPart(ctx context.Context, part int, age time.Duration) (string, error)
	StreamsDeleting(ctx context.Context) ([]int, error)
	DropStream(ctx context.Context, stream int, actor string) error
	Trim(ctx context.Context, what string, limit int) (int, error)
	GroupsWaiting(ctx context.Context) ([]store.WaitingGroup, error)
	WakeWaiting(ctx context.Context, group, limit int, from *int64) (next *int64, woken int, err error)
	KeyIndexGaps(ctx context.Context, stream int) ([]store.KeyIndexGap, error)
	BuildKeyIndex(ctx context.Context, gap store.KeyIndexGap) error
	StreamsCompacted(ctx context.Context, after int) ([]int, error)
	Compact(ctx context.Context, stream, limit int) (store.CompactReply, error)
}

// Duty is one kind of upkeep: RunOnce does one bounded pass over all streams.
type Duty struct {
	Name    string
	Every   time.Duration
	RunOnce func(ctx context.Context, s Store) error
	// Longest bounds a pass. Default half the lease; a longer one renews the lease while it runs, and ends when it is lost.
	Longest time.Duration
}

// Announcer is told of streams in which a pass gave ids to messages or woke deliveries, so that their groups need not find out by polling. It does not block.
type Announcer func(stream int)

// Duties returns the fixed set.
func Duties(announce Announcer) []Duty {
	drain := func(ctx context.Context, s Store) error { return drainInboxes(ctx, s, announce) }
	wake := func(ctx context.Context, s Store) error { return wakeWaiting(ctx, s, announce) }
	return []Duty{
		{Name: "inbox", Every: 5 * time.Second, RunOnce: drain},
		{Name: "waiting-keys", Every: 5 * time.Second, RunOnce: wake},
		{Name: "partitions", Every: 10 * time.Second, RunOnce: makeLeaves},
		{Name: "inbox-parts", Every: 15 * time.Second, RunOnce: rotateInbox},
		{Name: "trim", Every: 20 * time.Second, RunOnce: trim},
		{Name: "deletions", Every: 30 * time.Second, RunOnce: finishDeletions},
		{Name: KeyIndexes, Every: 10 * time.Second, RunOnce: buildKeyIndexes, Longest: time.Hour},
		{Name: Compaction, Every: 10 * time.Second, RunOnce: compact},
	}
}

// drainInboxes gives ids to what no producer and no consumer has seen to, such as messages of streams without groups.
func drainInboxes(ctx context.Context, s Store, announce Announcer) error {
	streams, err := s.StreamsWithInbox(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for _, stream := range streams {
		// Bounded, so that a flood into one stream does not keep the others waiting.
		for range 20 {
			reply, err := s.Drain(ctx, stream, 1000)
			if reply.Moved > 0 {
				announce(stream)
			}
			if err != nil {
				failed = append(failed, err)
				break
			}
			if reply.Moved == 0 && !reply.Busy {
				// Nothing to move although rows are there: they belong to a stream that is gone, or are not committed.
				if err := s.OrphanInbox(ctx, stream); err != nil {
					failed = append(failed, err)
				}
			}
			if !reply.More {
				break
			}
		}
	}
	return errors.Join(failed...)
}

func makeLeaves(ctx context.Context, s Store) error {
	var failed []error
	for after, pass := 0, 0; pass < 100; pass++ {
		streams, err := s.StreamsShortOfLeaves(ctx, after)
		if err != nil {
			return errors.Join(append(failed, err)...)
		}
		if len(streams) == 0 {
			break
		}
		for _, stream := range streams {
			after = stream
			if err := s.MakeLeaves(ctx, stream); err != nil {
				failed = append(failed, err)
			}
		}
	}
	return errors.Join(failed...)
}

func rotateInbox(ctx context.Context, s Store) error {
	if _, err := s.RotateInbox(ctx, partBytes); err != nil {
		return err
	}
	parts, err := s.InboxParts(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for _, part := range parts {
		if _, err := s.EmptyInboxPart(ctx, part, partAge); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

func trim(ctx context.Context, s Store) error {
	var failed []error
	for _, what := range []string{store.TrimCursor, store.TrimBatches, store.TrimAttempts, store.TrimInstances, store.TrimKeys, store.TrimOnce} {
		for range 20 {
			n, err := s.Trim(ctx, what, batch)
			if err != nil {
				failed = append(failed, err)
			}
			if n < batch {
				break
			}
		}
	}
	return errors.Join(failed...)
}

func finishDeletions(ctx context.Context, s Store) error {
	streams, err := s.StreamsDeleting(ctx)
	if err != nil {
		return err
	}
	var failed []error
	for _, stream := range streams {
		if err := s.DropStream(ctx, stream, ""); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// Runner runs duties until it is stopped.
type Runner struct {
	store  Store
	logger *slog.Logger
	holder uuid.UUID
	duties []Duty
	kicked map[string]chan struct{}
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	warned map[string]time.Time
}

// Start runs the duties, one goroutine each, until Stop.
func Start(s Store, logger *slog.Logger, duties []Duty) *Runner {
	ctx, cancel := context.WithCancel(context.Background())
	r := &Runner{store: s, logger: logger, holder: uuid.New(), duties: duties, kicked: map[string]chan struct{}{}, cancel: cancel, warned: map[string]time.Time{}}
	for _, duty := range duties {
		r.kicked[duty.Name] = make(chan struct{}, 1)
	}
	for _, duty := range duties {
		r.wg.Go(func() { r.run(ctx, duty) })
	}
	return r
}

// Kick makes a duty look now whether there is something to do, if this process has it.
func (r *Runner) Kick(name string) {
	select {
	case r.kicked[name] <- struct{}{}:
	default: // it is about to, or there is no such duty
	}
}

// Stop ends the passes that run, frees the leases and returns when every goroutine has ended.
func (r *Runner) Stop(ctx context.Context) {
	r.cancel()
	r.wg.Wait()
	names := make([]string, 0, len(r.duties))
	for _, duty := range r.duties {
		names = append(names, duty.Name)
	}
	// What is not freed expires.
	_ = r.store.FreeDuties(ctx, names, r.holder)
}

func (r *Runner) run(ctx context.Context, duty Duty) {
	pause := time.Duration(0)
	var renew time.Time // until then the lease needs no thought; counted from before it was asked for
	for {
		// Jitter keeps the duties of many processes apart.
		timer := time.NewTimer(pause/2 + rand.N(pause+1))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-r.kicked[duty.Name]:
			timer.Stop()
		}
		if now := time.Now(); !now.Before(renew) {
			held, err := r.take(ctx, duty)
			if err != nil {
				r.warn(ctx, duty, err)
				pause = min(max(2*pause, time.Second), lease)
				continue
			}
			if !held {
				// Somebody else has it; look again when the lease could have ended.
				pause = lease
				continue
			}
			renew = now.Add(lease / 2)
		}
		if duty.Longest > 0 {
			renew = r.longPass(ctx, duty, renew)
		} else {
			r.pass(ctx, duty, lease/2) // one that hangs ends before the lease does
		}
		pause = duty.Every
	}
}

func (r *Runner) take(ctx context.Context, duty Duty) (bool, error) {
	// A stop lets it end: cut off, it could take the duty after the stop has given everything back.
	taking, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeTimeout)
	defer cancel()
	return r.store.TakeDuty(taking, duty.Name, r.holder, lease)
}

func (r *Runner) pass(ctx context.Context, duty Duty, longest time.Duration) {
	pass, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	if err := duty.RunOnce(pass, r.store); err != nil {
		r.warn(ctx, duty, err)
	}
}

// longPass runs a pass that may outlast the lease, and renews the lease meanwhile; it returns until when the lease needs no thought. A lease that somebody else has taken, or that could not be renewed in time, ends it.
func (r *Runner) longPass(ctx context.Context, duty Duty, renew time.Time) time.Time {
	pass, end := context.WithCancel(ctx)
	var keeping sync.WaitGroup
	keeping.Go(func() {
		timer := time.NewTicker(lease / 4)
		defer timer.Stop()
		for kept := time.Now(); ; {
			select {
			case <-pass.Done():
				return
			case <-timer.C:
			}
			now := time.Now()
			held, err := r.take(pass, duty)
			switch {
			case err == nil && held:
				kept, renew = now, now.Add(lease/2)
			case err == nil || time.Since(kept) > lease/2:
				renew = time.Time{}
				end()
				return
			}
		}
	})
	r.pass(pass, duty, duty.Longest)
	end()
	keeping.Wait()
	return renew
}

// warn tells of a failure at most once a minute for each duty.
func (r *Runner) warn(ctx context.Context, duty Duty, err error) {
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	last, seen := r.warned[duty.Name]
	now := time.Now()
	tell := !seen || now.Sub(last) >= time.Minute
	if tell {
		r.warned[duty.Name] = now
	}
	r.mu.Unlock()
	if tell {
		r.logger.LogAttrs(ctx, slog.LevelWarn, "upkeep failed", slog.String("code", string(diag.DutyFailed)), slog.String("duty", duty.Name), slog.Any("error", err))
	}
}
