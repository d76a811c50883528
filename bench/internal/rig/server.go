// Package rig is the server under measurement: durable, thrown away afterwards, and watched while it works.
package rig

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams/internal/pgserver"
)

// Settings are what the server does not leave at its defaults. Nothing of it lowers durability. The log of writes may grow larger than the default of
// 1 GiB before a checkpoint: at 80 MB/s that would be one checkpoint after another, and a window of some seconds would hold one or two by chance.
func Settings(sharedBuffers string) map[string]string {
	return map[string]string{
		"shared_buffers":              sharedBuffers,
		"max_wal_size":                "8GB",
		"min_wal_size":                "2GB",
		"max_connections":             "300",
		"checkpoint_timeout":          "5min",
		"fsync":                       "on",
		"full_page_writes":            "on",
		"synchronous_commit":          "on",
		"autovacuum":                  "on",
		"wal_level":                   "replica",
		"wal_keep_size":               "0",
		"track_io_timing":             "off",
		"log_checkpoints":             "off",
		"log_autovacuum_min_duration": "-1",
	}
}

// Server is the server under measurement.
type Server struct {
	pg *pgserver.Server
	// Admin is for what is done beside the measured work.
	Admin *pgxpool.Pool
	// Counts says whether statements can be counted (pg_stat_statements is there).
	Counts bool
}

// Database is where everything is measured.
const Database = "postgres"

// Start starts a server with so many shared buffers ("512MB").
func Start(ctx context.Context, sharedBuffers string) (*Server, error) {
	settings := Settings(sharedBuffers)
	counting := maps.Clone(settings)
	counting["shared_preload_libraries"] = "pg_stat_statements"
	// Nothing is counted while rates are measured.
	counting["pg_stat_statements.track"] = "none"
	s := &Server{Counts: true}
	pg, err := pgserver.Start(ctx, pgserver.Options{Durable: true, Settings: counting})
	if err != nil {
		// The library is packed apart on some systems.
		s.Counts = false
		var plain error
		if pg, plain = pgserver.Start(ctx, pgserver.Options{Durable: true, Settings: settings}); plain != nil {
			return nil, plain
		}
	}
	s.pg = pg
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Server) open(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(s.DSN())
	if err != nil {
		return err
	}
	config.MaxConns = 8
	if s.Admin, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	if s.Counts {
		_, err = s.Admin.Exec(ctx, "create extension pg_stat_statements")
	}
	return err
}

// Close ends the server and removes it.
func (s *Server) Close() error {
	if s.Admin != nil {
		s.Admin.Close()
	}
	return s.pg.Close()
}

// DSN is where clients connect, by TCP as from another machine.
func (s *Server) DSN() string { return s.pg.DSN(Database) }

// Version returns the server's version.
func (s *Server) Version() string { return s.pg.Version() }

// Pool opens a pool of so many connections, all of them opened already.
func (s *Server) Pool(ctx context.Context, conns int) (*pgxpool.Pool, error) {
	return Pool(ctx, s.DSN(), conns)
}

// Pool opens a pool of so many connections to a server, all of them opened already.
func Pool(ctx context.Context, dsn string, conns int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	config.MaxConns, config.MinConns = int32(conns), int32(conns)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	held := make([]*pgxpool.Conn, 0, conns)
	for range conns {
		conn, acquireErr := pool.Acquire(ctx)
		if acquireErr != nil {
			err = acquireErr
			break
		}
		held = append(held, conn)
	}
	for _, conn := range held {
		conn.Release()
	}
	if err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// Calm writes out what earlier runs left, so that each begins alike.
func (s *Server) Calm(ctx context.Context) error {
	_, err := s.Admin.Exec(ctx, "checkpoint")
	return err
}

// Shown returns the settings that matter, as the server has them.
func (s *Server) Shown(ctx context.Context) (map[string]string, error) {
	rows, err := s.Admin.Query(ctx, `select name, current_setting(name) from pg_settings where name = any ($1) order by name`, []string{
		"shared_buffers", "max_wal_size", "min_wal_size", "fsync", "full_page_writes", "synchronous_commit", "autovacuum", "wal_level", "max_connections",
		"checkpoint_timeout", "wal_compression", "wal_sync_method", "jit", "server_encoding", "data_checksums"})
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	shown := map[string]string{}
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return nil, err
		}
		shown[name] = value
	}
	return shown, rows.Err()
}

// Durable makes sure that nothing lowers what a commit means.
func (s *Server) Durable(ctx context.Context) error {
	shown, err := s.Shown(ctx)
	if err != nil {
		return err
	}
	for _, name := range []string{"fsync", "full_page_writes", "synchronous_commit", "autovacuum"} {
		if shown[name] != "on" {
			return fmt.Errorf("%s is %s; figures of such a server say nothing", name, strconv.Quote(shown[name]))
		}
	}
	return nil
}

// Tracking is what pg_stat_statements counts.
type Tracking string

// What can be counted.
const (
	TrackNone Tracking = "none"
	TrackTop  Tracking = "top" // what clients send
	TrackAll  Tracking = "all" // statements inside procedures too
)

// Track changes what is counted from here on, and forgets what was.
func (s *Server) Track(ctx context.Context, t Tracking) error {
	if !s.Counts {
		return errors.New("pg_stat_statements is not installed")
	}
	for _, sql := range []string{
		"alter system set pg_stat_statements.track = '" + string(t) + "'",
		"select pg_reload_conf()",
	} {
		if _, err := s.Admin.Exec(ctx, sql); err != nil {
			return err
		}
	}
	// Sessions take a changed setting over between two statements, soon after the postmaster's signal.
	for range 200 {
		var now string
		if err := s.Admin.QueryRow(ctx, "select current_setting('pg_stat_statements.track')").Scan(&now); err != nil {
			return err
		}
		if now == string(t) {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	return s.Forget(ctx)
}

// Forget sets the counts back. Not those of tables: autovacuum goes by them.
func (s *Server) Forget(ctx context.Context) error {
	_, err := s.Admin.Exec(ctx, "select pg_stat_statements_reset()")
	return err
}
