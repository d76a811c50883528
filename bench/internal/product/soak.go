package product

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/bench/internal/measure"
	"github.com/sqlstreams/sqlstreams/bench/internal/rig"
)

// Soak runs a flow at a steady rate beside a transaction that holds a snapshot and an id open, with several vacuums, and looks whether anything grows.
type Soak struct {
	Flow Flow
	// Every is how long one point of the series is, Points how many there are while the transaction lives, After how many follow its end.
	Every         time.Duration
	Points, After int
}

// Point is what one piece of the time saw.
type Point struct {
	Held         bool    `json:"held"` // the transaction lives
	Rate         float64 `json:"rate"` // handled per second
	ClaimMS      float64 `json:"claim_ms"`
	SequenceMS   float64 `json:"sequence_ms"` // append, or drain where that is what gives ids
	ReadMS       float64 `json:"read_ms"`
	Claims       int64   `json:"claims"` // since the beginning
	ControlBytes int64   `json:"control_bytes"`
	// Tables are the control tables above 100 kB.
	Tables map[string]int64 `json:"tables"`
}

// Run does it. Values compare the last third of the points with the first, the very first point left out: rate_kept, claim_growth, sequence_growth; bytes_per_claim is what the control
// tables have grown by while the transaction lived, megabytes_after what they hold at the end.
func (s *Soak) Run(ctx context.Context, m *rig.Meter, name string) (measure.Values, error) {
	if !m.Server.Counts {
		return nil, errors.New("pg_stat_statements is needed to see the time of claims")
	}
	if err := m.Server.Track(ctx, rig.TrackTop); err != nil {
		return nil, err
	}
	values, err := s.Flow.During(ctx, m, func(ctx context.Context, m *rig.Meter, handled, _ rig.Counter) (measure.Values, error) {
		return s.watch(ctx, m, name, handled)
	})
	return values, errors.Join(err, m.Server.Track(context.WithoutCancel(ctx), rig.TrackNone))
}

func (s *Soak) watch(ctx context.Context, m *rig.Meter, name string, handled rig.Counter) (measure.Values, error) {
	release, err := hold(ctx, m.Server.DSN())
	if err != nil {
		return nil, err
	}
	vacuuming, stop := context.WithCancel(ctx)
	var vacuums errgroup.Group
	vacuums.Go(func() error { return vacuum(vacuuming, m.Server, s.Every/2) })
	start, err := look(ctx, m.Server)
	if err != nil {
		stop()
		return nil, errors.Join(err, release(), vacuums.Wait())
	}
	var points []Point
	follow := func(n int, held bool) error {
		for range n {
			p, err := s.point(ctx, m.Server, handled)
			if err != nil {
				return err
			}
			p.Held = held
			points = append(points, p)
			if m.Detail != nil {
				m.Detail(name, points)
			}
		}
		return nil
	}
	err = follow(s.Points, true)
	err = errors.Join(err, release())
	stop()
	err = errors.Join(err, vacuums.Wait())
	if err == nil {
		// From here on autovacuum is alone.
		err = follow(s.After, false)
	}
	if err != nil {
		return nil, err
	}
	return s.values(start, points), nil
}

func (s *Soak) values(start Point, points []Point) measure.Values {
	held := points[:s.Points]
	third := max((len(held)-1)/3, 1)
	first, last := held[min(1, len(held)-1):], held[len(held)-third:]
	first = first[:min(third, len(first))]
	grown := func(of func(Point) float64) float64 {
		var a, b []float64
		add := func(to []float64, p Point) []float64 {
			if v := of(p); v > 0 { // else nothing of the kind happened in it
				to = append(to, v)
			}
			return to
		}
		for _, p := range first {
			a = add(a, p)
		}
		for _, p := range last {
			b = add(b, p)
		}
		return measure.Median(b) / measure.Median(a)
	}
	end := held[len(held)-1]
	return measure.Values{
		"rate":            end.Rate,
		"rate_kept":       grown(func(p Point) float64 { return p.Rate }),
		"claim_growth":    grown(func(p Point) float64 { return p.ClaimMS }),
		"sequence_growth": grown(func(p Point) float64 { return p.SequenceMS }),
		"bytes_per_claim": float64(end.ControlBytes-start.ControlBytes) / float64(max(end.Claims-start.Claims, 1)),
		"megabytes_after": float64(points[len(points)-1].ControlBytes) / 1e6,
	}
}

// point measures one piece of the time.
func (s *Soak) point(ctx context.Context, server *rig.Server, handled rig.Counter) (Point, error) {
	if err := server.Forget(ctx); err != nil {
		return Point{}, err
	}
	from, err := handled()
	if err != nil {
		return Point{}, err
	}
	began := time.Now()
	if err := sleep(ctx, s.Every); err != nil {
		return Point{}, err
	}
	to, err := handled()
	if err != nil {
		return Point{}, err
	}
	seconds := time.Since(began).Seconds()
	all, err := server.Statements(ctx, 1000)
	if err != nil {
		return Point{}, err
	}
	p, err := look(ctx, server)
	if err != nil {
		return Point{}, err
	}
	mean := func(part string) float64 {
		calls, total := rig.Sum(all, part)
		return total / float64(max(calls, 1))
	}
	p.Rate = (to - from) / seconds
	p.ClaimMS, p.ReadMS, p.SequenceMS = mean("sqlstreams:work "), mean("sqlstreams:read_range "), mean("sqlstreams:append ")
	if s.Flow.InTx {
		p.SequenceMS = mean("sqlstreams:drain ")
	}
	return p, nil
}

const schemaName = sqlstreams.DefaultSchema

// look reads the sizes of the control tables and the number of claims.
func look(ctx context.Context, server *rig.Server) (Point, error) {
	p := Point{Tables: map[string]int64{}}
	rows, err := server.Admin.Query(ctx, `
		select c.relname, pg_total_relation_size(c.oid) from pg_class c
		 where c.relnamespace = $1::text::regnamespace and c.relkind = 'r' and c.relname not like 'log\_%' order by 1`, schemaName)
	if err != nil {
		return p, err
	}
	var name string
	var size int64
	if _, err := pgx.ForEachRow(rows, []any{&name, &size}, func() error {
		p.ControlBytes += size
		if size > 100_000 {
			p.Tables[name] = size
		}
		return nil
	}); err != nil {
		return p, err
	}
	err = server.Admin.QueryRow(ctx, "select coalesce(max(seq), 0) from "+schemaName+".cursor").Scan(&p.Claims)
	return p, err
}

// hold opens a transaction with a snapshot and an id, and returns how to end it.
func hold(ctx context.Context, dsn string) (func() error, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	release := func() error { return conn.Close(context.WithoutCancel(ctx)) }
	for _, sql := range []string{"begin isolation level repeatable read", "select pg_current_xact_id()", "select count(*) from pg_class"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return nil, errors.Join(err, release())
		}
	}
	return release, nil
}

// vacuum vacuums the control tables now and then, until ctx ends.
func vacuum(ctx context.Context, server *rig.Server, every time.Duration) error {
	for {
		if err := sleep(ctx, every); err != nil {
			return nil
		}
		p, err := look(ctx, server)
		if err == nil && len(p.Tables) > 0 {
			var names []string
			for name := range p.Tables {
				names = append(names, pgx.Identifier{schemaName, name}.Sanitize())
			}
			_, err = server.Admin.Exec(ctx, "vacuum "+strings.Join(names, ", "))
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("vacuum: %w", err)
		}
	}
}
