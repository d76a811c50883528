-- title: effects that happen once
-- breaking: no
-- transaction: yes
-- longest lock: none that anybody waits for; everything is new

create table {schema}.once (
    group_id  integer not null,
    key       text collate "C" not null,
    marked_at timestamptz not null default clock_timestamp(),
    primary key (group_id, key)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
comment on table {schema}.once is 'Marks of what was done once, in the transactions that did it.';
create index once_marked on {schema}.once (marked_at);

-- Ties a handler's transaction to its delivery: raises SQ100 unless the token still owns the message, else leaves the mark (on the main line) or removes the delivery. Sent last, in one flush with the COMMIT, so that
-- no client can fall asleep between them: nothing is held on the row before. Whoever takes the message over skips the row while this holds it; whoever records the range waits for it and then sees the mark.
create function {schema}.finish_tx(p_group integer, p_message bigint, p_token uuid, p_delivery boolean) returns void
language plpgsql as $sqlstreams$
begin
    if p_delivery then
        delete from {schema}.delivery d where d.group_id = p_group and d.message_id = p_message and d.token = p_token;
        if found then
            return;
        end if;
    else
        perform from {schema}.claim c where c.group_id = p_group and c.token = p_token and c.low < p_message and c.high >= p_message for share;
        if found then
            insert into {schema}.done (group_id, message_id) values (p_group, p_message) on conflict do nothing;
            if found then
                return;
            end if;
        end if;
    end if;
    raise exception 'message % is no longer owned by the token that it was handed out with', p_message using errcode = 'SQ100';
end
$sqlstreams$;
