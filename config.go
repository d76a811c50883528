package sqlstreams

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// Off turns an option off where its comment offers that. The zero value of an option means unset, so its default; other negative values are an error.
const Off = -1

// ClientConfig describes a client. The zero value of each field means its default.
type ClientConfig struct {
	// Schema is the Postgres schema of the installation: 1 to 63 bytes, not beginning with pg_. Default "sqlstreams".
	Schema string
	// ControlConns is how many connections the client opens for itself, beside the caller's pool: one listens, the others claim, record and keep up.
	// Default 3, at least 2, at most 100.
	ControlConns int
	// ListenDSN is where the listening connection goes, if the pool leads through a transaction pooler, which cannot LISTEN. Default: where the pool goes.
	ListenDSN string
	// PollOnly does without a listening connection: messages are found by polling alone.
	PollOnly bool
	// Logger gets what happens in the background. Default slog.Default().
	Logger *slog.Logger
	// ManualMigration leaves creating and upgrading the schema to the operator; an old or missing one is then ErrSchemaOld.
	ManualMigration bool
	// StrictRegistration refuses to change a stored declaration: a differing one is ErrDeclarationConflict instead of an update.
	StrictRegistration bool
	// DisableManager runs no upkeep in this process. Some process must.
	DisableManager bool
	// StatementTimeout bounds every statement that the client sends for itself. Default 30 s, at least 1 s.
	StatementTimeout time.Duration
	// Hooks watch what happens in the client's sessions. They run on a goroutine of their own, one at a time, and cannot change anything.
	Hooks []Hook
}

// idempotencyWindow returns for how long the stream remembers idempotency keys.
func (s storedStream) idempotencyWindow() time.Duration {
	if s.WindowMS == 0 {
		return defaultWindow
	}
	return time.Duration(s.WindowMS) * time.Millisecond
}

const defaultWindow = 24 * time.Hour

// StreamConfig describes a stream and is stored with it. The zero value of each field means its default.
type StreamConfig struct {
	// Codec replaces JSON as the encoding of payloads. Whether a stream holds JSON (readable in psql) or a codec's bytes is decided when it is created and never changes.
	// Default nil: JSON.
	Codec Codec
	// MaxPayload is the largest encoded payload in bytes. Default 1 MiB, at most 256 MiB.
	MaxPayload int
	// MaxKey is the longest message key and routing key in bytes. Default 512, at most 2,048.
	MaxKey int
	// MaxHeaders is the largest size of a message's headers, encoded, in bytes. Default 16 KiB, at most 1 MiB.
	MaxHeaders int
	// IdempotencyWindow is for how long idempotency keys are remembered. Default 24 h; 1 s to 366 days. A changed one applies to keys that are taken from then on.
	IdempotencyWindow time.Duration
	// Keyed lets messages be found by their key: Key reads the newest message of a key and its history, and ProduceOptions.ExpectedVersion appends only if nobody else has. It costs an index. Switched on
	// when the stream holds messages already, it is built in the background, without holding anybody up; until then reading a key can return ErrKeyIndexBuilding. Switched off, the indexes that are there stay, and
	// new partitions get none. Default off.
	Keyed bool
	// Compacted keeps of each key at least its newest message, and removes older ones once they have been replaced for CompactionLag: the stream is a table of newest values whose changes can be consumed. Messages without a key stay.
	// A nil payload is a tombstone then: it says that the key is gone, handlers get a nil pointer, and after TombstoneTTL it goes too. It implies Keyed. Default off.
	Compacted bool
	// TombstoneTTL is for how long a tombstone is kept, so that groups that lag see it. Default 24 h; 1 ms to 366 days. Only with Compacted.
	TombstoneTTL time.Duration
	// CompactionLag is for how long a message is kept after a newer one of its key has been appended. Default 1 min; 1 ms to 366 days. Only with Compacted.
	CompactionLag time.Duration
}

// MessageOptions say how a message is run. A message may request them (ProduceOptions.Message), a group sets defaults and limits (ConsumerConfig). Zero means unset.
type MessageOptions struct {
	// Timeout is how long a handler may run before its context is cancelled. Default 30 s; 1 ms to 7 days.
	Timeout time.Duration
	// MaxAttempts is how many failures make a dead letter; 1: no retry. Default 10, at most 1,000,000.
	MaxAttempts int
	// BaseDelay is the wait after the first failure. Default 1 s; 1 ms to 30 days.
	BaseDelay time.Duration
	// Exponent multiplies the wait after each further failure. Default 2; 1 to 100.
	Exponent float64
	// MaxDelay bounds the wait. Default 5 min; 1 ms to 30 days.
	MaxDelay time.Duration
}

// KeyOrder says how messages of one key follow each other within a group.
type KeyOrder string

// The orders of a key. Messages without a key are always Parallel.
const (
	// Parallel: they do not wait for each other. What applies where nothing is said.
	Parallel KeyOrder = "parallel"
	// Exclusive: one of a key at a time, over all instances of the group. One that failed and waits for its retry keeps no other waiting.
	Exclusive KeyOrder = "exclusive"
	// Ordered: one of a key at a time, in the order of ids: none starts before every lower ordered one of its key has succeeded, with its success recorded, or is dead.
	Ordered KeyOrder = "ordered"
)

// Start is where a new group begins, and where Seek moves one: Beginning, Head, StartAt or StartAfter.
type Start string

// Where a new group can begin, whatever its stream holds.
const (
	Beginning Start = "beginning" // at the oldest message that is there (default)
	Head      Start = "head"      // behind the newest message that is there
)

// ConsumerConfig describes a consumer group and is stored with it. The zero value of each field means its default.
type ConsumerConfig struct {
	// Start is where the group begins. It applies when the group is created; on an existing group a changed start is reported (SQL0011) and not applied: GroupHandle.Seek moves a group. Beginning, Head, StartAt(t) or StartAfter(id); a position outside what the stream has then is the nearest one. Default Beginning.
	Start Start
	// Message is what applies to messages that request nothing.
	Message *MessageOptions
	// MessageMin and MessageMax clamp, field by field, what messages request. Default: no minimum; the maximum is Message. A given maximum lowers the default.
	MessageMin, MessageMax *MessageOptions
	// MaxRangeReclaims is after how many takeovers an expired range is broken up into single deliveries that run alone, so that a message which kills its process is
	// found. Default 3, at most 1,000; Off: at the first expiry.
	MaxRangeReclaims int
	// MaxRunning is the most handlers that run at once over all instances of the group, whatever their Handlers; what is under a lease that has not ended counts, so a crashed instance's messages count until its
	// leases end. Default 0: no limit; at most 1,000,000.
	MaxRunning int
	// RatePerSecond is the most handlers that start in a second over all instances, retries included, with a burst of one second's worth (one message at least). A message that is given back unstarted has used its
	// share. Default 0: no limit; 0.001 to 1,000,000.
	RatePerSecond float64
	// KeyOrder says how messages of one key follow each other, whatever the messages request. A changed one applies to what is claimed from then on; it holds in full once the ranges that were open at the change have
	// ended. Default unset: each message's own, else Parallel.
	KeyOrder KeyOrder
	// ParkKeyOnDeadLetter keeps the successors of an ordered message that has become a dead letter waiting, until the letter is redriven (it runs before them then) or discarded. Default off: they go on.
	ParkKeyOnDeadLetter bool
}

// ProduceOptions belong to one message. Nil or zero: none set.
type ProduceOptions struct {
	// Key is the message's key: at most StreamConfig.MaxKey bytes of UTF-8 without control characters.
	Key string
	// KeyOrder requests how this message follows others of its key in groups whose config leaves it to the messages. It needs a Key. Default unset: Parallel.
	KeyOrder KeyOrder
	// RoutingKey is what bindings match: dot-separated words, bounded like Key.
	RoutingKey string
	// Headers travel with the message and are not interpreted. Valid UTF-8; at most StreamConfig.MaxHeaders bytes together.
	Headers map[string]string
	// Message requests how the message is run; consumers clamp it.
	Message *MessageOptions
	// IdempotencyKey makes producing it again harmless: while the stream remembers the key (StreamConfig.IdempotencyWindow), a message with the same key is not stored and Produced says Duplicate.
	// At most 512 bytes of UTF-8 without control characters. A message with a key gets its id a little later (ID 0). If another transaction has taken the key and is still open, it is awaited for at
	// most 5 s (ErrStreamBusy then); if it rolls back, this message is stored. Default "": none.
	IdempotencyKey string
	// ExpectedVersion stores the message only if the newest message of its Key has this id (NoVersion: if the key has none), and nothing of the key that is committed waits for its id; else the error is ErrVersionConflict and
	// nothing is stored. It needs a Key and a stream that is Keyed. In a batch only the first message of a key can have one: the others follow it. Not in a transaction of the caller's and not beside an IdempotencyKey, because
	// what the message follows would be decided after the call. Default 0: none is expected.
	ExpectedVersion int64
}

// ConsumeOptions belong to one Consume call. The zero value of each field means its default.
type ConsumeOptions struct {
	// Handlers is how many handlers run at once in this instance. Default 10, at most 100,000.
	Handlers int
	// BatchLimit is the most messages of one claim. Default 1,000, at most 10,000.
	BatchLimit int
	// BatchMin is the size below which a claim is not shrunk when handlers are slow. Default unset: fully adaptive. At most BatchLimit.
	BatchMin int
	// MaxBatchBytes is the most payload and header bytes of one claim (one message is always taken). Default 8 MiB.
	MaxBatchBytes int64
	// QueueSize is how many claimed ranges are held at once. Default 2, at most 100.
	QueueSize int
	// QueueMargin is the lease's allowance for waiting in the queue. More of it also means slower takeover after a crash. Default 15 s, at least 1 s.
	QueueMargin time.Duration
	// TimeoutGrace is how long a handler may take to return after its context was cancelled. Slack for unwinding, never time to work. Default 100 ms.
	TimeoutGrace time.Duration
	// RecordMargin is the lease's allowance for recording the result. Default 2 s.
	RecordMargin time.Duration
	// StopTimeout is how long running handlers are awaited when ctx has ended. Default: timeout ceiling + TimeoutGrace + RecordMargin.
	StopTimeout time.Duration
	// PollInterval is how often an idle group is looked at when no announcement comes. Default 1 s; 1 ms to 1 h.
	PollInterval time.Duration
	// ReleaseStale records the finished messages of a range that has too little lease left and frees the rest at once, instead of leaving the range to its expiry. Default off.
	ReleaseStale bool
}

func invalid(code Code, op, object, detail string) error {
	return &diag.Error{Code: code, Op: op, Object: object, Detail: detail}
}

// namePattern is what streams and groups may be called.
const namePattern = `^[a-z0-9][a-z0-9._-]{0,127}$`

func checkName(op, kind, name string) error {
	object := kind + " " + strconv.Quote(name)
	if strings.HasPrefix(name, "__system.") {
		return invalid(diag.ReservedName, op, object, "names that begin with __system. are reserved")
	}
	if ok, err := regexp.MatchString(namePattern, name); err != nil || !ok {
		return invalid(diag.InvalidName, op, object, "a name has 1 to 128 characters from a-z, 0-9, dot, underscore and hyphen, and begins with a letter or digit")
	}
	return nil
}

// bounded is one number with its bounds; zero is unset.
type bounded struct {
	name             string
	value, low, high int64
	offAllowed       bool
}

func checkBounds(op, object string, fields ...bounded) error {
	for _, f := range fields {
		if f.value == 0 || f.offAllowed && f.value == Off {
			continue
		}
		if f.value < 0 {
			return invalid(diag.InvalidOption, op, object, f.name+" is negative; zero means its default")
		}
		if f.value < f.low || f.value > f.high {
			return invalid(diag.InvalidOption, op, object, fmt.Sprintf("%s is outside its bounds", f.name))
		}
	}
	return nil
}

const (
	week  = 7 * 24 * time.Hour
	month = 30 * 24 * time.Hour
)

func checkMessageOptions(op, object, field string, m *MessageOptions) error {
	if m == nil {
		return nil
	}
	if m.Exponent != 0 && !(m.Exponent >= 1 && m.Exponent <= 100) {
		return invalid(diag.InvalidOption, op, object, field+".Exponent is outside its bounds, 1 to 100")
	}
	return checkBounds(op, object,
		bounded{name: field + ".Timeout", value: int64(m.Timeout), low: int64(time.Millisecond), high: int64(week)},
		bounded{name: field + ".MaxAttempts", value: int64(m.MaxAttempts), low: 1, high: 1_000_000},
		bounded{name: field + ".BaseDelay", value: int64(m.BaseDelay), low: int64(time.Millisecond), high: int64(month)},
		bounded{name: field + ".MaxDelay", value: int64(m.MaxDelay), low: int64(time.Millisecond), high: int64(month)})
}

func checkKeyOrder(op, object string, o KeyOrder) error {
	switch o {
	case "", Parallel, Exclusive, Ordered:
		return nil
	}
	return invalid(diag.InvalidOption, op, object, "KeyOrder is "+strconv.Quote(string(o))+", not parallel, exclusive or ordered")
}

func (m *MessageOptions) policy() delivery.Policy {
	if m == nil {
		return delivery.Policy{}
	}
	return delivery.Policy{Timeout: m.Timeout, MaxAttempts: m.MaxAttempts, BaseDelay: m.BaseDelay, Exponent: m.Exponent, MaxDelay: m.MaxDelay}
}

// limits checks MessageMin ≤ Message ≤ MessageMax, field by field, and fills in what is unset.
func (c *ConsumerConfig) limits(op, object string) (delivery.Limits, error) {
	for _, m := range []struct {
		field string
		value *MessageOptions
	}{{"Message", c.Message}, {"MessageMin", c.MessageMin}, {"MessageMax", c.MessageMax}} {
		if err := checkMessageOptions(op, object, m.field, m.value); err != nil {
			return delivery.Limits{}, err
		}
	}
	given, low, high := c.Message.policy(), c.MessageMin.policy(), c.MessageMax.policy()
	def := given.Or(delivery.DefaultPolicy())
	// A limit that is given moves a default that is not.
	move := func(given, low, high, def float64) float64 {
		if given != 0 {
			return given
		}
		if low != 0 {
			def = max(def, low)
		}
		if high != 0 {
			def = min(def, high)
		}
		return def
	}
	def.Timeout = time.Duration(move(float64(given.Timeout), float64(low.Timeout), float64(high.Timeout), float64(def.Timeout)))
	def.MaxAttempts = int(move(float64(given.MaxAttempts), float64(low.MaxAttempts), float64(high.MaxAttempts), float64(def.MaxAttempts)))
	def.BaseDelay = time.Duration(move(float64(given.BaseDelay), float64(low.BaseDelay), float64(high.BaseDelay), float64(def.BaseDelay)))
	def.Exponent = move(given.Exponent, low.Exponent, high.Exponent, def.Exponent)
	def.MaxDelay = time.Duration(move(float64(given.MaxDelay), float64(low.MaxDelay), float64(high.MaxDelay), float64(def.MaxDelay)))
	if err := checkKeyOrder(op, object, c.KeyOrder); err != nil {
		return delivery.Limits{}, err
	}
	l := delivery.Limits{Default: def, Min: low, Max: high.Or(def), KeyOrder: delivery.KeyOrder(c.KeyOrder), Park: c.ParkKeyOnDeadLetter}
	for _, f := range []struct {
		name           string
		low, def, high float64
	}{
		{"Timeout", float64(l.Min.Timeout), float64(def.Timeout), float64(l.Max.Timeout)},
		{"MaxAttempts", float64(l.Min.MaxAttempts), float64(def.MaxAttempts), float64(l.Max.MaxAttempts)},
		{"BaseDelay", float64(l.Min.BaseDelay), float64(def.BaseDelay), float64(l.Max.BaseDelay)},
		{"Exponent", l.Min.Exponent, def.Exponent, l.Max.Exponent},
		{"MaxDelay", float64(l.Min.MaxDelay), float64(def.MaxDelay), float64(l.Max.MaxDelay)},
	} {
		if f.low > f.def || f.def > f.high {
			return delivery.Limits{}, invalid(diag.InvalidOption, op, object, "MessageMin ≤ Message ≤ MessageMax does not hold for "+f.name)
		}
	}
	return l, nil
}

// The stored form of configs: a JSON object with its version in v. Durations are milliseconds with fractions.
type (
	storedStream struct {
		V          int   `json:"v"`
		MaxPayload int   `json:"max_payload"`
		MaxKey     int   `json:"max_key"`
		MaxHeaders int   `json:"max_headers"`
		WindowMS   int64 `json:"idempotency_window_ms"`
		Keyed      bool  `json:"keyed,omitempty"` // read by statements, as the next three
		Compacted  bool  `json:"compacted,omitempty"`
		TTLMS      int64 `json:"tombstone_ttl_ms,omitempty"`
		LagMS      int64 `json:"compaction_lag_ms,omitempty"`
	}
	storedPolicy struct {
		TimeoutMS   float64 `json:"timeout_ms"`
		MaxAttempts int     `json:"max_attempts"`
		BaseDelayMS float64 `json:"base_delay_ms"`
		Exponent    float64 `json:"exponent"`
		MaxDelayMS  float64 `json:"max_delay_ms"`
	}
	storedGroup struct {
		V           int          `json:"v"`
		Message     storedPolicy `json:"message"`
		Min         storedPolicy `json:"message_min"`
		Max         storedPolicy `json:"message_max"`
		MaxReclaims int          `json:"max_range_reclaims"`
		MaxRunning  int          `json:"max_running,omitempty"`     // read by the procedure work
		Rate        float64      `json:"rate_per_second,omitempty"` // likewise
		KeyOrder    string       `json:"key_order,omitempty"`       // likewise
		Park        bool         `json:"park_key_on_dead_letter,omitempty"`
	}
)

const configVersion = 1

func storePolicy(p delivery.Policy) storedPolicy {
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	return storedPolicy{TimeoutMS: ms(p.Timeout), MaxAttempts: p.MaxAttempts, BaseDelayMS: ms(p.BaseDelay), Exponent: p.Exponent, MaxDelayMS: ms(p.MaxDelay)}
}

func (s storedPolicy) policy() delivery.Policy {
	d := func(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
	return delivery.Policy{Timeout: d(s.TimeoutMS), MaxAttempts: s.MaxAttempts, BaseDelay: d(s.BaseDelayMS), Exponent: s.Exponent, MaxDelay: d(s.MaxDelayMS)}
}

// readGroup reads a stored group config; one written by a newer program is refused rather than half understood.
func readGroup(config []byte) (delivery.Limits, int, error) {
	var g storedGroup
	if err := json.Unmarshal(config, &g); err != nil {
		return delivery.Limits{}, 0, invalid(diag.SchemaNewer, "read", "group config", "it is not what this program stores")
	}
	if g.V > configVersion {
		return delivery.Limits{}, 0, invalid(diag.SchemaNewer, "read", "group config", fmt.Sprintf("it has version %d, this program knows %d", g.V, configVersion))
	}
	return delivery.Limits{Default: g.Message.policy(), Min: g.Min.policy(), Max: g.Max.policy(), KeyOrder: delivery.KeyOrder(g.KeyOrder), Park: g.Park}, g.MaxReclaims, nil
}
