package sqlstreams

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"strconv"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/manager"
	"github.com/sqlstreams/sqlstreams/internal/store"
)

// Outcome says what a registration did.
type Outcome string

// What a registration can do.
const (
	Created   Outcome = store.Created
	Updated   Outcome = store.Updated
	Unchanged Outcome = store.Unchanged
)

// stream is the untyped core of a Stream.
type stream struct {
	client  *Client
	id      int
	name    string
	object  string // as errors and logs name it
	kind    string
	codec   Codec
	limits  storedStream
	outcome Outcome
	// verbatim payloads are taken and handed out as they are stored, whatever their schema version.
	verbatim bool
}

// Stream is a named append-only log of payloads of type T. It is safe for concurrent use.
type Stream[T any] struct{ core *stream }

// RegisterStream declares a stream: it creates it, or updates its stored config if a non-nil config differs. A nil config creates with defaults and leaves an
// existing stream's config as it is. Names match [a-z0-9][a-z0-9._-]{0,127}; __system. is reserved.
//
// Errors: ErrInvalidName, ErrReservedName, ErrInvalidOption, ErrDeclarationConflict (another kind of payload; or a differing config under StrictRegistration).
func RegisterStream[T any](ctx context.Context, client *Client, name string, config *StreamConfig) (*Stream[T], error) {
	core, err := client.registerStream(ctx, name, config)
	if err != nil {
		return nil, err
	}
	return &Stream[T]{core: core}, nil
}

// Name returns the stream's name.
func (s *Stream[T]) Name() string { return s.core.name }

// Outcome says what the registration did.
func (s *Stream[T]) Outcome() Outcome { return s.core.outcome }

func (c *Client) registerStream(ctx context.Context, name string, config *StreamConfig) (*stream, error) {
	const op = "register"
	if err := checkName(op, "stream", name); err != nil {
		return nil, err
	}
	s := &stream{client: c, name: name, object: "stream " + strconv.Quote(name), kind: store.KindJSON, codec: jsonCodec{}}
	var cfg StreamConfig
	if config != nil {
		cfg = *config
	}
	if cfg.Codec != nil {
		s.kind, s.codec = store.KindBytes, cfg.Codec
	}
	if err := checkBounds(op, s.object,
		bounded{name: "MaxPayload", value: int64(cfg.MaxPayload), low: 1, high: 256 << 20},
		bounded{name: "MaxKey", value: int64(cfg.MaxKey), low: 1, high: 2048},
		bounded{name: "MaxHeaders", value: int64(cfg.MaxHeaders), low: 1, high: 1 << 20},
		bounded{name: "IdempotencyWindow", value: int64(cfg.IdempotencyWindow), low: int64(time.Second), high: int64(366 * 24 * time.Hour)},
		bounded{name: "TombstoneTTL", value: int64(cfg.TombstoneTTL), low: int64(time.Millisecond), high: int64(366 * 24 * time.Hour)},
		bounded{name: "CompactionLag", value: int64(cfg.CompactionLag), low: int64(time.Millisecond), high: int64(366 * 24 * time.Hour)}); err != nil {
		return nil, err
	}
	if !cfg.Compacted && (cfg.TombstoneTTL != 0 || cfg.CompactionLag != 0) {
		return nil, invalid(diag.InvalidOption, op, s.object, "TombstoneTTL and CompactionLag belong to Compacted, which is off")
	}
	s.limits = storedStream{V: configVersion, MaxPayload: or(cfg.MaxPayload, 1<<20), MaxKey: or(cfg.MaxKey, 512), MaxHeaders: or(cfg.MaxHeaders, 16<<10),
		WindowMS: (cmp.Or(cfg.IdempotencyWindow, defaultWindow)).Milliseconds(), Keyed: cfg.Keyed || cfg.Compacted}
	if cfg.Compacted {
		s.limits.Compacted, s.limits.TTLMS, s.limits.LagMS = true, cmp.Or(cfg.TombstoneTTL, 24*time.Hour).Milliseconds(), cmp.Or(cfg.CompactionLag, time.Minute).Milliseconds()
	}
	stored, err := json.Marshal(s.limits)
	if err != nil {
		return nil, &diag.Error{Code: diag.InvalidOption, Op: op, Object: s.object, Err: err}
	}
	row, err := c.store.RegisterStream(ctx, name, s.kind, stored, config != nil && !c.strict, 0)
	if err != nil {
		return nil, renamed(err, s.object)
	}
	if c.strict && config != nil && row.Outcome == store.Unchanged && string(row.Config) != string(stored) {
		return nil, invalid(diag.DeclarationConflict, op, s.object, "it is declared differently: "+string(row.Config)+" is stored, "+string(stored)+" was given")
	}
	if err := json.Unmarshal(row.Config, &s.limits); err != nil {
		return nil, &diag.Error{Code: diag.SchemaNewer, Op: op, Object: s.object, Err: err}
	}
	s.id, s.outcome = row.ID, Outcome(row.Outcome)
	c.logChange(ctx, s.object, row.Outcome, row.Previous, row.Config)
	return s, s.indexKeys(ctx)
}

// indexKeys sees to it that upkeep runs for a compacted stream, and for a keyed one whose leaves lack the index, though no consumer runs in this process that would have started it. Nobody waits for it here.
func (s *stream) indexKeys(ctx context.Context) error {
	if !s.limits.Keyed {
		return nil
	}
	gaps, err := s.client.store.KeyIndexGaps(ctx, s.id)
	if err != nil {
		return renamed(err, s.object)
	}
	if s.limits.Compacted {
		s.client.keepUp(manager.Compaction)
	}
	if len(gaps) > 0 {
		s.client.keepUp(manager.KeyIndexes)
	}
	return nil
}

// logChange tells that a declaration replaced another one: two programs that disagree would do so again and again.
func (c *Client) logChange(ctx context.Context, object, outcome string, previous, now []byte) {
	if outcome == store.Updated {
		c.logger.LogAttrs(ctx, slog.LevelWarn, "declaration changed", slog.String("code", string(diag.DeclarationChanged)), slog.String("object", object),
			slog.String("old", string(previous)), slog.String("new", string(now)))
	}
}

func or(value, def int) int {
	if value == 0 {
		return def
	}
	return value
}
