package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/schema"
	"github.com/sqlstreams/sqlstreams/internal/store"
)

func newMigrate(a *app) *cobra.Command {
	return group("migrate", "Create and upgrade the installation's schema.",
		`Create and upgrade the installation's schema in numbered steps. Each step commits by itself, with its row in the table of migrations, so a run that was
interrupted goes on where it stopped.`,
		`  sqlstreams migrate status
  sqlstreams migrate up --dry-run
  sqlstreams migrate up`,
		newMigrateUp(a), newMigrateStatus(a), newMigrateSQL(a))
}

// migrating is a connection on which the schema is looked at and changed, without a client: there may be no schema yet.
type migrating struct {
	pool  *pgxpool.Pool
	conn  *pgxpool.Conn
	names *schema.Names
	state schema.State
	steps []schema.Migration
}

func (a *app) openMigrating(ctx context.Context) (*migrating, error) {
	names, err := schema.NewNames(a.flags.schema)
	if err != nil {
		return nil, err
	}
	steps, err := schema.Migrations()
	if err != nil {
		return nil, err
	}
	pool, err := a.openPool(ctx)
	if err != nil {
		return nil, err
	}
	m := &migrating{pool: pool, names: names, steps: steps}
	if m.conn, err = pool.Acquire(ctx); err != nil {
		pool.Close()
		return nil, store.ClassifyNoEffect("open", m.object(), err)
	}
	if m.state, err = schema.Look(ctx, m.conn, names); err != nil {
		m.close()
		return nil, store.ClassifyNoEffect("look at", m.object(), err)
	}
	return m, nil
}

func (m *migrating) close() {
	m.conn.Release()
	m.pool.Close()
}

func (m *migrating) object() string { return "schema " + m.names.Quoted }

// pending are the steps that are not applied.
func (m *migrating) pending() []schema.Migration {
	return m.steps[min(m.state.Version, len(m.steps)):]
}

type stepView struct {
	Version     int        `json:"version"`
	Title       string     `json:"title"`
	Breaking    bool       `json:"breaking"`
	LongestLock string     `json:"longest_lock"`
	AppliedAt   *time.Time `json:"applied_at"`
}

func viewStep(m schema.Migration) stepView {
	return stepView{Version: m.Version, Title: m.Title, Breaking: m.Breaking, LongestLock: m.LongestLock}
}

func (a *app) writeSteps(w io.Writer, steps []stepView) error {
	t := newTable("STEP", "TITLE", "BREAKING", "APPLIED", "LONGEST LOCK").numbers(0)
	for _, s := range steps {
		applied := "no"
		if s.AppliedAt != nil {
			applied = stamp(*s.AppliedAt)
		}
		t.add(number(s.Version), s.Title, yesNo(s.Breaking), applied, s.LongestLock)
	}
	return a.writeTable(w, t, "no steps")
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func newMigrateUp(a *app) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Apply the steps that are not applied yet.",
		Long: `Apply the steps that are not applied yet, in order. Run it as the role that owns, or may create, the schema. Several may run at once: one works, the others wait
for it. A step that cannot get its locks is tried again for some time; nothing waits behind it for more than 5 seconds.`,
		Example: `  sqlstreams migrate up --dry-run
  sqlstreams migrate up
  sqlstreams migrate up --schema billing --timeout 10m`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !dryRun {
				if err := a.changes(cmd); err != nil {
					return err
				}
			}
			ctx, cancel := a.once(cmd)
			defer cancel()
			return a.migrateUp(ctx, dryRun)
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be applied, and apply nothing")
	return cmd
}

type migrateUpView struct {
	Schema  string     `json:"schema"`
	From    int        `json:"from"`
	Version int        `json:"version"`
	Applied int        `json:"applied"`
	DryRun  bool       `json:"dry_run"`
	Steps   []stepView `json:"steps"`
}

func (a *app) migrateUp(ctx context.Context, dryRun bool) error {
	m, err := a.openMigrating(ctx)
	if err != nil {
		return err
	}
	defer m.close()
	if m.state.Newer || m.state.Altered != 0 {
		return m.state.Check(m.names)
	}
	view := migrateUpView{Schema: m.names.Schema, From: m.state.Version, Version: m.state.Version, DryRun: dryRun, Steps: []stepView{}}
	for _, s := range m.pending() {
		view.Steps = append(view.Steps, viewStep(s))
	}
	if !dryRun {
		applied, err := schema.Up(ctx, m.conn, m.names)
		if err != nil {
			return m.failed(applied, err)
		}
		view.Applied, view.Version = applied, max(m.state.Version, m.state.Latest)
	}
	return a.show(view, func(w io.Writer) error {
		switch {
		case len(view.Steps) == 0:
			_, err := fmt.Fprintf(w, "nothing to do: schema %s is at version %d\n", m.names.Quoted, view.Version)
			return err
		case dryRun:
			if _, err := fmt.Fprintf(w, "%s would be applied to schema %s:\n", plural(len(view.Steps), "step", "steps"), m.names.Quoted); err != nil {
				return err
			}
			return a.writeSteps(w, view.Steps)
		}
		_, err := fmt.Fprintf(w, "applied %s: schema %s is at version %d\n", plural(view.Applied, "step", "steps"), m.names.Quoted, view.Version)
		return err
	})
}

// failed says how far a run came: steps before the one that failed are there to stay.
func (m *migrating) failed(applied int, err error) error {
	classified := store.ClassifyNoEffect("migrate", m.object(), err)
	if code := diag.CodeOf(classified); code == diag.DatabaseError || code == diag.StreamBusy || applied > 0 && code == diag.StatementTimeout {
		e := &diag.Error{Code: diag.MigrationFailed, Op: "migrate", Object: m.object(), Retryable: diag.Retryable(classified), Err: classified}
		if applied > 0 {
			e.Detail = fmt.Sprintf("it stopped after %s, which stay applied", plural(applied, "step", "steps"))
		}
		return e
	}
	return classified
}

type migrateStatusView struct {
	Schema  string     `json:"schema"`
	State   string     `json:"state"` // missing, old, current, newer, altered
	Version int        `json:"version"`
	Latest  int        `json:"latest"`
	Steps   []stepView `json:"steps"`
}

func newMigrateStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Say which steps are applied.",
		Long: `Say which steps are applied and whether this program can work with the schema. It takes no lock.

Exit code 1: a step is missing, or the schema is not one that this program can work with.`,
		Example: `  sqlstreams migrate status
  sqlstreams migrate status -o json`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := a.once(cmd)
			defer cancel()
			m, err := a.openMigrating(ctx)
			if err != nil {
				return err
			}
			defer m.close()
			view, err := m.status(ctx)
			if err != nil {
				return err
			}
			err = a.show(view, func(w io.Writer) error {
				if _, err := fmt.Fprintf(w, "schema %s is at version %d, this program knows %d: %s\n", m.names.Quoted, view.Version, view.Latest, view.State); err != nil {
					return err
				}
				return a.writeSteps(w, view.Steps)
			})
			if err != nil {
				return err
			}
			return forOperators(m.state.Check(m.names))
		},
	}
}

func (m *migrating) status(ctx context.Context) (migrateStatusView, error) {
	view := migrateStatusView{Schema: m.names.Schema, Version: m.state.Version, Latest: m.state.Latest, State: "current", Steps: []stepView{}}
	switch {
	case m.state.Newer:
		view.State = "newer"
	case m.state.Altered != 0:
		view.State = "altered"
	case !m.state.Exists:
		view.State = "missing"
	case !m.state.Current():
		view.State = "old"
	}
	for _, s := range m.steps {
		view.Steps = append(view.Steps, viewStep(s))
	}
	if !m.state.Exists {
		return view, nil
	}
	rows, err := m.conn.Query(ctx, m.names.Expand(`select m.version, m.name, m.breaking, m.applied_at from {schema}.migration m order by m.version`))
	if err != nil {
		return view, store.ClassifyNoEffect("look at", m.object(), err)
	}
	defer rows.Close()
	for rows.Next() {
		var s stepView
		var applied time.Time
		if err := rows.Scan(&s.Version, &s.Title, &s.Breaking, &applied); err != nil {
			return view, store.ClassifyNoEffect("look at", m.object(), err)
		}
		if s.AppliedAt = at(applied); s.Version <= len(view.Steps) {
			view.Steps[s.Version-1].AppliedAt = s.AppliedAt
		} else {
			view.Steps = append(view.Steps, s)
		}
	}
	return view, store.ClassifyNoEffect("look at", m.object(), rows.Err())
}

func newMigrateSQL(a *app) *cobra.Command {
	var after int
	cmd := &cobra.Command{
		Use:   "sql",
		Short: "Print the steps as SQL, for another tool to apply.",
		Long: `Print the steps as plain SQL, for psql or another tool for migrations: each step is one transaction that also writes its row in the table of migrations, so that
programs, and migrate up, find it applied. It asks no database. Programs that are not to migrate by themselves set ClientConfig.ManualMigration.`,
		Example: `  sqlstreams migrate sql > sqlstreams.sql
  sqlstreams migrate sql | psql -v ON_ERROR_STOP=1 "$DATABASE_URL"
  sqlstreams migrate sql --after 3`,
		Args: args(),
		RunE: func(*cobra.Command, []string) error {
			names, err := schema.NewNames(a.flags.schema)
			if err != nil {
				return err
			}
			steps, err := schema.Migrations()
			if err != nil {
				return err
			}
			if after < 0 || after > len(steps) {
				return usagef("--after is %d; this program knows the steps 1 to %d", after, len(steps))
			}
			_, err = io.WriteString(a.env.Stdout, migrationSQL(names, steps[after:]))
			return err
		},
	}
	cmd.Flags().IntVar(&after, "after", 0, "leave the steps out that are applied already, up to this one")
	return cmd
}

// migrationSQL writes down what schema.Up does. That the two agree is tested.
func migrationSQL(names *schema.Names, steps []schema.Migration) string {
	var b strings.Builder
	for _, s := range steps {
		fmt.Fprintf(&b, "-- SQLStreams, step %d: %s\n-- longest lock: %s\nbegin isolation level read committed;\nset local lock_timeout = '5s';\nselect pg_catalog.pg_advisory_xact_lock(%d, 0);\n",
			s.Version, s.Title, s.LongestLock, names.Lock("migrate"))
		if s.Version == 1 {
			b.WriteString(names.Expand(firstSQL))
		}
		b.WriteString(names.Expand(strings.TrimRight(s.SQL, "\n")))
		fmt.Fprintf(&b, "\n%s\ncommit;\n\n", names.Expand(fmt.Sprintf(`insert into {schema}.migration (version, name, checksum, breaking) values (%d, %s, '%s', %t);`,
			s.Version, literal(s.Title), s.Checksum, s.Breaking)))
	}
	return b.String()
}

// firstSQL: "create schema if not exists" would need the right to create one even where one is.
const firstSQL = `do $sqlstreams$
begin
    if not exists (select from pg_catalog.pg_namespace n where n.oid = pg_catalog.to_regnamespace('{schema_text}')) then
        create schema {schema};
    end if;
end
$sqlstreams$;
create table if not exists {schema}.migration (version integer primary key, name text not null, checksum text not null,
    breaking boolean not null, applied_at timestamptz not null default clock_timestamp());
`

func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
