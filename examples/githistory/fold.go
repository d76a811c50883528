package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
)

const (
	streamName = "git-history"
	groupName  = "lines-per-folder"
)

// The group's own tables. A message's id stands in a unique column, so that its lines are added once.
const tables = `
	create table if not exists folder_lines (folder text primary key, changes bigint not null, added bigint not null, deleted bigint not null);
	create table if not exists folder_lines_done (message_id bigint primary key)`

// fold consumes until the group has caught up.
func fold(ctx context.Context, dsn string) error {
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, tables); err != nil {
		return err
	}
	client, err := sqlstreams.NewClient(ctx, pool, nil)
	if err != nil {
		return err
	}
	defer client.Close(context.WithoutCancel(ctx))
	stream, err := sqlstreams.RegisterStream[Change](ctx, client, streamName, nil)
	if err != nil {
		return err
	}
	instance, err := stream.RegisterConsumer(ctx, groupName, nil)
	if err != nil {
		return err
	}
	consuming, stop := context.WithCancel(ctx)
	defer stop()
	watched := make(chan error, 1)
	go func() {
		defer stop()
		watched <- untilCaughtUp(consuming, client)
	}()
	err = instance.Consume(consuming, func(ctx context.Context, c *Change) error {
		meta, _ := sqlstreams.MetaFromContext(ctx)
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return add(ctx, tx, meta.ID, c) })
	}, nil)
	stop()
	if watching := <-watched; err == nil {
		err = watching
	}
	return err
}

// add adds one change, once: the message's id and its lines are committed together.
func add(ctx context.Context, tx pgx.Tx, id int64, c *Change) error {
	tag, err := tx.Exec(ctx, `insert into folder_lines_done (message_id) values ($1) on conflict do nothing`, id)
	if err != nil || tag.RowsAffected() == 0 {
		return err // nil: it was delivered before, and its lines are there
	}
	_, err = tx.Exec(ctx, `insert into folder_lines as f (folder, changes, added, deleted) values ($1, 1, $2, $3)
		on conflict (folder) do update set changes = f.changes + 1, added = f.added + excluded.added, deleted = f.deleted + excluded.deleted`, c.Folder, c.Added, c.Deleted)
	return err
}

// untilCaughtUp returns nil once nothing is left to do, or when ctx ends.
func untilCaughtUp(ctx context.Context, client *sqlstreams.Client) error {
	look := time.NewTicker(200 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		}
		s, err := client.Group(streamName, groupName).Status(ctx)
		if err != nil && ctx.Err() == nil {
			return err
		}
		if err == nil && s.Backlog+s.Inbox+s.OpenClaims+s.Pending+s.Running == 0 {
			log.Printf("caught up at message %d; dead letters: %d", s.Head, s.Dead)
			return nil
		}
	}
}

// check compares the table with what git says.
func check(ctx context.Context, dsn, repository string) error {
	type sum struct{ changes, added, deleted int64 }
	want := map[string]sum{}
	if err := changes(ctx, repository, func(c *Change) error {
		s := want[c.Folder]
		want[c.Folder] = sum{s.changes + 1, s.added + int64(c.Added), s.deleted + int64(c.Deleted)}
		return nil
	}); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // what was read is what counts
	rows, err := conn.Query(ctx, `select f.folder, f.changes, f.added, f.deleted from folder_lines f`)
	if err != nil {
		return err
	}
	got := map[string]sum{}
	var folder string
	var s, total sum
	if _, err := pgx.ForEachRow(rows, []any{&folder, &s.changes, &s.added, &s.deleted}, func() error {
		got[folder] = s
		total = sum{total.changes + s.changes, total.added + s.added, total.deleted + s.deleted}
		return nil
	}); err != nil {
		return err
	}
	differ := 0
	for folder, w := range want {
		if got[folder] != w {
			fmt.Printf("%s: git says %+v, the group %+v\n", folder, w, got[folder])
			differ++
		}
	}
	if differ > 0 || len(got) != len(want) {
		return fmt.Errorf("%d folders differ; git has %d, the group %d", differ, len(want), len(got))
	}
	fmt.Printf("%d folders, %d changes, %d lines added, %d deleted: the group's sums are git's\n", len(got), total.changes, total.added, total.deleted)
	return nil
}
