package schema

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// MinServer is the oldest supported server_version_num.
const MinServer = 140000

// State is what an installation's schema looks like to this program.
type State struct {
	Exists  bool // the schema's table of migrations is there
	Version int  // the highest applied step; 0: none
	Latest  int  // the highest step this program knows
	Newer   bool // a step that this program does not know is breaking
	Altered int  // a step whose text differs from the one applied; 0: none
}

// Current reports whether nothing is to be done.
func (s State) Current() bool {
	return s.Exists && s.Version >= s.Latest && !s.Newer && s.Altered == 0
}

// Conn is what migrating needs of a connection.
type Conn interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// Look reads the catalog and the table of migrations. It takes no lock that DDL or a dump would wait for or hold up.
func Look(ctx context.Context, conn Conn, names *Names) (State, error) {
	steps, err := Migrations()
	if err != nil {
		return State{}, err
	}
	state := State{Latest: len(steps)}
	err = conn.QueryRow(ctx, `select exists (select from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
		where n.nspname = $1 and c.relname = 'migration' and c.relkind = 'r')`, names.Schema).Scan(&state.Exists)
	if err != nil || !state.Exists {
		return state, err
	}
	rows, err := conn.Query(ctx, names.Expand(`select m.version, m.checksum, m.breaking from {schema}.migration m order by m.version`))
	if err != nil {
		return state, err
	}
	defer rows.Close()
	for rows.Next() {
		var version int
		var checksum string
		var breaking bool
		if err := rows.Scan(&version, &checksum, &breaking); err != nil {
			return state, err
		}
		state.Version = version
		if version > len(steps) {
			state.Newer = state.Newer || breaking
		} else if steps[version-1].Checksum != checksum && state.Altered == 0 {
			state.Altered = version
		}
	}
	return state, rows.Err()
}

// Check turns a state that this program cannot work with into its error; nil means go on.
func (s State) Check(names *Names) error {
	object := "schema " + names.Quoted
	switch {
	case s.Newer:
		return &diag.Error{Code: diag.SchemaNewer, Op: "use", Object: object, Detail: fmt.Sprintf("it is at version %d, this program knows %d, and a step between is breaking", s.Version, s.Latest)}
	case s.Altered != 0:
		return &diag.Error{Code: diag.SchemaAltered, Op: "use", Object: object, Detail: fmt.Sprintf("step %d was applied with another text", s.Altered)}
	case !s.Exists || s.Version < s.Latest:
		return &diag.Error{Code: diag.SchemaOld, Op: "use", Object: object,
			Detail: fmt.Sprintf("it is at version %d, this program needs %d: run `sqlstreams migrate up`, or leave ClientConfig.ManualMigration off", s.Version, s.Latest)}
	}
	return nil
}

// Up brings the installation to the latest step. Several programs may call it at once: the advisory lock lets one work, the others find it done.
// Each step commits with its row in the table of migrations, so an interrupted run goes on where it stopped.
func Up(ctx context.Context, conn Conn, names *Names) (applied int, err error) {
	var server int
	if err := conn.QueryRow(ctx, `select current_setting('server_version_num')::int`).Scan(&server); err != nil {
		return 0, err
	}
	if server < MinServer {
		return 0, &diag.Error{Code: diag.UnsupportedPG, Op: "migrate", Object: "schema " + names.Quoted, Detail: fmt.Sprintf("Postgres 14 or newer is needed, this is %d", server/10000)}
	}
	state, err := Look(ctx, conn, names)
	if err != nil || state.Current() {
		return 0, err
	}
	if state.Newer || state.Altered != 0 {
		return 0, state.Check(names)
	}
	steps, err := Migrations()
	if err != nil {
		return 0, err
	}
	for _, step := range steps {
		for attempt := 0; ; attempt++ {
			did, err := apply(ctx, conn, names, step)
			if err == nil {
				if did {
					applied++
				}
				break
			}
			// A lock that somebody holds is waited for in pieces, so that nobody queues behind this for long.
			if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "55P03" && attempt < 30 {
				timer := time.NewTimer(time.Duration(attempt+1) * 50 * time.Millisecond)
				select {
				case <-timer.C:
					continue
				case <-ctx.Done():
					timer.Stop()
				}
			}
			return applied, fmt.Errorf("migration step %d (%s): %w", step.Version, step.Title, err)
		}
	}
	return applied, nil
}

func apply(ctx context.Context, conn Conn, names *Names, step Migration) (did bool, err error) {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return false, err
	}
	// A fresh context: the caller's may have ended, and the connection should not be lost for that.
	defer func() {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if rollback := tx.Rollback(cleanup); rollback != nil && !errors.Is(rollback, pgx.ErrTxClosed) && err == nil {
			err = rollback
		}
	}()
	if _, err := tx.Exec(ctx, `select set_config('lock_timeout', '5s', true)`); err != nil {
		return false, err
	}
	if _, err := tx.Exec(ctx, `select pg_advisory_xact_lock($1::int, 0)`, names.Lock("migrate")); err != nil {
		return false, err
	}
	if step.Version == 1 {
		var exists bool
		if err := tx.QueryRow(ctx, `select exists (select from pg_catalog.pg_namespace n where n.nspname = $1)`, names.Schema).Scan(&exists); err != nil {
			return false, err
		}
		if !exists {
			if _, err := tx.Exec(ctx, names.Expand(`create schema {schema}`)); err != nil {
				return false, err
			}
		}
		if _, err := tx.Exec(ctx, names.Expand(migrationTable)); err != nil {
			return false, err
		}
	}
	var done bool
	if err := tx.QueryRow(ctx, names.Expand(`select exists (select from {schema}.migration m where m.version = $1)`), step.Version).Scan(&done); err != nil {
		return false, err
	}
	if done {
		return false, tx.Commit(ctx)
	}
	// Several statements in one text: only the simple protocol takes them. It holds nothing that a user gave but the quoted schema.
	if _, err := tx.Conn().PgConn().Exec(ctx, names.Expand(step.SQL)).ReadAll(); err != nil {
		return false, err
	}
	if _, err := tx.Exec(ctx, names.Expand(`insert into {schema}.migration (version, name, checksum, breaking) values ($1, $2, $3, $4)`),
		step.Version, step.Title, step.Checksum, step.Breaking); err != nil {
		return false, err
	}
	return true, tx.Commit(ctx)
}
