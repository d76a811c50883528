package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// sabotage breaks what is to be broken before anything happens.
func (r *run) sabotage(ctx context.Context) error {
	switch r.cfg.Sabotage {
	case SabotageTx:
		return breakEffects(ctx, r.pool)
	case SabotageToken:
		return breakToken(ctx, r.pool)
	case SabotageOrder:
		return breakOrder(ctx, r.pool)
	}
	return nil
}

// breakOrder lets ranges and deliveries forget the keys that they hold. What an instance has in memory stays in line; it does not see what others have.
func breakOrder(ctx context.Context, pool *pgxpool.Pool) error {
	for _, sql := range []string{
		`create function public.forget_claim() returns trigger language plpgsql as $$ begin new.key_hashes := '{}'; return new; end $$`,
		`create trigger forget_keys before insert or update on sqlstreams.claim for each row execute function public.forget_claim()`,
		`create function public.forget_delivery() returns trigger language plpgsql as
			$$ begin new.key_hash := null; new.ordered := false; if new.state = 'waiting' then new.state := 'pending'; end if; return new; end $$`,
		`create trigger forget_keys before insert or update on sqlstreams.delivery for each row execute function public.forget_delivery()`,
	} {
		if _, err := pool.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

// breakToken takes the token out of the procedure that records results: whoever comes with a range's lower end, or with a delivery's id, is believed to hold it.
func breakToken(ctx context.Context, pool *pgxpool.Pool) error {
	var text string
	if err := pool.QueryRow(ctx, `select pg_get_functiondef(p.oid) from pg_proc p join pg_namespace n on n.oid = p.pronamespace where n.nspname = 'sqlstreams' and p.proname = 'work'`).Scan(&text); err != nil {
		return err
	}
	broken := text
	for _, check := range []string{" and c.token = item.token", " and d.token = item.token"} {
		if !strings.Contains(broken, check) {
			return fmt.Errorf("procedure work has no condition %q that could be taken out", check)
		}
		broken = strings.ReplaceAll(broken, check, "")
	}
	_, err := pool.Exec(ctx, broken)
	return err
}

// breakEffects lets a handler's transaction commit whoever owns its message now, and without a mark.
func breakEffects(ctx context.Context, pool *pgxpool.Pool) error {
	_, err := pool.Exec(ctx, `create or replace function sqlstreams.finish_tx(p_group integer, p_message bigint, p_token uuid, p_delivery boolean) returns void language sql as
		'delete from sqlstreams.delivery d where d.group_id = p_group and d.message_id = p_message and p_delivery'`)
	return err
}

// removeRow deletes one message that no group has been handed yet. It is not the newest one, whose id would be given again.
func removeRow(ctx context.Context, pool *pgxpool.Pool, stream string) (err error) {
	var id int
	if err := pool.QueryRow(ctx, `select id from sqlstreams.stream where name = $1 and state = 'active'`, stream).Scan(&id); err != nil {
		return err
	}
	pauseAll := func(paused bool) error {
		_, err := pool.Exec(ctx, `update sqlstreams.consumer_group set paused = $1 where stream_id = $2`, paused, id)
		return err
	}
	if err := pauseAll(true); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pauseAll(false)) }()
	// Whoever was being handed something when the pause was committed has it by now.
	if !pause(ctx, time.Second) {
		return ctx.Err()
	}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		tag, err := pool.Exec(ctx, fmt.Sprintf(`
			delete from sqlstreams.log_%d where id = (
				select max(l.id) - 1 from sqlstreams.log_%[1]d l
				having max(l.id) - 1 > (select max((select c.claimed from sqlstreams.cursor c where c.group_id = g.id order by c.seq desc limit 1))
				                          from sqlstreams.consumer_group g where g.stream_id = $1))`, id), id)
		if err != nil || tag.RowsAffected() == 1 {
			return err
		}
		if !pause(ctx, 20*time.Millisecond) {
			return ctx.Err()
		}
	}
	return errors.New("no message came that could be deleted")
}
