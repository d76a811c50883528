-- title: procedures that register, delete and keep up
-- breaking: no
-- transaction: yes
-- longest lock: none that anybody waits for

-- Declares a stream. Looks before it locks: a normal start takes no lock and writes nothing. o_outcome: created | updated | unchanged | conflict (another payload kind).
create procedure {schema}.register_stream(p_name text, p_kind text, p_config json, p_replace boolean, p_partition_rows integer,
                                          inout o_id integer, inout o_outcome text, inout o_kind text, inout o_config json, inout o_previous json)
language plpgsql as $sqlstreams$
begin
    commit;
    set transaction isolation level read committed;
    for i in 1 .. 2 loop
        select s.id, s.payload_kind, s.config into o_id, o_kind, o_config from {schema}.stream s where s.name = p_name and s.state = 'active';
        if found and o_kind <> p_kind then
            o_outcome := 'conflict';
            return;
        elsif found and (not p_replace or o_config::text = p_config::text) then
            o_outcome := 'unchanged';
            return;
        end if;
        if i = 1 then
            perform set_config('lock_timeout', '5s', true);
            perform pg_advisory_xact_lock({class_register}, 0);
        end if;
    end loop;
    if o_id is not null then
        o_previous := o_config;
        o_config := p_config;
        update {schema}.stream s set config = p_config, config_version = s.config_version + 1, updated_at = clock_timestamp() where s.id = o_id;
        o_outcome := 'updated';
        return;
    end if;
    insert into {schema}.stream (name, payload_kind, config, partition_rows) values (p_name, p_kind, p_config, p_partition_rows) returning id into o_id;
    perform {schema}.make_log(o_id, p_kind);
    perform {schema}.make_leaves(o_id, 0);
    o_kind := p_kind;
    o_config := p_config;
    o_outcome := 'created';
end
$sqlstreams$;

-- The id behind which a group that starts here goes on, not clamped to what is there: beginning | head | after ID | at TIME (behind the last id appended before it; those were appended in the order of ids).
create function {schema}.position(p_stream integer, p_first_id bigint, p_start text) returns bigint
language plpgsql as $sqlstreams$
declare
    v_leaf bigint;
    v_last bigint;
    v_next bigint;
    v_low  bigint;
    v_mid  bigint;
    v_time timestamptz;
    v_at   timestamptz;
begin
    if p_start = 'beginning' then
        return p_first_id - 1;
    elsif p_start = 'head' then
        return (select h.head from {schema}.head(p_stream, p_first_id) h);
    elsif p_start like 'after %' then
        return substr(p_start, 7)::bigint;
    elsif p_start not like 'at %' then
        raise exception 'unknown position %', p_start using errcode = '22023';
    end if;
    v_time := substr(p_start, 4)::timestamptz;
    -- The first leaf whose last message is not older; then its ids are halved, as times have no index.
    for v_leaf in select p.low from {schema}.partition p where p.stream_id = p_stream and p.state = 'active' and p.high > p_first_id order by p.low
    loop
        execute 'select l.id, l.appended_at from ' || {log} || p_stream || '_' || v_leaf || ' l order by l.id desc limit 1' into v_last, v_at;
        continue when v_last is null or v_at < v_time;
        v_low := v_leaf;
        while v_low < v_last loop
            v_mid := (v_low + v_last) / 2;
            execute 'select l.id, l.appended_at from ' || {log} || p_stream || '_' || v_leaf || ' l where l.id >= ' || v_mid || ' order by l.id limit 1' into v_next, v_at;
            if v_at >= v_time then
                v_last := v_mid;
            else
                v_low := v_next + 1;
            end if;
        end loop;
        return v_low - 1;
    end loop;
    return (select h.head from {schema}.head(p_stream, p_first_id) h);
end
$sqlstreams$;

-- Declares a group. The start applies when it is created and never again. o_outcome: created | updated | unchanged | gone.
create procedure {schema}.register_group(p_stream integer, p_name text, p_config json, p_replace boolean, p_ceiling_ms bigint, p_max_reclaims integer, p_start text,
                                         inout o_id integer, inout o_outcome text, inout o_config json, inout o_previous json, inout o_version integer, inout o_start text)
language plpgsql as $sqlstreams$
declare
    v_first_id bigint;
    v_claimed  bigint;
begin
    commit;
    set transaction isolation level read committed;
    perform set_config('lock_timeout', '5s', true);
    select s.first_id into v_first_id from {schema}.stream s where s.id = p_stream and s.state = 'active';
    if not found then
        o_outcome := 'gone';
        return;
    end if;
    select g.id, g.config, g.config_version, g.start_at into o_id, o_config, o_version, o_start
      from {schema}.consumer_group g where g.stream_id = p_stream and g.name = p_name;
    if not found then
        insert into {schema}.consumer_group (stream_id, name, config, ceiling_ms, max_reclaims, start_at)
        values (p_stream, p_name, p_config, p_ceiling_ms, p_max_reclaims, p_start)
        on conflict (stream_id, name) do nothing returning id into o_id;
        if found then
            select greatest(least({schema}.position(p_stream, v_first_id, p_start), h.head), v_first_id - 1) into v_claimed from {schema}.head(p_stream, v_first_id) h;
            insert into {schema}.cursor (group_id, seq, claimed) values (o_id, 1, v_claimed);
            o_config := p_config;
            o_version := 1;
            o_start := p_start;
            o_outcome := 'created';
            return;
        end if;
        -- Somebody created it at the same time; the insert waited until that was committed.
        select g.id, g.config, g.config_version, g.start_at into o_id, o_config, o_version, o_start
          from {schema}.consumer_group g where g.stream_id = p_stream and g.name = p_name;
    end if;
    if not p_replace or o_config::text = p_config::text then
        o_outcome := 'unchanged';
        return;
    end if;
    perform pg_advisory_xact_lock({class_group}, o_id);
    select g.config into o_previous from {schema}.consumer_group g where g.id = o_id;
    update {schema}.consumer_group g
       set config = p_config, ceiling_ms = p_ceiling_ms, max_reclaims = p_max_reclaims, config_version = g.config_version + 1, updated_at = clock_timestamp()
     where g.id = o_id returning g.config_version into o_version;
    o_config := p_config;
    o_outcome := 'updated';
end
$sqlstreams$;

-- Deletes a stream with all that belongs to it, in steps that are each committed; begun, it is gone for everybody, and a repetition (upkeep does that too) finishes
-- what an interrupted one left. A leaf that somebody reads is waited for at most two seconds; then the call fails and is repeated.
-- p_actor: who asked for it, for the note in operator_action; null: upkeep, which finishes what somebody began.
create procedure {schema}.drop_stream(p_stream integer, p_actor text)
language plpgsql as $sqlstreams$
declare
    v_low   bigint;
    v_group integer;
    v_name  text;
begin
    commit;
    set transaction isolation level read committed;
    perform set_config('lock_timeout', '2s', true);
    perform pg_advisory_xact_lock({class_stream}, p_stream);
    update {schema}.stream s set state = 'deleting', updated_at = clock_timestamp() where s.id = p_stream and s.state = 'active' returning s.name into v_name;
    if found and p_actor is not null then
        insert into {schema}.operator_action (actor, action, object, detail, affected)
        select p_actor, 'delete', 'stream ' || to_json(v_name)::text,
               json_build_object('stream', p_stream, 'first_id', s.first_id, 'head', h.head, 'groups', (select count(*) from {schema}.consumer_group g where g.stream_id = p_stream),
                                 'dead', (select count(*) from {schema}.dead_letter d where d.group_id in (select g.id from {schema}.consumer_group g where g.stream_id = p_stream))), 1
          from {schema}.stream s cross join lateral {schema}.head(s.id, s.first_id) h where s.id = p_stream;
    end if;
    commit;
    loop
        set transaction isolation level read committed;
        perform set_config('lock_timeout', '2s', true);
        perform pg_advisory_xact_lock({class_leaves}, p_stream);
        select p.low into v_low from {schema}.partition p where p.stream_id = p_stream order by p.low limit 1;
        exit when not found;
        execute 'drop table if exists ' || {log} || p_stream || '_' || v_low;
        delete from {schema}.partition p where p.stream_id = p_stream and p.low = v_low;
        commit;
    end loop;
    execute 'drop table if exists ' || {log} || p_stream;
    commit;
    loop
        set transaction isolation level read committed;
        delete from {schema}.inbox i where i.stream_id = p_stream and i.seq in (select x.seq from {schema}.inbox x where x.stream_id = p_stream limit 5000);
        exit when not found;
        commit;
    end loop;
    loop
        set transaction isolation level read committed;
        delete from {schema}.idempotency_key k where k.ctid = any (array(select x.ctid from {schema}.idempotency_key x where x.stream_id = p_stream limit 5000));
        exit when not found;
        commit;
    end loop;
    loop
        set transaction isolation level read committed;
        delete from {schema}.idempotency_id k where k.ctid = any (array(select x.ctid from {schema}.idempotency_id x where x.stream_id = p_stream limit 5000));
        exit when not found;
        commit;
    end loop;
    delete from {schema}.compaction c where c.stream_id = p_stream;
    loop
        select g.id into v_group from {schema}.consumer_group g where g.stream_id = p_stream limit 1;
        exit when not found;
        perform set_config('lock_timeout', '2s', true);
        perform pg_advisory_xact_lock({class_group}, v_group);
        delete from {schema}.cursor x where x.group_id = v_group;
        delete from {schema}.claim x where x.group_id = v_group;
        delete from {schema}.done x where x.group_id = v_group;
        delete from {schema}.instance x where x.group_id = v_group;
        delete from {schema}.delivery x where x.group_id = v_group;
        delete from {schema}.dead_letter x where x.group_id = v_group;
        delete from {schema}.attempt x where x.group_id = v_group;
        delete from {schema}.once x where x.group_id = v_group;
        delete from {schema}.consumer_group g where g.id = v_group;
        commit;
        set transaction isolation level read committed;
    end loop;
    delete from {schema}.stream s where s.id = p_stream and s.state = 'deleting';
    update {schema}.operator_action a set finished_at = clock_timestamp()
     where a.action = 'delete' and a.finished_at is null and a.detail->>'stream' = p_stream::text;
end
$sqlstreams$;

-- Makes another part of the inbox current once the current one has grown; o_outcome: rotated | not needed | none free.
create procedure {schema}.rotate_inbox(p_bytes bigint, inout o_outcome text)
language plpgsql as $sqlstreams$
declare
    v_current smallint;
    v_next    smallint;
begin
    commit;
    set transaction isolation level read committed;
    perform set_config('lock_timeout', '2s', true);
    v_current := {schema}.inbox_current();
    o_outcome := 'not needed';
    if pg_relation_size(({inbox} || v_current)::regclass) < p_bytes then
        return;
    end if;
    perform pg_advisory_xact_lock({class_inbox}, 0);
    -- A part is free when it holds no page: it was truncated since it last was current.
    select p.part into v_next from {schema}.inbox_part p
     where p.part <> v_current and pg_relation_size(({inbox} || p.part)::regclass) = 0 order by p.current_since, p.part limit 1;
    if not found then
        select max(p.part) + 1 into v_next from {schema}.inbox_part p;
        if v_next > 31 then
            o_outcome := 'none free';
            return;
        end if;
        execute 'create table ' || {inbox} || v_next || ' (like {schema_text}.inbox including defaults including constraints including indexes)'
             || ' with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0)';
        execute 'alter table {schema_text}.inbox attach partition ' || {inbox} || v_next || ' for values in (' || v_next || ')';
        insert into {schema}.inbox_part (part, current_since) values (v_next, 'epoch');
    end if;
    update {schema}.inbox_part p set retired_at = clock_timestamp() where p.part = v_current;
    update {schema}.inbox_part p set current_since = clock_timestamp(), retired_at = null where p.part = v_next;
    o_outcome := 'rotated';
end
$sqlstreams$;

-- Empties one retired part. Three guards: locked exclusively without waiting (an open producer or reader keeps it), not current, and counted empty under that lock.
-- Retired for p_age: no young snapshot can hold that it saw a row neither here nor in the log. o_outcome: emptied | busy | not needed.
create procedure {schema}.empty_inbox_part(p_part integer, p_age interval, inout o_outcome text)
language plpgsql as $sqlstreams$
declare
    v_left boolean;
begin
    commit;
    set transaction isolation level read committed;
    o_outcome := 'not needed';
    if not exists (select from {schema}.inbox_part p where p.part = p_part and p.retired_at < clock_timestamp() - p_age)
       or pg_relation_size(({inbox} || p_part)::regclass) = 0 then
        return;
    end if;
    perform pg_advisory_xact_lock({class_inbox}, 0);
    begin
        execute 'lock table ' || {inbox} || p_part || ' in access exclusive mode nowait';
    exception when lock_not_available then
        o_outcome := 'busy';
        return;
    end;
    execute 'select exists (select from ' || {inbox} || p_part || ' i)' into v_left;
    if v_left or {schema}.inbox_current() = p_part then
        o_outcome := 'busy';
        return;
    end if;
    execute 'truncate table ' || {inbox} || p_part;
    o_outcome := 'emptied';
end
$sqlstreams$;

-- What there is to do for these groups, for the one statement a process sends when idle. Takes no lock that anybody waits for; a moment old when it arrives.
create function {schema}.probe(p_groups integer[])
    returns table (group_id integer, stream_id integer, claimed bigint, head bigint, inbox boolean, due boolean, next_due_ms double precision,
                   expired boolean, paused boolean, gone boolean)
language plpgsql as $sqlstreams$
declare
    v_first  bigint;
    v_stream integer;
    v_due    timestamptz;
    v_now    timestamptz := clock_timestamp();
begin
    for group_id in select x.id from unnest(p_groups) as x (id) loop
        select g.stream_id, g.paused, s.first_id into stream_id, paused, v_first
          from {schema}.consumer_group g join {schema}.stream s on s.id = g.stream_id where g.id = probe.group_id and s.state = 'active';
        gone := not found;
        if gone then
            stream_id := null; claimed := null; head := null; inbox := false; due := false; next_due_ms := null; expired := false; paused := false;
            return next;
            continue;
        end if;
        if v_stream is distinct from stream_id then
            -- Groups of one stream come in a row; its head and inbox are looked at once.
            v_stream := stream_id;
            select h.head into head from {schema}.head(v_stream, v_first) h;
            inbox := exists (select from {schema}.inbox i where i.stream_id = v_stream order by i.seq limit 1);
        end if;
        select c.claimed into claimed from {schema}.cursor c where c.group_id = probe.group_id order by c.seq desc limit 1;
        select min(d.due_at) into v_due from (
            (select x.due_at from {schema}.delivery x where x.group_id = probe.group_id and x.state = 'pending' and x.solo = false order by x.due_at limit 1)
            union all
            (select x.due_at from {schema}.delivery x where x.group_id = probe.group_id and x.state = 'pending' and x.solo = true order by x.due_at limit 1)) d;
        due := coalesce(v_due <= v_now, false);
        next_due_ms := extract(epoch from v_due - v_now) * 1000;
        expired := exists (select from {schema}.claim c where c.group_id = probe.group_id and c.expires_at <= v_now)
                or exists (select from {schema}.delivery x where x.group_id = probe.group_id and x.state = 'running' and x.expires_at <= v_now);
        return next;
    end loop;
end
$sqlstreams$;
