package store

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// The outcomes of a registration.
const (
	Created   = "created"
	Updated   = "updated"
	Unchanged = "unchanged"
)

// Stream is a stream's row.
type Stream struct {
	ID        int
	Name      string
	Kind      string
	Config    []byte
	Previous  []byte // the config that a registration replaced
	Outcome   string // of a registration
	FirstID   int64
	CreatedAt time.Time
}

// RegisterStream declares a stream. With replace, the given config replaces a stored one that differs.
func (s *Store) RegisterStream(ctx context.Context, name, kind string, config []byte, replace bool, partitionRows int) (*Stream, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	object := "stream " + strconv.Quote(name)
	st := Stream{Name: name}
	var id *int
	var storedKind *string
	var rows *int
	if partitionRows > 0 {
		rows = &partitionRows
	}
	err := retrying(ctx, func() error {
		err := s.control.QueryRow(ctx, s.text["register_stream"], name, kind, string(config), replace, rows).Scan(&id, &st.Outcome, &storedKind, &st.Config, &st.Previous)
		return ClassifyNoEffect("register", object, err)
	})
	if err != nil {
		return nil, err
	}
	if storedKind != nil {
		st.Kind = *storedKind
	}
	if st.Outcome == "conflict" {
		return nil, &diag.Error{Code: diag.DeclarationConflict, Op: "register", Object: object, Detail: "it exists with payloads of kind " + st.Kind + ", which cannot be changed"}
	}
	if id != nil {
		st.ID = *id
	}
	return &st, nil
}

// Group is a consumer group's row.
type Group struct {
	ID        int
	Stream    int
	Name      string
	Config    []byte
	Previous  []byte // the config that a registration replaced
	Version   int    // of Config
	Outcome   string // of a registration
	Start     string // as declared when it was created
	Paused    bool
	Epoch     int64
	CreatedAt time.Time
}

// RegisterGroup declares a group of a stream.
func (s *Store) RegisterGroup(ctx context.Context, stream int, name string, config []byte, replace bool, ceiling time.Duration, maxReclaims int, start string) (*Group, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	object := "group " + strconv.Quote(name)
	g := Group{Stream: stream, Name: name}
	var id, version *int
	var stored *string
	err := retrying(ctx, func() error {
		err := s.control.QueryRow(ctx, s.text["register_group"], stream, name, string(config), replace, max(ceiling.Milliseconds(), 1), maxReclaims, start).
			Scan(&id, &g.Outcome, &g.Config, &g.Previous, &version, &stored)
		return ClassifyNoEffect("register", object, err)
	})
	if err != nil {
		return nil, err
	}
	if g.Outcome == "gone" {
		return nil, &diag.Error{Code: diag.StreamNotFound, Op: "register", Object: object}
	}
	if id != nil && version != nil && stored != nil {
		g.ID, g.Version, g.Start = *id, *version, *stored
	}
	return &g, nil
}

// retrying repeats what the server refused for a reason that passes, such as a lock held by another registration.
func retrying(ctx context.Context, f func() error) error {
	for attempt := 0; ; attempt++ {
		err := f()
		// A lost connection is told at once: whoever starts a program wants to know that there is no server. What a lock or a deadlock refused is tried again.
		if code := diag.CodeOf(err); err == nil || attempt >= 5 || !diag.Retryable(err) || code == diag.Unreachable {
			return err
		}
		timer := time.NewTimer(time.Duration(attempt+1) * 50 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// GetStream returns a stream by name.
func (s *Store) GetStream(ctx context.Context, name string) (*Stream, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	object := "stream " + strconv.Quote(name)
	rows, err := s.control.Query(ctx, s.text["get_stream"], name)
	streams, err := scanStreams(rows, err)
	if err != nil {
		return nil, ClassifyNoEffect("get", object, err)
	}
	if len(streams) == 0 {
		return nil, &diag.Error{Code: diag.StreamNotFound, Op: "get", Object: object}
	}
	return streams[0], nil
}

// ListStreams returns all streams by name.
func (s *Store) ListStreams(ctx context.Context) ([]*Stream, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	rows, err := s.control.Query(ctx, s.text["list_streams"])
	streams, err := scanStreams(rows, err)
	return streams, ClassifyNoEffect("list", "streams", err)
}

func scanStreams(rows pgx.Rows, err error) ([]*Stream, error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []*Stream
	for rows.Next() {
		var st Stream
		if err := rows.Scan(&st.ID, &st.Name, &st.Kind, &st.Config, &st.FirstID, &st.CreatedAt); err != nil {
			return nil, err
		}
		all = append(all, &st)
	}
	return all, rows.Err()
}

// ListGroups returns the groups of a stream by name.
func (s *Store) ListGroups(ctx context.Context, stream int) ([]*Group, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	object := "groups of stream " + strconv.Itoa(stream)
	rows, err := s.control.Query(ctx, s.text["list_groups"], stream)
	if err != nil {
		return nil, ClassifyNoEffect("list", object, err)
	}
	defer rows.Close()
	var all []*Group
	for rows.Next() {
		g := Group{Stream: stream}
		if err := rows.Scan(&g.ID, &g.Name, &g.Config, &g.Version, &g.Paused, &g.Epoch, &g.Start, &g.CreatedAt); err != nil {
			return nil, ClassifyNoEffect("list", object, err)
		}
		all = append(all, &g)
	}
	return all, ClassifyNoEffect("list", object, rows.Err())
}

// StreamState is where a stream stands.
type StreamState struct {
	FirstID, Head, Inbox int64
}

// StreamState reads where a stream stands.
func (s *Store) StreamState(ctx context.Context, stream int) (*StreamState, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	object := "stream " + strconv.Itoa(stream)
	var st StreamState
	err := retrying(ctx, func() error {
		err := s.control.QueryRow(ctx, s.text["stream_state"], stream).Scan(&st.FirstID, &st.Head, &st.Inbox)
		if err == pgx.ErrNoRows {
			return &diag.Error{Code: diag.StreamNotFound, Op: "look at", Object: object}
		}
		return ClassifyNoEffect("look at", object, err)
	})
	if err != nil {
		return nil, err
	}
	return &st, nil
}

// DropStream deletes a stream with all that belongs to it. Begun, it is gone for everybody; a repetition finishes what an interrupted one left. actor is who asked for it; "": upkeep does what is left.
func (s *Store) DropStream(ctx context.Context, stream int, actor string) error {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	return retrying(ctx, func() error {
		_, err := s.control.Exec(ctx, s.text["drop_stream"], stream, optional([]byte(actor)))
		return ClassifyNoEffect("delete", "stream "+strconv.Itoa(stream), err)
	})
}
