package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgserver"
)

// devView is what dev says in JSON, once the server is ready.
type devView struct {
	DatabaseURL string `json:"database_url"`
	Schema      string `json:"schema"`
	Port        int    `json:"port"`
	PostgreSQL  int    `json:"postgresql"` // major version
}

func newDev(a *app) *cobra.Command {
	var port int
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a disposable Postgres with the schema in it, until Ctrl-C.",
		Long: `Start a Postgres server of its own on this machine with the schema in it, and print how to reach it. Ctrl-C, and any other end of this command, stops the server and
removes all that it held. It listens on 127.0.0.1 only and asks for no password.

It needs PostgreSQL's programs (initdb, postgres) on this machine; SQLSTREAMS_PG_BIN says where they are if they are not found.`,
		Example: `  sqlstreams dev
  sqlstreams dev --port 5433
  sqlstreams dev -o json | jq -r .database_url`,
		Args: args(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.changes(cmd); err != nil {
				return err
			}
			if port < 0 || port > 65535 {
				return usagef("--port is %d; it is 1 to 65535, or 0 for any that is free", port)
			}
			if a.flags.database != "" {
				return usagef("dev starts a server of its own; --database does not go with it")
			}
			// A closed terminal ends it in good order, too.
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGHUP)
			defer stop()
			return a.dev(ctx, port)
		},
	}
	cmd.Flags().IntVar(&port, "port", 0, "the port to listen on (default: any that is free)")
	return cmd
}

func (a *app) dev(ctx context.Context, port int) (err error) {
	if err := portIsFree(ctx, port); err != nil {
		return err
	}
	server, err := pgserver.Start(ctx, pgserver.Options{Port: port})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	if err := a.prepareDev(ctx, server); err != nil {
		return err
	}
	if err := a.sayDev(server); err != nil {
		return err
	}
	for wait(ctx, watchEvery) {
		if server.PID() == 0 {
			return failf("the server has ended by itself; the end of its log:\n%s", server.LogTail())
		}
	}
	return nil
}

// portIsFree says in a sentence what the server would say in a page of log.
func portIsFree(ctx context.Context, port int) error {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return &failure{err: fmt.Errorf("port %d cannot be listened on: %w", port, err), hint: "give another --port, or none: then one that is free is taken"}
	}
	return ln.Close()
}

// prepareDev creates the schema.
func (a *app) prepareDev(ctx context.Context, server *pgserver.Server) error {
	ctx, cancel := context.WithTimeout(ctx, a.flags.timeout)
	defer cancel()
	a.flags.database = server.DSN(pgserver.Superuser)
	conn, err := a.connect(ctx, openOptions{migrate: true})
	if err != nil {
		return err
	}
	conn.close()
	return nil
}

func (a *app) sayDev(server *pgserver.Server) error {
	view := devView{DatabaseURL: a.flags.database, Schema: a.flags.schema, Port: server.Port(), PostgreSQL: server.Major()}
	return a.show(view, func(w io.Writer) error {
		schema := ""
		if view.Schema != sqlstreams.DefaultSchema {
			schema = "export SQLSTREAMS_SCHEMA=" + shellQuote(view.Schema) + "\n"
		}
		_, err := fmt.Fprintf(w, `export DATABASE_URL=%s
%s
In another terminal, after the above:
  sqlstreams produce orders --create '{"id": 1}' '{"id": 2}'
  sqlstreams consume orders --group mailer
  sqlstreams group show orders mailer

PostgreSQL %d runs until Ctrl-C; then all that it holds is removed.
`, shellQuote(view.DatabaseURL), schema, view.PostgreSQL)
		return err
	})
}
