package sqlstreams

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/manager"
	"github.com/sqlstreams/sqlstreams/internal/produce"
	"github.com/sqlstreams/sqlstreams/internal/schema"
	"github.com/sqlstreams/sqlstreams/internal/store"
	"github.com/sqlstreams/sqlstreams/internal/wake"
)

// DefaultSchema is the Postgres schema of an installation that names no other.
const DefaultSchema = "sqlstreams"

// Client is one process's access to an installation. It is safe for concurrent use; a process needs one.
type Client struct {
	pool    *pgxpool.Pool // the caller's
	control *pgxpool.Pool
	spare   *pgxpool.Pool // for producing while handlers hold all of pool
	store   *store.Store
	batcher *produce.Batcher
	hub     *wake.Hub
	pulse   *pulse
	gate    *consume.Gate
	strays  *consume.Strays
	logger  *slog.Logger
	strict  bool
	hooks   []Hook
	stop    context.Context // ends with Close: sessions end with it
	cancel  context.CancelFunc

	mu       sync.Mutex
	closed   bool
	sessions sync.WaitGroup
	upkeep   *manager.Runner
	managed  bool // upkeep is to run in this process
}

// NewClient opens an installation on a database. The pool stays the caller's: it serves producing and is not closed. On first use the schema is created, and an old one upgraded,
// unless ManualMigration says otherwise; on a normal start that takes no lock and writes nothing.
//
// Errors: ErrUnreachable and the other conditions of a connection, ErrPermissionDenied, ErrReadOnlyServer on a standby, ErrSchemaOld, ErrSchemaNewer, ErrInvalidOption, ErrInvalidName.
func NewClient(ctx context.Context, pool *pgxpool.Pool, config *ClientConfig) (*Client, error) {
	var cfg ClientConfig
	if config != nil {
		cfg = *config
	}
	const op = "open"
	if pool == nil {
		return nil, invalid(diag.InvalidOption, op, "client", "the pool is nil")
	}
	if err := checkBounds(op, "client",
		bounded{name: "ControlConns", value: int64(cfg.ControlConns), low: 2, high: 100},
		bounded{name: "StatementTimeout", value: int64(cfg.StatementTimeout), low: int64(time.Second), high: int64(time.Hour)}); err != nil {
		return nil, err
	}
	if cfg.Schema == "" {
		cfg.Schema = DefaultSchema
	}
	if cfg.ControlConns == 0 {
		cfg.ControlConns = 3
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	names, err := schema.NewNames(cfg.Schema)
	if err != nil {
		return nil, err
	}
	// The client's own connections go where the caller's pool goes, but no handler can hold them.
	poolConfig := pool.Config()
	listen := poolConfig.ConnConfig.Copy()
	if cfg.ListenDSN != "" {
		if listen, err = pgx.ParseConfig(cfg.ListenDSN); err != nil {
			// pgx's error repeats the DSN, which may hold a password.
			return nil, invalid(diag.InvalidOption, op, "client", "ListenDSN cannot be parsed")
		}
	}
	poolConfig.MaxConns = int32(cfg.ControlConns - 1)
	poolConfig.MinConns = 0
	poolConfig.MinIdleConns = 0
	control, err := pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		return nil, store.ClassifyNoEffect(op, "client", err)
	}
	// It connects when it is needed first.
	spareConfig := pool.Config()
	spareConfig.MaxConns, spareConfig.MinConns, spareConfig.MinIdleConns = 1, 0, 0
	spare, err := pgxpool.NewWithConfig(ctx, spareConfig)
	if err != nil {
		control.Close()
		return nil, store.ClassifyNoEffect(op, "client", err)
	}
	c := &Client{pool: pool, control: control, spare: spare, logger: cfg.Logger, strict: cfg.StrictRegistration, hooks: cfg.Hooks, gate: &consume.Gate{}, strays: &consume.Strays{}, managed: !cfg.DisableManager}
	if err := c.prepare(ctx, names, cfg.ManualMigration); err != nil {
		control.Close()
		spare.Close()
		return nil, err
	}
	c.store = store.New(names, control, pool, cfg.StatementTimeout, cfg.Logger)
	c.pulse = &pulse{send: c.store.BeatAll}
	c.hub = wake.NewHub(wake.Config{Source: source{store: c.store, listen: listen}, Logger: cfg.Logger, PollOnly: cfg.PollOnly})
	c.batcher = produce.New(c.store, func(stream int, direct bool) { c.announce(stream, direct) })
	c.stop, c.cancel = context.WithCancel(context.Background())
	return c, nil
}

// prepare makes sure that the server and the schema are such as this program needs.
func (c *Client) prepare(ctx context.Context, names *schema.Names, manual bool) error {
	ctx, cancel := context.WithTimeout(ctx, store.DefaultTimeout)
	defer cancel()
	const op = "open"
	object := "schema " + names.Quoted
	conn, err := c.control.Acquire(ctx)
	if err != nil {
		return store.ClassifyNoEffect(op, object, err)
	}
	defer conn.Release()
	var standby bool
	var encoding string
	if err := conn.QueryRow(ctx, `select pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('server_encoding')`).Scan(&standby, &encoding); err != nil {
		return store.ClassifyNoEffect(op, object, err)
	}
	if standby {
		return &diag.Error{Code: diag.ReadOnlyServer, Op: op, Object: object, Detail: "the server is a standby", Retryable: true}
	}
	if encoding != "UTF8" {
		return invalid(diag.UnsupportedPG, op, object, "the database's encoding is "+encoding+"; it must be UTF8")
	}
	state, err := schema.Look(ctx, conn, names)
	if err != nil {
		return store.ClassifyNoEffect(op, object, err)
	}
	if state.Current() {
		return nil
	}
	if manual || state.Newer || state.Altered != 0 {
		return state.Check(names)
	}
	applied, err := schema.Up(ctx, conn, names)
	if err != nil {
		err = store.ClassifyNoEffect("migrate", object, err)
		if code := diag.CodeOf(err); code == diag.DatabaseError || code == diag.StreamBusy {
			return &diag.Error{Code: diag.MigrationFailed, Op: "migrate", Object: object, Retryable: diag.Retryable(err), Err: err}
		}
		return err
	}
	if applied > 0 {
		c.logger.LogAttrs(ctx, slog.LevelInfo, "schema migrated", slog.String("schema", names.Schema), slog.Int("steps", applied), slog.Int("version", state.Latest))
	}
	return nil
}

// announce tells of a commit: ids exist already, or rows wait for theirs.
func (c *Client) announce(stream int, direct bool) {
	if direct {
		c.hub.Announce(stream, wake.Appended)
	} else {
		c.hub.Announce(stream, wake.Inboxed)
	}
}

// Close ends the client's sessions as if their contexts had ended and awaits them, for their StopTimeout at the longest; then it sends what is on its way until ctx ends, gives its leases on
// upkeep back and closes its own connections. It returns when every goroutine that the client started has ended, but for handlers that ignore their context. Closing twice is fine.
func (c *Client) Close(ctx context.Context) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	upkeep := c.upkeep
	c.mu.Unlock()
	c.cancel()
	// Handlers that are finishing may still produce, so the sessions come first.
	c.sessions.Wait()
	c.batcher.Close(ctx)
	if upkeep != nil {
		// A fresh deadline: what a stop has to clean up must not fail because the caller's context has ended.
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		upkeep.Stop(cleanup)
		cancel()
	}
	c.hub.Close(ctx)
	c.control.Close()
	c.spare.Close()
}

// enter counts a session in; false: the client is closed. The first one also starts upkeep.
func (c *Client) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.sessions.Add(1)
	c.startUpkeep()
	return true
}

// startUpkeep is called under mu.
func (c *Client) startUpkeep() {
	if c.managed && c.upkeep == nil && !c.closed {
		c.upkeep = manager.Start(c.store, c.logger, manager.Duties(func(stream int) { c.announce(stream, true) }))
	}
}

// keepUp starts upkeep, unless this process does without, and lets a duty look at once.
func (c *Client) keepUp(duty string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.startUpkeep()
	if c.upkeep != nil {
		c.upkeep.Kick(duty)
	}
}

// InTx runs f in a transaction of the caller's pool, READ COMMITTED, and commits it if f returns nil. Messages that f produces through the given tx are announced right
// after the commit. An error of f rolls back and is returned as it is. If the commit's confirmation is lost the error is ErrOutcomeUnknown.
func (c *Client) InTx(ctx context.Context, f func(ctx context.Context, tx pgx.Tx) error) (err error) {
	const op = "run"
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return store.ClassifyNoEffect(op, "transaction", err)
	}
	defer conn.Release()
	inner, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return store.ClassifyNoEffect(op, "transaction", err)
	}
	tx := &announcingTx{Tx: inner, streams: map[int]struct{}{}}
	committed := false
	defer func() {
		if committed {
			return
		}
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if rollback := inner.Rollback(cleanup); rollback != nil && !errors.Is(rollback, pgx.ErrTxClosed) && err == nil {
			err = store.ClassifyNoEffect(op, "transaction", rollback)
		}
	}()
	if err := f(ctx, tx); err != nil {
		return err
	}
	if err := inner.Commit(ctx); err != nil {
		return store.Classify("commit", "transaction", err)
	}
	committed = true
	for stream := range tx.streams {
		c.announce(stream, false)
	}
	return nil
}

// announcer is a transaction whose end is known here, so that what it produced is announced after the commit and not before.
type announcer interface{ producedTo(stream int) }

// announcingTx remembers which streams were produced to.
type announcingTx struct {
	pgx.Tx
	streams map[int]struct{}
}

func (tx *announcingTx) producedTo(stream int) { tx.streams[stream] = struct{}{} }

// StreamInfo is a stream as ListStreams and GetStream return it.
type StreamInfo struct {
	ID        int
	Name      string
	Kind      string // of the payloads: "json", or "bytes" for a codec's
	FirstID   int64  // ids below it are gone
	CreatedAt time.Time
	// The limits of its declaration, as in StreamConfig.
	MaxPayload, MaxKey, MaxHeaders int
	IdempotencyWindow              time.Duration
	Keyed, Compacted               bool
	TombstoneTTL, CompactionLag    time.Duration // 0: not compacted
}

func streamInfo(row *store.Stream) StreamInfo {
	var limits storedStream
	// What a later program wrote may not be readable; a list of streams is still one.
	_ = json.Unmarshal(row.Config, &limits)
	return StreamInfo{ID: row.ID, Name: row.Name, Kind: row.Kind, FirstID: row.FirstID, CreatedAt: row.CreatedAt,
		MaxPayload: limits.MaxPayload, MaxKey: limits.MaxKey, MaxHeaders: limits.MaxHeaders, IdempotencyWindow: limits.idempotencyWindow(), Keyed: limits.Keyed,
		Compacted: limits.Compacted, TombstoneTTL: time.Duration(limits.TTLMS) * time.Millisecond, CompactionLag: time.Duration(limits.LagMS) * time.Millisecond}
}

// ListStreams returns all streams by name.
func (c *Client) ListStreams(ctx context.Context) ([]StreamInfo, error) {
	rows, err := c.store.ListStreams(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]StreamInfo, 0, len(rows))
	for _, row := range rows {
		all = append(all, streamInfo(row))
	}
	return all, nil
}

// GetStream returns one stream, or ErrStreamNotFound.
func (c *Client) GetStream(ctx context.Context, name string) (*StreamInfo, error) {
	if err := checkName("get", "stream", name); err != nil {
		return nil, err
	}
	row, err := c.store.GetStream(ctx, name)
	if err != nil {
		return nil, err
	}
	info := streamInfo(row)
	return &info, nil
}

// DeleteStream deletes a stream with its messages, groups and dead letters. From its first step on the stream is gone for everybody (ErrStreamNotFound) and its name is free; if the call
// fails or is interrupted after that, upkeep finishes it. Messages of transactions that commit later are dropped.
func (c *Client) DeleteStream(ctx context.Context, name string) error {
	return c.Stream(name).Delete(ctx, nil)
}

// GetGroup returns where a group stands, and why; it is Group(stream, group).Status.
func (c *Client) GetGroup(ctx context.Context, stream, group string) (*GroupStatus, error) {
	return c.Group(stream, group).Status(ctx)
}

// renamed puts the user's name for an object into an error of the store, which knows it by its id.
func renamed(err error, object string) error {
	e, ok := errors.AsType[*diag.Error](err)
	if !ok {
		return err
	}
	c := *e
	c.Object = object
	return &c
}

// source is what the wake hub asks of the database.
type source struct {
	store  *store.Store
	listen *pgx.ConnConfig
}

func (s source) Probe(ctx context.Context, groups []int) ([]wake.Probed, error) {
	rows, err := s.store.Probe(ctx, groups)
	if err != nil {
		return nil, err
	}
	probed := make([]wake.Probed, 0, len(rows))
	for _, row := range rows {
		probed = append(probed, wake.Probed(row))
	}
	return probed, nil
}

func (s source) Drain(ctx context.Context, stream int) (wake.DrainReply, error) {
	reply, err := s.store.Drain(ctx, stream, 1000)
	return wake.DrainReply(reply), err
}

func (s source) Notify(ctx context.Context, payload string) error {
	return s.store.Notify(ctx, []string{payload})
}

func (s source) Listen(ctx context.Context) (wake.Listener, error) {
	return wake.ListenPGX(ctx, s.listen, s.store.Names().Channel)
}
