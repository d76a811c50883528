package chaos

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams/internal/ledger"
)

// traced are the tables whose changes are written down in a run with a trace, with what is of interest in a row. The low end of a range is a message that it does not hold.
func traced() map[string]string {
	return map[string]string{
		"claim":       `jsonb_build_object('low', x.low, 'high', x.high, 'token', x.token, 'expires', x.expires_at, 'reclaims', x.reclaims, 'stale', x.stale, 'messages', x.messages, 'hashes', cardinality(x.key_hashes))`,
		"done":        `to_jsonb(x)`,
		"delivery":    `to_jsonb(x) - array['payload', 'payload_bytes', 'headers', 'options', 'last_error', 'copied', 'created_at', 'produced_at', 'appended_at', 'scheduled_at', 'schema_version', 'routing_key', 'ceiling_ms']`,
		"dead_letter": `jsonb_build_object('group_id', x.group_id, 'message_id', x.message_id, 'reason', x.reason, 'attempts', x.attempts)`,
	}
}

// trace has the server write down every change of the control tables. It costs time, so races may fall out another way.
func (r *run) trace(ctx context.Context) error {
	if _, err := r.pool.Exec(ctx, `create table public.trace (seq bigint generated always as identity, at timestamptz not null default clock_timestamp(), xid xid8 not null default pg_current_xact_id(), program text default current_setting('application_name'), relation text not null, what text not null, group_id integer not null, low bigint not null, high bigint not null, content jsonb);
		grant insert on public.trace to public`); err != nil {
		return err
	}
	for table, content := range traced() {
		low, high := "x.message_id", "x.message_id"
		if table == "claim" {
			low, high = "x.low + 1", "x.high"
		}
		if _, err := r.pool.Exec(ctx, fmt.Sprintf(`create function public.trace_%[1]s() returns trigger language plpgsql as $$
			declare x sqlstreams.%[1]s;
			begin
				x := case when tg_op = 'DELETE' then old else new end;
				insert into public.trace (relation, what, group_id, low, high, content) values (tg_table_name, lower(tg_op), x.group_id, %[3]s, %[4]s, %[2]s);
				return null;
			end $$;
			create trigger trace after insert or update or delete on sqlstreams.%[1]s for each row execute function public.trace_%[1]s()`, table, content, low, high)); err != nil {
			return err
		}
	}
	return nil
}

// tell prints what the tables went through for the messages of some findings, and for the last ones of their keys before them.
func (r *run) tell(ctx context.Context, findings []ledger.Finding) error {
	var stream int
	if err := r.pool.QueryRow(ctx, `select s.id from sqlstreams.stream s where s.name = $1`, streamName).Scan(&stream); err != nil {
		return err
	}
	told := map[string]int{}
	for _, f := range findings {
		if told[string(f.Kind)]++; told[string(f.Kind)] > 3 || f.ID == 0 || f.Group == "" {
			continue
		}
		// With those of its key that came before it.
		var ids []int64
		if err := r.pool.QueryRow(ctx, fmt.Sprintf(`select array(select l.id from sqlstreams.log_%[1]d l, sqlstreams.log_%[1]d m where m.id = $1 and l.id <= m.id and (l.id = m.id or l.message_key = m.message_key) order by l.id desc limit 4)`, stream), f.ID).Scan(&ids); err != nil {
			return err
		}
		rows, err := r.pool.Query(ctx, `select to_char(t.at, 'HH24:MI:SS.US') || ' ' || t.xid || ' ' || t.program || ' ' || t.relation || ' ' || t.what || ' ' || t.content::text
			from public.trace t join sqlstreams.consumer_group g on g.id = t.group_id where g.name = $1 and exists (select from unnest($2::bigint[]) as i (id) where t.low <= i.id and t.high >= i.id) order by t.seq`, f.Group, ids)
		if err != nil {
			return err
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		r.say("trace of %s, with %v:", f, ids)
		for _, line := range slices.Compact(lines) {
			r.say("    %s", line)
		}
	}
	return nil
}
