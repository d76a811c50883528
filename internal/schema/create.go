package schema

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Create makes a new installation at the latest step, in one transaction. It is for tests, which make many: a third of what Up takes, which commits each step and looks before it. The schema must not exist.
// Functions are not checked as they are created, and the commit does not wait for the disk.
func Create(ctx context.Context, conn Conn, names *Names) error {
	steps, err := Migrations()
	if err != nil {
		return err
	}
	var text strings.Builder
	text.WriteString("set local synchronous_commit = off; set local check_function_bodies = off; create schema {schema};\n" + migrationTable + ";\n")
	for _, step := range steps {
		if !step.Transaction {
			return fmt.Errorf("migration step %d (%s) cannot run together with others", step.Version, step.Title)
		}
		fmt.Fprintf(&text, "%s\n;insert into {schema}.migration (version, name, checksum, breaking) values (%d, '%s', '%s', %t);\n",
			step.SQL, step.Version, strings.ReplaceAll(step.Title, "'", "''"), step.Checksum, step.Breaking)
	}
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
		// Several statements in one text: see apply.
		if _, err := tx.Conn().PgConn().Exec(ctx, names.Expand(text.String())).ReadAll(); err != nil {
			return fmt.Errorf("create schema %s: %w", names.Quoted, err)
		}
		return nil
	})
}

// migrationTable is where the applied steps are noted.
const migrationTable = `create table if not exists {schema}.migration (version integer primary key, name text not null, checksum text not null,
			breaking boolean not null, applied_at timestamptz not null default clock_timestamp())`
