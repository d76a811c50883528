package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams/internal/ledger"
	"github.com/sqlstreams/sqlstreams/internal/pgserver"
)

// harm does what the schedule says, and lets frozen processes go on when their time has come.
func (r *run) harm(ctx context.Context, steps []step) error {
	for {
		var next time.Time
		if len(steps) > 0 {
			next = r.began.Add(steps[0].at)
		}
		resuming := false
		for _, x := range r.resumes {
			if next.IsZero() || x.at.Before(next) {
				next, resuming = x.at, true
			}
		}
		if next.IsZero() {
			// The schedule may end before its time.
			if left := time.Until(r.began.Add(r.cfg.Duration)); left > 0 && !pause(ctx, left) {
				return ctx.Err()
			}
			return nil
		}
		if wait := time.Until(next); wait > 0 && !pause(ctx, wait) {
			return ctx.Err()
		}
		if resuming {
			if err := r.resumeDue(); err != nil {
				return err
			}
			continue
		}
		if err := r.inject(ctx, steps[0]); err != nil {
			return fmt.Errorf("%s: %w", strings.TrimSpace(steps[0].String()), err)
		}
		steps = steps[1:]
	}
}

func (r *run) resumeDue() error {
	now := time.Now()
	for _, x := range r.resumes {
		if !x.at.After(now) && !x.p.ended() {
			if err := r.cont(x.p); err != nil {
				return err
			}
		}
	}
	r.resumes = slices.DeleteFunc(r.resumes, func(x resume) bool { return !x.at.After(now) })
	return nil
}

func isRole(role string) func(*process) bool {
	return func(p *process) bool { return p.cfg.Role == role }
}

// inject does one fault.
func (r *run) inject(ctx context.Context, s step) error {
	kind, group, _ := strings.Cut(s.kind, " ")
	is := isRole(roleConsumer)
	switch {
	case kind == killProducer || kind == stopProducer:
		is = isRole(roleProducer)
	case group != "":
		is = func(p *process) bool { return p.cfg.in(group) }
	}
	switch kind {
	case terminate, killBackend:
		return r.harmBackend(ctx, s)
	case serverImmediate:
		return r.harmServer(ctx, s)
	}
	found := r.candidates(is)
	if len(found) == 0 {
		r.skipped++
		r.say("%s: nobody is there", s.kind)
		return nil
	}
	p := found[s.pick%uint64(len(found))]
	r.say("%s %s (pid %d)", kind, p.cfg.Name, p.cmd.Process.Pid)
	switch kind {
	case stopConsumer, stopProducer:
		if err := r.stop(p); err != nil {
			return err
		}
		r.resumes = append(r.resumes, resume{time.Now().Add(s.hold), p})
		return nil
	case leaveConsumer:
		if err := r.fault(ledger.Leave, p, ""); err != nil {
			return err
		}
		if err := p.leave(); err != nil {
			return err
		}
	default:
		if err := r.kill(p); err != nil {
			return err
		}
	}
	return r.replace(p)
}

// fault writes a fault down, before it is done.
func (r *run) fault(kind string, p *process, detail string) error {
	f := ledger.Fault{Kind: kind, Detail: detail}
	if p != nil {
		f.Target, f.PID = p.cfg.Name, p.cmd.Process.Pid
	}
	return r.book.Fault(&f)
}

func (r *run) kill(p *process) error {
	if err := r.fault(ledger.Kill, p, ""); err != nil {
		return err
	}
	p.killed = true
	return signal(p, sigKill)
}

func (r *run) stop(p *process) error {
	if err := r.fault(ledger.Stop, p, ""); err != nil {
		return err
	}
	if err := r.thaw.tell(ledger.Stop, p.cmd.Process.Pid); err != nil {
		return err
	}
	p.stopped = true
	return signal(p, sigStop)
}

// cont lets a process go on. It is written down afterwards, as it ends what Stop began.
func (r *run) cont(p *process) error {
	if err := signal(p, sigCont); err != nil {
		return err
	}
	p.stopped = false
	return errors.Join(r.thaw.tell(ledger.Cont, p.cmd.Process.Pid), r.fault(ledger.Cont, p, ""))
}

// replace starts a process in the place of another.
func (r *run) replace(p *process) error {
	cfg := p.cfg
	place, _, _ := strings.Cut(cfg.Name, ".")
	cfg.Name = r.place(place)
	if cfg.Role == roleProducer {
		cfg.Seed = dice(r.cfg.Seed, cfg.Name, 0)
	}
	_, err := r.spawn(cfg, p.slot)
	return err
}

// harmBackend cuts or kills a connection of the library.
func (r *run) harmBackend(ctx context.Context, s step) error {
	rows, err := r.pool.Query(ctx, `select pid, application_name from pg_stat_activity where usename = $1 and datname = current_database() and backend_type = 'client backend'
		order by application_name, pid`, ownerName)
	if err != nil {
		return err
	}
	type backend struct {
		pid  int
		name string
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (b backend, err error) { return b, row.Scan(&b.pid, &b.name) })
	if err != nil {
		return err
	}
	if len(found) == 0 {
		r.skipped++
		r.say("%s: nobody is there", s.kind)
		return nil
	}
	b := found[s.pick%uint64(len(found))]
	r.say("%s %d of %s", s.kind, b.pid, b.name)
	if s.kind == killBackend {
		return r.crash(ctx, b.pid)
	}
	if err := r.book.Fault(&ledger.Fault{Kind: ledger.TerminateConn, Target: b.name, PID: b.pid}); err != nil {
		return err
	}
	_, err = r.pool.Exec(ctx, `select pg_terminate_backend($1)`, b.pid)
	return err
}

// crash kills a backend and waits until the server has recovered.
func (r *run) crash(ctx context.Context, pid int) error {
	// This connection tells that the server has gone down.
	watch, err := pgx.Connect(ctx, r.server.SocketDSN(databaseName))
	if err != nil {
		return err
	}
	defer watch.Close(ctx) //nolint:errcheck // it is broken by then
	if err := r.book.Fault(&ledger.Fault{Kind: ledger.KillBackend, PID: pid}); err != nil {
		return err
	}
	if err := r.server.KillBackend(ctx, pid); err != nil {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		if _, err := watch.Exec(ctx, "select 1"); err != nil {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("backend %d was killed and the server did not notice", pid)
		}
		if !pause(ctx, time.Millisecond) {
			return ctx.Err()
		}
	}
	return r.up(ctx)
}

// up waits until the server takes connections, and writes it down. Connections that were open prove nothing: the server ends them one after the other.
func (r *run) up(ctx context.Context) error {
	r.pool.Reset()
	for deadline := time.Now().Add(time.Minute); ; {
		conn, err := pgx.Connect(ctx, r.server.SocketDSN(databaseName))
		if err == nil {
			return errors.Join(conn.Close(ctx), r.fault(ledger.ServerStart, nil, ""))
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the server did not come back: %w", err)
		}
		if !pause(ctx, 10*time.Millisecond) {
			return ctx.Err()
		}
	}
}

func (r *run) harmServer(ctx context.Context, s step) error {
	r.say("%s", s.kind)
	if err := r.fault(ledger.ServerImmediate, nil, ""); err != nil {
		return err
	}
	if err := r.server.Stop(ctx, pgserver.Immediate); err != nil {
		return err
	}
	if !pause(ctx, s.hold) {
		return ctx.Err()
	}
	if err := r.server.StartAgain(ctx); err != nil {
		return err
	}
	return r.up(ctx)
}
