package sqlstreams

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/store"
	"github.com/sqlstreams/sqlstreams/internal/wake"
)

// Hook watches what happens in a client's sessions: attempts that ended, dead letters, leases lost, handlers abandoned and cleared. It cannot change anything. Events wait for it in a bounded
// queue of 1,024 a session; what does not fit is counted and told (SQL0052).
type Hook = consume.Hook

// Event is what a Hook observes.
type Event = consume.Event

// Health is a snapshot of an instance: what its session has counted, and what it holds now.
type Health = consume.Health

// Consumer is an instance of a consumer group. One Consume call runs on it at a time.
type Consumer[T any] struct{ core *consumer }

// consumer is the untyped core of a Consumer.
type consumer struct {
	stream   *stream
	group    *store.Group
	object   string
	limits   delivery.Limits
	reclaims int
	outcome  Outcome

	mu      sync.Mutex
	session *consume.Session // the running one, else the last
	running bool
}

// RegisterConsumer declares a consumer group of the stream and returns an instance of it. It creates the group, or updates its stored config if a non-nil config differs; a nil config creates with
// defaults and leaves an existing group's config as it is. The group's progress is kept: Start applies only when the group is created, and a changed one is reported
// (SQL0011) and not applied. Running instances read a changed config at their next claim.
//
// Errors: ErrInvalidName, ErrReservedName, ErrInvalidOption, ErrStreamNotFound, ErrDeclarationConflict (a differing config under StrictRegistration).
func (s *Stream[T]) RegisterConsumer(ctx context.Context, group string, config *ConsumerConfig) (*Consumer[T], error) {
	core, err := s.core.registerConsumer(ctx, group, config)
	if err != nil {
		return nil, err
	}
	return &Consumer[T]{core: core}, nil
}

// Outcome says what the registration did.
func (c *Consumer[T]) Outcome() Outcome { return c.core.outcome }

// Consume runs f for each message of the group that this instance claims, several at a time, until ctx ends; then no handler starts any more, running ones are awaited for StopTimeout, what is unfinished
// is given back, and Consume returns nil. It does not return because the server is lost or restarts. Returning nil from f records success; an error makes the message run again after a
// backoff, at most MaxAttempts times; see Delay and Terminal. The context of f carries ctx's values, not its end; it is cancelled at the message's timeout.
//
// Of a tombstone (see StreamConfig.Compacted) the payload is nil; MetaFromContext has its key.
//
// A message can run more than once: a crash between f and the record of its result, or a lease that ended, makes another instance run it again.
//
// Errors: ErrInvalidOption, ErrAlreadyConsuming, ErrClosed, and what waiting cannot mend: ErrStreamNotFound, ErrGroupNotFound, ErrSchemaNewer, ErrPermissionDenied.
func (c *Consumer[T]) Consume(ctx context.Context, f func(ctx context.Context, payload *T) error, opts *ConsumeOptions) error {
	if f == nil {
		return invalid(diag.InvalidOption, "consume", c.core.object, "the handler is nil")
	}
	decode := decoder[T](c.core.stream)
	return c.core.consume(ctx, opts, 0, func(ctx context.Context, m *delivery.Message, _ consume.Attempt) error {
		payload, err := decode(m)
		if err != nil {
			return err
		}
		return f(ctx, payload)
	})
}

// decoder returns what makes a payload of a message, or an error that ends the message's attempts.
func decoder[T any](s *stream) func(m *delivery.Message) (*T, error) {
	codec, version, any := s.codec, versionOf[T](), s.verbatim
	return func(m *delivery.Message) (*T, error) {
		// A tombstone has no payload whose version could matter; it always has a key.
		if m.Payload == nil && m.Key != "" && !m.Redacted {
			return nil, nil
		}
		if !any && m.SchemaVersion != version {
			return nil, consume.NotConvertible(m.SchemaVersion)
		}
		payload := new(T)
		if err := codec.Unmarshal(m.Payload, payload); err != nil {
			return nil, consume.NotDecodable(err)
		}
		return payload, nil
	}
}

// Health returns a snapshot of the running session, or of the last one.
func (c *Consumer[T]) Health() Health {
	c.core.mu.Lock()
	defer c.core.mu.Unlock()
	if c.core.session == nil {
		return Health{}
	}
	return c.core.session.Health()
}

func (s *stream) registerConsumer(ctx context.Context, group string, config *ConsumerConfig) (*consumer, error) {
	const op = "register"
	if err := checkName(op, "group", group); err != nil {
		return nil, err
	}
	c := &consumer{stream: s, object: "group " + strconv.Quote(group) + " of " + s.object}
	var cfg ConsumerConfig
	if config != nil {
		cfg = *config
	}
	limits, err := cfg.limits(op, c.object)
	if err != nil {
		return nil, err
	}
	if err := checkBounds(op, c.object, bounded{name: "MaxRangeReclaims", value: int64(cfg.MaxRangeReclaims), low: 1, high: 1000, offAllowed: true},
		bounded{name: "MaxRunning", value: int64(cfg.MaxRunning), low: 1, high: 1_000_000}); err != nil {
		return nil, err
	}
	if r := cfg.RatePerSecond; r != 0 && !(r >= 0.001 && r <= 1_000_000) {
		return nil, invalid(diag.InvalidOption, op, c.object, fmt.Sprintf("RatePerSecond is %v, allowed are 0.001 to 1,000,000", r))
	}
	reclaims := or(cfg.MaxRangeReclaims, 3)
	if reclaims == Off {
		reclaims = 0
	}
	start := cfg.Start
	if start == "" {
		start = Beginning
	}
	if err := checkStart(op, c.object, "Start", start); err != nil {
		return nil, err
	}
	stored, err := json.Marshal(storedGroup{V: configVersion, Message: storePolicy(limits.Default), Min: storePolicy(limits.Min), Max: storePolicy(limits.Max), MaxReclaims: reclaims, MaxRunning: cfg.MaxRunning, Rate: cfg.RatePerSecond, KeyOrder: string(cfg.KeyOrder), Park: cfg.ParkKeyOnDeadLetter})
	if err != nil {
		return nil, &diag.Error{Code: diag.InvalidOption, Op: op, Object: c.object, Err: err}
	}
	if start == Head {
		if err := s.client.giveIDs(ctx, s.id); err != nil {
			return nil, renamed(err, c.object)
		}
	}
	row, err := s.client.store.RegisterGroup(ctx, s.id, group, stored, config != nil && !s.client.strict, limits.Max.Timeout, reclaims, string(start))
	if err != nil {
		return nil, renamed(err, c.object)
	}
	if s.client.strict && config != nil && row.Outcome == store.Unchanged && string(row.Config) != string(stored) {
		return nil, invalid(diag.DeclarationConflict, op, c.object, "it is declared differently: "+string(row.Config)+" is stored, "+string(stored)+" was given")
	}
	if cfg.Start != "" && row.Start != string(start) {
		s.client.logger.LogAttrs(ctx, slog.LevelWarn, "start ignored: the group exists and keeps its position", slog.String("code", string(diag.StartIgnored)),
			slog.String("stream", s.name), slog.String("group", group), slog.String("stored", row.Start), slog.String("given", string(start)))
	}
	s.client.logChange(ctx, c.object, row.Outcome, row.Previous, row.Config)
	if c.limits, c.reclaims, err = readGroup(row.Config); err != nil {
		return nil, renamed(err, c.object)
	}
	c.group, c.outcome = row, Outcome(row.Outcome)
	return c, nil
}

// consume runs a session. Each wake-up lingers, so that more messages can have come when it claims.
func (c *consumer) consume(ctx context.Context, opts *ConsumeOptions, linger time.Duration, handler consume.Handler) error {
	const op = "consume"
	var o ConsumeOptions
	if opts != nil {
		o = *opts
	}
	if err := checkBounds(op, c.object,
		bounded{name: "Handlers", value: int64(o.Handlers), low: 1, high: 100_000},
		bounded{name: "BatchLimit", value: int64(o.BatchLimit), low: 1, high: 10_000},
		bounded{name: "BatchMin", value: int64(o.BatchMin), low: 1, high: int64(or(o.BatchLimit, 1000))},
		bounded{name: "MaxBatchBytes", value: o.MaxBatchBytes, low: 1, high: 1 << 30},
		bounded{name: "QueueSize", value: int64(o.QueueSize), low: 1, high: 100},
		bounded{name: "QueueMargin", value: int64(o.QueueMargin), low: int64(time.Second), high: int64(week)},
		bounded{name: "TimeoutGrace", value: int64(o.TimeoutGrace), low: 1, high: int64(time.Hour)},
		bounded{name: "RecordMargin", value: int64(o.RecordMargin), low: int64(time.Millisecond), high: int64(time.Hour)},
		bounded{name: "StopTimeout", value: int64(o.StopTimeout), low: 1, high: int64(week)},
		bounded{name: "PollInterval", value: int64(o.PollInterval), low: int64(time.Millisecond), high: int64(time.Hour)}); err != nil {
		return err
	}
	client := c.stream.client
	c.mu.Lock()
	if c.running {
		c.mu.Unlock()
		return invalid(diag.AlreadyConsuming, op, c.object, "")
	}
	if !client.enter() {
		c.mu.Unlock()
		return invalid(diag.Closed, op, c.object, "")
	}
	defer client.sessions.Done()
	sub := client.hub.SubscribeEvery(c.group.ID, c.stream.id, o.PollInterval)
	defer sub.Close()
	sub.Linger(linger)
	session, err := consume.NewSession(consume.Config{
		Store: sessionStore{client.store, client.pulse}, Waker: sub, Gate: client.gate, Strays: client.strays, Logger: client.logger, Hooks: client.hooks,
		Stream: c.stream.name, Group: c.group.Name, StreamID: c.stream.id, GroupID: c.group.ID, Instance: uuid.New(),
		Limits: c.limits, ConfigVersion: c.group.Version, OnConfig: readGroup, Handler: handler,
		Announce: func() { client.hub.Announce(c.group.ID, wake.Changed) },
		Options: consume.Options{
			Handlers: o.Handlers, BatchLimit: o.BatchLimit, BatchMin: o.BatchMin, MaxBatchBytes: o.MaxBatchBytes, QueueSize: o.QueueSize, QueueMargin: o.QueueMargin,
			TimeoutGrace: o.TimeoutGrace, RecordMargin: o.RecordMargin, StopTimeout: o.StopTimeout, PollInterval: o.PollInterval, ReleaseStale: o.ReleaseStale, MaxReclaims: c.reclaims,
		},
	})
	if err != nil {
		c.mu.Unlock()
		return err
	}
	c.session, c.running = session, true
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.running = false
		c.mu.Unlock()
	}()
	// The client's end is the session's end, too.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	unlink := context.AfterFunc(client.stop, cancel)
	defer unlink()
	return renamed(session.Run(ctx), c.object)
}
