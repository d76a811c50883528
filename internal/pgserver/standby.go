package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"golang.org/x/sync/errgroup"
)

// Standby makes a hot standby that streams from this server. It starts as a
// copy, with the primary's configuration, HBA lines included, before its own
// Options.Settings; Options.Binaries and Durable are the primary's. Its name in
// synchronous_standby_names is the setting cluster_name, else walreceiver. It
// follows the primary's restarts until it is promoted.
//
// The copy is taken over the replication protocol, as pg_basebackup takes it:
// packages with only the server's programs lack that program.
func (s *Server) Standby(ctx context.Context, opts Options) (*Server, error) {
	standby, err := build(ctx, s.bin, opts, func(ctx context.Context, standby *Server) error {
		if err := s.copyTo(ctx, standby.DataDir(), standby.as); err != nil {
			return err
		}
		if err := writeFile(filepath.Join(standby.DataDir(), "standby.signal"), nil, standby.as); err != nil {
			return err
		}
		own := map[string]string{
			"primary_conninfo": "host=127.0.0.1 port=" + strconv.Itoa(s.port) + " user=" + Superuser + " sslmode=disable",
			// The default gives a primary that was restarted five seconds.
			"wal_retrieve_retry_interval": "100ms",
		}
		return writeConfig(standby.DataDir(), standby.as, []map[string]string{own, opts.Settings}, opts, len(opts.HBA) > 0)
	})
	if err != nil {
		return nil, fmt.Errorf("start a PostgreSQL %d standby: %w", s.bin.Major, err)
	}
	return standby, nil
}

// copyTo takes a base backup into the folder data, with the WAL that makes it
// consistent.
func (s *Server) copyTo(ctx context.Context, data string, as *account) error {
	cfg, err := pgconn.ParseConfig(s.SocketDSN("postgres"))
	if err != nil {
		return err
	}
	cfg.RuntimeParams["replication"] = "true"
	conn, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("connect for a base backup: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // the copy's error says more

	command := "BASE_BACKUP (LABEL 'standby', CHECKPOINT 'fast', WAL true, WAIT false, MANIFEST 'no')"
	if s.bin.Major < 15 {
		command = "BASE_BACKUP LABEL 'standby' FAST WAL NOWAIT MANIFEST 'no'"
	}
	conn.Frontend().Send(&pgproto3.Query{String: command})
	if err := conn.Frontend().Flush(); err != nil {
		return err
	}

	archive, into := io.Pipe()
	var g errgroup.Group
	g.Go(func() error {
		err := unpack(archive, data, as)
		if err == nil {
			// What follows the archive's end is padding.
			_, err = io.Copy(io.Discard, archive)
		}
		return errors.Join(err, archive.CloseWithError(err))
	})
	err = receiveBackup(ctx, conn, s.bin.Major, into)
	_ = into.CloseWithError(err) // never fails
	if err := errors.Join(err, g.Wait()); err != nil {
		return fmt.Errorf("base backup: %w", err)
	}
	return nil
}

// receiveBackup reads the answer to BASE_BACKUP: where it starts, the
// tablespaces, the archive, where it ends. Before version 15 each archive is a
// copy of its own; since then one copy holds all, each message with a letter in
// front. There is one archive, as these servers have no tablespaces of their own.
func receiveBackup(ctx context.Context, conn *pgconn.PgConn, major int, into io.Writer) error {
	archives := 0
	for {
		msg, err := conn.ReceiveMessage(ctx)
		if err != nil {
			return err
		}
		switch m := msg.(type) {
		case *pgproto3.ErrorResponse:
			return pgconn.ErrorResponseToPgError(m)
		case *pgproto3.ReadyForQuery:
			if archives == 0 {
				return errors.New("the server sent no archive")
			}
			return nil
		case *pgproto3.CopyOutResponse:
			if major < 15 {
				archives++
			}
		case *pgproto3.CopyData:
			data := m.Data
			if major >= 15 {
				if len(data) == 0 {
					return errors.New("an empty message in the archive")
				}
				kind := data[0]
				data = data[1:]
				if kind == 'n' {
					archives++
				}
				if kind != 'd' {
					continue
				}
			}
			if archives != 1 {
				return errors.New("servers with tablespaces cannot be copied")
			}
			if _, err := into.Write(data); err != nil {
				return err
			}
		}
	}
}
