package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/ledger"
)

// workerVariable is the environment variable that makes a process of this program a worker.
const workerVariable = "SQLSTREAMS_CHAOS_WORKER"

// The roles of workers.
const (
	roleProducer = "producer"
	roleConsumer = "consumer"
)

// What a worker says and is told, on its standard output and input.
const (
	readyLine = "ready"
	stopLine  = "stop"
)

// workerConfig is all that a worker needs to know.
type workerConfig struct {
	Name    string `json:"name"`
	Role    string `json:"role"`
	Dir     string `json:"dir"` // of the ledgers
	DSN     string `json:"dsn"`
	Stream  string `json:"stream"`
	Seed    uint64 `json:"seed"`
	Managed bool   `json:"managed"` // it may run upkeep

	// Consumers.
	Groups   []membership  `json:"groups,omitempty"`
	Handlers int           `json:"handlers,omitempty"` // of each group
	Mood     string        `json:"mood,omitempty"`
	Busy     time.Duration `json:"busy,omitempty"` // how long each handler takes, in moodBusy

	// Producers.
	Mix   string  `json:"mix,omitempty"`
	Rate  float64 `json:"rate,omitempty"`  // messages a second
	Quota int     `json:"quota,omitempty"` // confirmed messages after which it waits for its end; 0: none
	Size  int     `json:"size,omitempty"`  // bytes of a payload, about
	Keys  int     `json:"keys,omitempty"`  // how many, in mixKeys
}

// membership is a group in which a process consumes.
type membership struct {
	Group   string              `json:"group"`
	Order   sqlstreams.KeyOrder `json:"order,omitempty"`   // overrides what messages request
	Effects bool                `json:"effects,omitempty"` // handlers write to a table, in the transaction that records their message
}

func (m membership) ordered() bool { return m.Order == sqlstreams.Ordered }

// in says whether the process consumes in a group.
func (c *workerConfig) in(group string) bool {
	return slices.ContainsFunc(c.Groups, func(m membership) bool { return m.Group == group })
}

// withEffects returns the groups whose handlers leave effects.
func (c *workerConfig) withEffects() (all []membership) {
	for _, m := range c.Groups {
		if m.Effects {
			all = append(all, m)
		}
	}
	return all
}

// IsWorker says whether this process was started as a worker: then it must call WorkerMain and do nothing else.
func IsWorker() bool { return os.Getenv(workerVariable) != "" }

// WorkerMain is the whole program of a worker. It returns the exit code.
func WorkerMain() int {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	var cfg workerConfig
	if err := json.Unmarshal([]byte(os.Getenv(workerVariable)), &cfg); err != nil {
		log.Error("configuration", "error", err)
		return 2
	}
	if err := work(&cfg, log); err != nil {
		log.Error("worker failed", "error", err)
		return 1
	}
	return 0
}

// worker is what both roles share.
type worker struct {
	cfg    *workerConfig
	log    *slog.Logger
	book   *ledger.Writer
	pool   *pgxpool.Pool
	client *sqlstreams.Client
	stream *sqlstreams.Stream[Payload]
}

func work(cfg *workerConfig, log *slog.Logger) (err error) {
	w := &worker{cfg: cfg, log: log}
	if w.book, err = ledger.Create(cfg.Dir, ledger.Process{Name: cfg.Name, Role: cfg.Role, PID: os.Getpid()}); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	// The reader ends with the process: nothing else can end a read of standard input.
	go obey(os.Stdin, func() {
		if err := w.book.Leaving(); err != nil {
			log.Error("ledger", "error", err)
		}
		stop()
	})
	if err := w.serve(ctx); err != nil {
		return err
	}
	return w.book.Close()
}

// obey waits for the word to stop. If the input ends without it, the run is gone, and with it everything that this process is for.
func obey(in io.Reader, leave func()) {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if lines.Text() == stopLine {
			leave()
			return
		}
	}
	os.Exit(3)
}

func (w *worker) serve(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(w.cfg.DSN)
	if err != nil {
		return err
	}
	// By this name the run finds the connections of a process.
	config.ConnConfig.RuntimeParams["application_name"] = w.cfg.Name
	config.MaxConns = int32(6 + len(w.cfg.withEffects())*w.cfg.Handlers)
	if w.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	defer w.pool.Close()
	if !w.connect(ctx) {
		return nil
	}
	if w.cfg.Role == roleProducer {
		err = w.produce(ctx)
	} else {
		err = w.consume(ctx)
	}
	cleanup, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	w.client.Close(cleanup)
	return err
}

// connect opens the client and the stream, however long the server is away; false: told to stop before.
func (w *worker) connect(ctx context.Context) bool {
	return w.insist(ctx, "open", func() error {
		var err error
		if w.client == nil {
			var hooks []sqlstreams.Hook
			if w.cfg.Role == roleConsumer {
				hooks = append(hooks, watcher{w})
			}
			w.client, err = sqlstreams.NewClient(ctx, w.pool, &sqlstreams.ClientConfig{Logger: w.log, Hooks: hooks, DisableManager: !w.cfg.Managed})
			if err != nil {
				return err
			}
		}
		w.stream, err = sqlstreams.RegisterStream[Payload](ctx, w.client, w.cfg.Stream, nil)
		return err
	})
}

// insist tries until it works; false: told to stop before.
func (w *worker) insist(ctx context.Context, what string, try func() error) bool {
	for {
		err := try()
		if err == nil {
			return true
		}
		w.log.Warn("not yet", "what", what, "error", err)
		if !pause(ctx, 50*time.Millisecond) {
			return false
		}
	}
}

// ready tells the run that the process may be harmed.
func (w *worker) ready() error {
	_, err := fmt.Println(readyLine)
	return err
}

// pause waits; false: ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Payload is what is produced. The body follows from id and size, so that a handler sees whether it is what was produced.
type Payload struct {
	ID   string `json:"id"`
	Size int    `json:"size"`
	Body string `json:"body"`
}

func newPayload(id string, size int) *Payload {
	return &Payload{ID: id, Size: size, Body: body(id, size)}
}

func (p *Payload) sound() bool { return p.Size >= 0 && p.Size <= 1<<20 && p.Body == body(p.ID, p.Size) }

// body is text with what is special in JSON in it.
func body(id string, size int) string {
	var b strings.Builder
	b.Grow(size + len(id) + 16)
	for b.Len() < size {
		b.WriteString(id)
		b.WriteString(" <\"é\\u0000\t> ")
	}
	return b.String()
}

// outcomeOf is what an error of a producing call says about its messages.
func outcomeOf(err error) ledger.Outcome {
	if err == nil {
		return ledger.Confirmed
	}
	if e, ok := errors.AsType[*sqlstreams.Error](err); errors.Is(err, sqlstreams.ErrOutcomeUnknown) || ok && e.OutcomeUnknown {
		return ledger.Unknown
	}
	return ledger.Refused
}
