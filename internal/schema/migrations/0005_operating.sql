-- title: what operators do with dead letters, deliveries and groups
-- breaking: no
-- transaction: yes
-- longest lock: none that anybody waits for; everything is new

create table {schema}.operator_action (
    id          bigint generated always as identity primary key,
    began_at    timestamptz not null default clock_timestamp(),
    finished_at timestamptz, -- null: it runs, or was interrupted; what it had done stays done
    actor       text not null,
    action      text not null,
    object      text not null,
    detail      json,
    affected    bigint not null default 0
);
comment on table {schema}.operator_action is 'What operators did, on what, and how much it changed.';

-- The shape of an error text: numbers differ between messages that fail for one reason.
create function {schema}.error_shape(p_error text) returns text
language sql immutable as $sqlstreams$
    select regexp_replace(left(coalesce(p_error, ''), 500), '[0-9]+', '#', 'g')
$sqlstreams$;

-- The ids above p_after of the dead letters that a filter means, ascending, at most p_limit (null: all). Its fields: ids, reason, error (by shape), contains, key, before, after; absent ones mean all.
-- A page follows the primary key: a scan that has to be sorted would read all that is left of the group for each page.
create function {schema}.dead_ids(p_group integer, p_filter json, p_after bigint, p_limit integer) returns setof bigint
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $sqlstreams$
declare
    f     record;
    v_ids bigint[];
begin
    select x.* into f from json_to_record(coalesce(p_filter, '{}')) as x (ids json, reason text, error text, contains text, key text, before timestamptz, after timestamptz);
    -- Given ids have a query of their own: the primary key finds each of them, where an "or" would read all letters of the group.
    if f.ids is not null then
        select array_agg(j.id::bigint) into v_ids from json_array_elements_text(f.ids) as j (id);
        return query select d.message_id from {schema}.dead_letter d
         where d.group_id = p_group and d.message_id > p_after and d.message_id = any (array(select i.id from unnest(v_ids) as i (id)))
           and (f.reason is null or d.reason = f.reason) and (f.error is null or {schema}.error_shape(d.error) = {schema}.error_shape(f.error))
           and (f.contains is null or position(f.contains in coalesce(d.error, '')) > 0) and (f.key is null or d.message_key = f.key)
           and (f.before is null or d.died_at < f.before) and (f.after is null or d.died_at >= f.after)
         order by d.message_id limit p_limit;
    else
        return query select d.message_id from {schema}.dead_letter d
         where d.group_id = p_group and d.message_id > p_after
           and (f.reason is null or d.reason = f.reason) and (f.error is null or {schema}.error_shape(d.error) = {schema}.error_shape(f.error))
           and (f.contains is null or position(f.contains in coalesce(d.error, '')) > 0) and (f.key is null or d.message_key = f.key)
           and (f.before is null or d.died_at < f.before) and (f.after is null or d.died_at >= f.after)
         order by d.message_id limit p_limit;
    end if;
end
$sqlstreams$;

-- The same for deliveries that are off the main line and not running. before and after mean when they left it.
create function {schema}.delivery_ids(p_group integer, p_filter json, p_after bigint, p_limit integer) returns setof bigint
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $sqlstreams$
declare
    f     record;
    v_ids bigint[];
begin
    select x.* into f from json_to_record(coalesce(p_filter, '{}')) as x (ids json, error text, contains text, key text, before timestamptz, after timestamptz);
    select array_agg(j.id::bigint) into v_ids from json_array_elements_text(coalesce(f.ids, '[]')) as j (id);
    return query select d.message_id from {schema}.delivery d
     where d.group_id = p_group and d.message_id > p_after and d.state <> 'running' and (f.ids is null or d.message_id = any (array(select i.id from unnest(v_ids) as i (id))))
       and (f.error is null or {schema}.error_shape(d.last_error) = {schema}.error_shape(f.error))
       and (f.contains is null or position(f.contains in coalesce(d.last_error, '')) > 0) and (f.key is null or d.message_key = f.key)
       and (f.before is null or d.created_at < f.before) and (f.after is null or d.created_at >= f.after)
     order by d.message_id limit p_limit;
end
$sqlstreams$;

-- One step of an operation: at most p_limit of what the filter means above p_after, in a transaction of its own under the group's lock, noted in operator_action (o_audit: null begins the note).
-- Committed as the server is set to, never asynchronously. Repeating a step whose confirmation was lost is safe: what was done is not found again.
-- p_action: redrive | discard | retry-now | discard-deliveries. o_done: how many; o_last: where the next step begins; o_more: whether there is one; o_gone: the group is.
create procedure {schema}.operate(p_group integer, p_action text, p_filter json, p_after bigint, p_limit integer, p_actor text, p_object text,
                                  inout o_audit bigint, inout o_done bigint, inout o_last bigint, inout o_more boolean, inout o_gone boolean)
language plpgsql as $sqlstreams$
declare
    v_now     timestamptz;
    v_ids     bigint[];
    v_claimed bigint;
    v_order   text;
    v_park    boolean;
    v_hashes  bigint[]; -- keys that the action may set free
begin
    commit;
    set transaction isolation level read committed;
    perform set_config('lock_timeout', '2s', true), set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
            set_config('enable_mergejoin', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true);
    perform pg_advisory_xact_lock({class_group}, p_group);
    v_now := clock_timestamp();
    o_done := 0;
    o_last := p_after;
    o_more := false;
    select g.config->>'key_order', coalesce((g.config->>'park_key_on_dead_letter')::boolean, false) into v_order, v_park
      from {schema}.consumer_group g join {schema}.stream s on s.id = g.stream_id where g.id = p_group and s.state = 'active';
    o_gone := not found;
    if o_gone then
        return;
    end if;
    if p_action in ('redrive', 'discard') then
        select array_agg(q.id order by q.id) into v_ids from {schema}.dead_ids(p_group, p_filter, p_after, p_limit) as q (id);
    else
        select array_agg(q.id order by q.id) into v_ids from {schema}.delivery_ids(p_group, p_filter, p_after, p_limit) as q (id);
    end if;
    if v_ids is not null then
        o_last := v_ids[cardinality(v_ids)];
        o_more := cardinality(v_ids) >= p_limit;
        if p_action in ('redrive', 'discard') then
            v_hashes := array(select coalesce(d.parks, {schema}.key_hash(d.message_key)) from {schema}.dead_letter d
                               where d.group_id = p_group and d.message_id = any (array(select i.id from unnest(v_ids) as i (id)))
                                 and (d.parks is not null or (p_action = 'redrive' and {schema}.order_of(v_order, d.options) is not null and d.message_key is not null)));
        elsif p_action = 'discard-deliveries' then
            v_hashes := array(select d.key_hash from {schema}.delivery d
                               where d.group_id = p_group and d.message_id = any (array(select i.id from unnest(v_ids) as i (id))) and d.state <> 'running' and d.key_hash is not null);
        end if;
        if p_action = 'redrive' then
            -- What is gone from the stream will not be claimed, wherever the cursor is.
            select greatest(c.claimed, s.first_id - 1) into v_claimed
              from {schema}.cursor c join {schema}.consumer_group g on g.id = c.group_id join {schema}.stream s on s.id = g.stream_id
             where c.group_id = p_group order by c.seq desc limit 1;
            -- What is still to be claimed, or lies in an open range unfinished (both only after a seek), comes by itself: only its letter goes.
            -- One that holds its key waits, until it is woken below. Whose letter parks its key takes its place before those that waited for it; the successors of another ordered one have gone on, so it is exclusive, and out of order.
            insert into {schema}.delivery (group_id, message_id, state, due_at, attempt, solo, message_key, key_hash, ordered, out_of_order, last_error, copied, produced_at, appended_at, scheduled_at, schema_version,
                                           routing_key, headers, options, payload, payload_bytes)
            select d.group_id, d.message_id, case when k.hash is null then 'pending' else 'waiting' end, v_now, 0, false, d.message_key, k.hash, d.parks is not null and v_park,
                   (d.parks is not null or coalesce(k.key_order = 'ordered', false)) and not (d.parks is not null and v_park), d.error, true, coalesce(d.produced_at, d.died_at), coalesce(d.appended_at, d.died_at), d.scheduled_at,
                   coalesce(d.schema_version, 1), d.routing_key, d.headers, d.options, d.payload, d.payload_bytes
              from {schema}.dead_letter d
             cross join lateral (select o.key_order, coalesce(d.parks, case when o.key_order is not null then {schema}.key_hash(d.message_key) end) as hash
                                   from (select {schema}.order_of(v_order, d.options) as key_order) o) k
             where d.group_id = p_group and d.message_id = any (array(select i.id from unnest(v_ids) as i (id))) and d.message_id <= v_claimed
               and (not exists (select from {schema}.claim c where c.group_id = p_group and c.low < d.message_id and c.high >= d.message_id)
                    or exists (select from {schema}.done x where x.group_id = p_group and x.message_id = d.message_id))
             order by d.message_id
            on conflict (group_id, message_id) do nothing;
            delete from {schema}.dead_letter d where d.group_id = p_group and d.message_id = any (array(select i.id from unnest(v_ids) as i (id)));
        elsif p_action = 'discard' then
            delete from {schema}.dead_letter d where d.group_id = p_group and d.message_id = any (array(select i.id from unnest(v_ids) as i (id)));
        elsif p_action = 'retry-now' then
            update {schema}.delivery d set due_at = v_now
             where d.group_id = p_group and d.message_id = any (array(select i.id from unnest(v_ids) as i (id))) and d.state = 'pending' and d.due_at > v_now;
        elsif p_action = 'discard-deliveries' then
            delete from {schema}.delivery d where d.group_id = p_group and d.message_id = any (array(select i.id from unnest(v_ids) as i (id))) and d.state <> 'running';
        else
            raise exception 'unknown action %', p_action using errcode = '22023';
        end if;
        get diagnostics o_done = row_count;
        if v_hashes is not null then
            perform {schema}.wake(p_group, v_hashes, v_park, v_now);
        end if;
    end if;
    if o_audit is null and (o_done > 0 or o_more) then
        insert into {schema}.operator_action (actor, action, object, detail, affected, finished_at)
        values (p_actor, p_action, p_object, p_filter, o_done, case when not o_more then clock_timestamp() end) returning id into o_audit;
    elsif o_audit is not null then
        update {schema}.operator_action a set affected = a.affected + o_done, finished_at = case when not o_more then clock_timestamp() end where a.id = o_audit;
    end if;
end
$sqlstreams$;

-- Pauses or resumes a group; o_outcome: changed | unchanged | gone. Once it has returned, no claim is made that was not made before.
create procedure {schema}.set_paused(p_group integer, p_paused boolean, p_actor text, p_object text, inout o_outcome text)
language plpgsql as $sqlstreams$
begin
    commit;
    set transaction isolation level read committed;
    perform set_config('lock_timeout', '2s', true);
    perform pg_advisory_xact_lock({class_group}, p_group);
    update {schema}.consumer_group g set paused = p_paused, updated_at = clock_timestamp() where g.id = p_group and g.paused <> p_paused;
    if found then
        insert into {schema}.operator_action (actor, action, object, affected, finished_at)
        values (p_actor, case when p_paused then 'pause' else 'resume' end, p_object, 1, clock_timestamp());
        o_outcome := 'changed';
    elsif exists (select from {schema}.consumer_group g where g.id = p_group) then
        o_outcome := 'unchanged';
    else
        o_outcome := 'gone';
    end if;
end
$sqlstreams$;
