-- title: the procedure that records and hands out work
-- breaking: no
-- transaction: yes
-- longest lock: none that anybody waits for

-- Writes the outcomes, none of them a success, of messages on the main line. Under the group's lock. p_low is the range's; what lies at or below it was recorded before, as what has a mark was.
create function {schema}.settle(p_group integer, p_stream integer, p_kind text, p_instance uuid, p_now timestamptz, p_low bigint, p_outcomes json) returns void
language plpgsql as $sqlstreams$
declare
    v_dead boolean;
begin
    -- A message whose handler committed its own transaction (finish_tx) after its attempt had been written off is done. The caller has locked the claim in an earlier statement, so a commit that was under way is seen.
    if exists (select from {schema}.done d where d.group_id = p_group and d.message_id in (select x.id from json_to_recordset(p_outcomes) as x (id bigint)))
       or exists (select from json_to_recordset(p_outcomes) as x (id bigint) where x.id <= p_low) then
        select json_agg(o.e) into p_outcomes from json_array_elements(p_outcomes) as o (e)
         where (o.e->>'id')::bigint > p_low and not exists (select from {schema}.done d where d.group_id = p_group and d.message_id = (o.e->>'id')::bigint);
        if p_outcomes is null then
            return;
        end if;
    end if;
    insert into {schema}.delivery (group_id, message_id, state, due_at, attempt, solo, message_key, key_hash, ordered, last_error)
    select p_group, x.id, case when x.kind = 'wait' and x.key_order is not null then 'waiting' else 'pending' end, p_now + x.due_ms * interval '1 millisecond', x.attempt, coalesce(x.solo, false),
           x.key, case when x.key_order is not null then {schema}.key_hash(x.key) end, coalesce(x.key_order = 'ordered', false), x.error
      from json_to_recordset(p_outcomes) as x (id bigint, kind text, attempt integer, due_ms double precision, error text, solo boolean, key text, key_order text)
     where x.kind in ('retry', 'delay', 'wait')
    on conflict (group_id, message_id) do nothing;
    insert into {schema}.attempt (group_id, message_id, attempt, kind, error, instance)
    select p_group, x.id, x.attempt, x.kind, x.error, p_instance
      from json_to_recordset(p_outcomes) as x (id bigint, kind text, attempt integer, error text)
     where x.kind in ('retry', 'dead');
    select exists (select from json_to_recordset(p_outcomes) as x (kind text) where x.kind = 'dead') into v_dead;
    if v_dead then
        perform {schema}.bury(p_group, p_stream, p_kind, p_outcomes);
    end if;
end
$sqlstreams$;

-- Writes dead letters with a copy of message and headers: from the delivery's copy if it has one, else from the log. Whether one parks its key, the outcome says.
create function {schema}.bury(p_group integer, p_stream integer, p_kind text, p_outcomes json) returns void
language plpgsql as $sqlstreams$
declare
    e      record;
    m      record;
    v_leaf bigint;
begin
    for e in select x.id, x.attempt, x.reason, x.error, case when x.parks then coalesce(x.hash, {schema}.key_hash(x.key)) end as parks
               from json_to_recordset(p_outcomes) as x (id bigint, kind text, attempt integer, reason text, error text, key text, hash bigint, parks boolean)
              where x.kind = 'dead' order by x.id
    loop
        select d.produced_at, d.appended_at, d.scheduled_at, d.schema_version, d.message_key, d.routing_key, d.headers, d.options, d.payload, d.payload_bytes
          into m from {schema}.delivery d where d.group_id = p_group and d.message_id = e.id and d.copied;
        if not found then
            select p.low into v_leaf from {schema}.partition p
             where p.stream_id = p_stream and p.low <= e.id and p.high > e.id order by p.low desc limit 1;
        else
            v_leaf := null;
        end if;
        if v_leaf is not null then
            execute 'select l.produced_at, l.appended_at, l.scheduled_at, l.schema_version, l.message_key, l.routing_key, l.headers, l.options, '
                 || case p_kind when 'json' then 'l.payload, null::bytea as payload_bytes' else 'null::json as payload, l.payload as payload_bytes' end
                 || ' from ' || {log} || p_stream || '_' || v_leaf || ' l where l.id = ' || e.id into m;
            -- Compaction has removed it, as a newer message of its key is there: of what was replaced there is nothing to set aside.
            continue when m.appended_at is null;
        end if;
        insert into {schema}.dead_letter (group_id, message_id, reason, error, attempts, produced_at, appended_at, scheduled_at, schema_version,
                                          message_key, routing_key, headers, options, payload, payload_bytes, parks)
        values (p_group, e.id, e.reason, e.error, e.attempt, m.produced_at, m.appended_at, m.scheduled_at, m.schema_version,
                m.message_key, m.routing_key, m.headers, m.options, m.payload, m.payload_bytes, e.parks)
        on conflict (group_id, message_id) do update
           set died_at = clock_timestamp(), reason = excluded.reason, error = excluded.error, attempts = excluded.attempts, parks = excluded.parks;
    end loop;
end
$sqlstreams$;

-- Hands out at most p_max ids beyond the cursor: none, or those in (o_low, o_high]. Under the group's lock. p_order is the group's order of keys (null: each message's); o_keyed says that there may be exclusive or ordered messages in it.
create function {schema}.take_fresh(p_group integer, p_stream integer, p_first_id bigint, p_max integer, p_bytes bigint, p_order text,
                                    out o_low bigint, out o_high bigint, out o_more boolean, out o_claimed bigint, out o_lost_from bigint, out o_count integer, out o_keyed boolean)
language plpgsql as $sqlstreams$
declare
    v_seq   bigint;
    v_count bigint;
    v_bytes bigint;
    v_top   bigint;
    v_head  bigint;
    v_leaf  bigint;
    v_end   bigint;
    v_state text;
    v_whole boolean := false; -- all of one leaf: a later one may hold more
    v_gaps  boolean;
    v_keyed text; -- what a message has that can hold its key
begin
    o_more := false;
    -- Counted by the query that counts the rest, and by the least that says so: each further word of it would be parsed for each claim of groups that know no keys.
    v_keyed := case when p_order is null then 'l.options' when p_order in ('exclusive', 'ordered') then 'l.message_key' else 'null' end;
    select c.seq, c.claimed into v_seq, o_claimed from {schema}.cursor c where c.group_id = p_group order by c.seq desc limit 1;
    if o_claimed < p_first_id - 1 then
        -- What lay between is gone from the stream: told once, because the cursor moves on here.
        o_lost_from := o_claimed;
        o_claimed := p_first_id - 1;
    end if;
    select p.low, p.high, p.state, p.gaps into v_leaf, v_end, v_state, v_gaps from {schema}.partition p
     where p.stream_id = p_stream and p.low <= o_claimed + 1 order by p.low desc limit 1;
    -- Where messages were removed one by one, so many ids are fewer messages: those are counted one after the other.
    if v_state = 'active' and o_claimed + 1 < v_end and not v_gaps then
        -- One leaf, asked by its own name: the plan locks no other, and planning over all of them would cost more than a small claim.
        execute 'select count(*), sum(l.size), max(l.id), count(' || v_keyed || ') > 0 from ' || {log} || p_stream || '_' || v_leaf || ' l where l.id >= ' || o_claimed + 1
             || ' and l.id <= ' || least(o_claimed + p_max, v_end - 1) into v_count, v_bytes, v_top, o_keyed;
    end if;
    if v_count is distinct from 0 and v_count is not null then
        v_whole := v_top = v_end - 1;
    elsif v_state is distinct from 'ahead' then
        -- The end, or a gap that retention, compaction or erasure left: the first leaf that holds something, so that what a range holds always lies in one leaf, that of its last id.
        select h.head into v_head from {schema}.head(p_stream, p_first_id) h;
        for v_leaf in select p.low from {schema}.partition p
                       where p.stream_id = p_stream and p.high > o_claimed + 1 and p.low <= v_head order by p.low
        loop
            execute 'select count(*), sum(q.size), max(q.id), count(q.keyed) > 0 from (select l.id, l.size, ' || v_keyed || ' as keyed from ' || {log} || p_stream || '_' || v_leaf || ' l where l.id >= ' || o_claimed + 1
                 || ' and l.id <= ' || v_head || ' order by l.id limit ' || p_max || ') q' into v_count, v_bytes, v_top, o_keyed;
            exit when v_count > 0;
        end loop;
        v_whole := v_top < v_head;
    end if;
    if v_count > 0 then
        o_low := o_claimed;
        o_high := v_top;
        o_count := v_count;
        if v_bytes > p_bytes then
            execute 'select max(q.id) from (select r.id, r.n, sum(r.size) over (order by r.id) as total from (select l.id, l.size, row_number() over (order by l.id) as n from '
                 || {log} || p_stream || '_' || v_leaf || ' l where l.id >= ' || o_claimed + 1 || ' and l.id <= ' || v_top || ' order by l.id) r) q where q.n = 1 or q.total <= ' || p_bytes
               into o_high;
            o_count := null;
        end if;
        o_more := v_count >= p_max or o_high < v_top or v_whole;
        o_claimed := o_high;
    end if;
    if o_keyed and p_order is null then
        -- Options can be about other things. To look for the word costs a fraction of taking JSON apart.
        execute 'select exists (select from ' || {log} || p_stream || '_' || v_leaf || ' l where l.id >= ' || o_low + 1 || ' and l.id <= ' || o_high
             || ' and l.options is not null and l.message_key is not null and strpos(l.options::text, ''key_order'') > 0)' into o_keyed;
    end if;
    if o_high is not null or o_lost_from is not null then
        insert into {schema}.cursor (group_id, seq, claimed) values (p_group, coalesce(v_seq, 0) + 1, o_claimed);
    end if;
end
$sqlstreams$;

-- Turns an expired range that was taken over too often into solo deliveries, one a message that is there and not finished. Says how many. Under the group's lock.
-- If it held keys, p_keyed, the first of each key runs first.
create function {schema}.break_up(p_group integer, p_stream integer, p_low bigint, p_high bigint, p_keyed boolean, p_order text, p_park boolean, p_now timestamptz) returns integer
language plpgsql as $sqlstreams$
declare
    v_leaf  bigint;
    v_count integer := 0;
    v_keyed integer := 0;
begin
    if p_keyed then
        select t.o_messages into v_keyed from {schema}.take_keys(p_group, p_stream, p_low, p_high, p_order, p_park, null, p_now, 'alone') t;
    end if;
    -- What a range holds lies in the leaf of its last id.
    select p.low into v_leaf from {schema}.partition p
     where p.stream_id = p_stream and p.low <= p_high and p.high > p_high order by p.low desc limit 1;
    if found then
        execute 'insert into {schema_text}.delivery (group_id, message_id, state, due_at, solo, message_key, last_error)
            select $1, l.id, ''pending'', $2, true, l.message_key, ''its range was taken over too often''
              from ' || {log} || p_stream || '_' || v_leaf || ' l
             where l.id >= ' || p_low + 1 || ' and l.id <= ' || p_high || ' and l.redacted_at is null
               and not exists (select from {schema_text}.done d where d.group_id = $1 and d.message_id = l.id)
             order by l.id
            on conflict (group_id, message_id) do nothing' using p_group, p_now;
        get diagnostics v_count = row_count;
    end if;
    delete from {schema}.claim c where c.group_id = p_group and c.low = p_low;
    delete from {schema}.done d where d.group_id = p_group and d.message_id > p_low and d.message_id <= p_high;
    return v_count + v_keyed;
end
$sqlstreams$;

-- Records what is finished and hands out what is next, in one transaction under the group's lock. Sent alone.
-- Repeating it is safe: a result whose token is gone is refused, and a repeated claim only takes more.
create procedure {schema}.work(p_request json, inout p_reply json)
language plpgsql as $sqlstreams$
declare
    req        record;
    grp        record;
    item       record;
    expired    record;
    v_now      timestamptz;
    v_low      bigint;
    v_high     bigint;
    v_fresh_more boolean;
    v_mid      bigint;
    v_lost     json[] := '{}';
    v_lost_ids bigint[] := '{}';
    v_range    json;
    v_handed   json;
    v_broken   integer := 0;
    v_more     boolean := false;
    v_floor    bigint;
    v_claimed  bigint;
    v_expiry   timestamptz;
    v_due      timestamptz;
    v_solo_due timestamptz;
    v_lost_from bigint;
    v_room      bigint; -- how many messages may start now; null: any number
    v_free      bigint; -- and how many of them this instance could start at once
    v_rate      double precision;
    v_tokens    double precision;
    v_started   bigint := 0;
    v_count     integer;
    v_passed    bigint; -- ids of a range that was not opened of which nothing is left: removed or erased
    v_limited   double precision;
    v_keyed     boolean := false; -- keys were touched: the commit is synchronous
    v_freed     bigint[]; -- keys that this call let go of and whose next is to be woken
    v_woken     bigint[];
    v_hash      bigint;
    v_holding   boolean; -- whether a range holds keys, or may
    v_hashes    bigint[];
    v_ids       bigint[];
    v_line      bigint[]; -- deliveries with a key that were handed out
    v_lined     json;
    v_waiting   bigint[];
begin
    commit;
    set transaction isolation level read committed;
    select x.* into req from json_to_record(p_request) as x
        (group_id integer, stream_id integer, instance uuid, config_version integer, durable boolean,
         results json, deliveries json, surrenders json, stale json, release json,
         range_token uuid, max_messages integer, max_bytes bigint, take_over boolean, floor bigint, rest_token uuid, part_max integer,
         delivery_token uuid, retries integer, solo boolean, look_expired boolean, margins_ms bigint, free integer,
         partials json, freed json, followers integer, holds uuid[]);
    -- For this transaction only. Statistics of tables that are empty now and full a minute later mislead the planner into scanning them whole, and plans inside
    -- procedures live as long as the session; so only index plans are left.
    perform set_config('lock_timeout', '2s', true), set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
            set_config('enable_mergejoin', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_material', 'off', true), set_config('jit', 'off', true);
    perform pg_advisory_xact_lock({class_group}, req.group_id);
    -- The statements below see what earlier holders committed.
    v_now := clock_timestamp();
    select cg.config, cg.config_version, cg.ceiling_ms, cg.max_reclaims, cg.paused, cg.epoch, s.first_id, s.payload_kind,
           cg.config->>'key_order' as key_order, coalesce((cg.config->>'park_key_on_dead_letter')::boolean, false) as park into grp
      from {schema}.consumer_group cg join {schema}.stream s on s.id = cg.stream_id
     where cg.id = req.group_id and s.state = 'active';
    if not found then
        p_reply := json_build_object('gone', true);
        return;
    end if;

    -- 1. Ranges: the row with the token decides.
    for item in select x.low, x.token, x.outcomes from json_to_recordset(req.results) as x (low bigint, token uuid, outcomes json) order by x.low
    loop
        delete from {schema}.claim c where c.group_id = req.group_id and c.low = item.low and c.token = item.token returning c.low, c.high, c.key_hashes into v_low, v_high, v_hashes;
        if not found then
            -- A partial record whose confirmation was lost has raised its low.
            delete from {schema}.claim c where c.group_id = req.group_id and c.low > item.low and c.token = item.token returning c.low, c.high, c.key_hashes into v_low, v_high, v_hashes;
        end if;
        if not found then
            v_lost := v_lost || json_build_object('low', item.low, 'token', item.token);
            continue;
        end if;
        if item.outcomes is not null then
            perform {schema}.settle(req.group_id, req.stream_id, grp.payload_kind, req.instance, v_now, v_low, item.outcomes);
        end if;
        delete from {schema}.done d where d.group_id = req.group_id and d.message_id > v_low and d.message_id <= v_high;
        if v_hashes is not null then
            v_freed := v_freed || v_hashes;
        end if;
    end loop;

    -- 2. Deliveries, likewise.
    if req.deliveries is not null then
        for item in select x.id, x.token, x.kind, x.attempt, x.due_ms, x.reason, x.error, x.solo, x.parks
                   from json_to_recordset(req.deliveries) as x (id bigint, token uuid, kind text, attempt integer, due_ms double precision, reason text, error text, solo boolean, parks boolean)
                  order by x.id
        loop
            if item.kind = 'ok' then
                delete from {schema}.delivery d where d.group_id = req.group_id and d.message_id = item.id and d.token = item.token returning d.key_hash into v_hash;
            elsif item.kind = 'dead' then
                -- Copied before its row, which may hold the only copy of the payload, goes. The row is locked first: the handler's own transaction (finish_tx) may be deleting it at this moment, and then there is nobody to bury.
                select d.key_hash into v_hash from {schema}.delivery d where d.group_id = req.group_id and d.message_id = item.id and d.token = item.token for update;
                if found then
                    perform {schema}.bury(req.group_id, req.stream_id, grp.payload_kind,
                        json_build_array(json_build_object('id', item.id, 'kind', 'dead', 'attempt', item.attempt, 'reason', item.reason, 'error', item.error, 'parks', item.parks, 'hash', v_hash)));
                end if;
                delete from {schema}.delivery d where d.group_id = req.group_id and d.message_id = item.id and d.token = item.token;
            elsif item.kind = 'wait' then
                update {schema}.delivery d set state = case when d.key_hash is null then 'pending' else 'waiting' end, due_at = v_now, token = null, expires_at = null, instance = null
                 where d.group_id = req.group_id and d.message_id = item.id and d.token = item.token returning d.key_hash into v_hash;
            else
                update {schema}.delivery d
                   set state = 'pending', due_at = v_now + item.due_ms * interval '1 millisecond', attempt = item.attempt, solo = coalesce(item.solo, d.solo),
                       token = null, expires_at = null, instance = null, last_error = coalesce(item.error, d.last_error)
                 where d.group_id = req.group_id and d.message_id = item.id and d.token = item.token returning d.key_hash into v_hash;
            end if;
            if not found then
                v_lost_ids := v_lost_ids || item.id;
                continue;
            end if;
            if v_hash is not null then
                v_freed := v_freed || v_hash;
            end if;
            if item.kind in ('retry', 'dead') then
                insert into {schema}.attempt (group_id, message_id, attempt, kind, error, instance)
                values (req.group_id, item.id, item.attempt, item.kind, item.error, req.instance);
            end if;
        end loop;
    end if;

    -- 3. Parts of ranges that stay open, ranges given back, ranges that went stale, deliveries handed back unstarted.
    if coalesce(req.partials, req.surrenders, req.stale, req.release, req.freed) is not null then
        for item in select x.low, x.token, x.prefix, x.done, x.outcomes, x.keys
                   from json_to_recordset(req.partials) as x (low bigint, token uuid, prefix bigint, done json, outcomes json, keys json) order by x.low
        loop
            -- Found by its token, at the low that the caller knows or above: a first sending whose confirmation was lost has raised it. Locked before marks are read.
            select c.low, c.high, c.key_hashes into v_low, v_high, v_hashes from {schema}.claim c
             where c.group_id = req.group_id and c.low >= item.low and c.token = item.token and c.high > item.prefix order by c.low limit 1 for update;
            if not found then
                v_lost := v_lost || json_build_object('low', item.low, 'token', item.token);
                continue;
            end if;
            v_ids := array(select {schema}.key_hash(x.key) from json_array_elements_text(item.keys) as x (key));
            v_hashes := array(select h.hash from unnest(v_hashes) as h (hash) except select h.hash from unnest(v_ids) as h (hash));
            v_mid := greatest(v_low, item.prefix);
            update {schema}.claim c set low = v_mid, messages = least(c.messages, c.high - v_mid), key_hashes = case when cardinality(v_hashes) > 0 then v_hashes end
             where c.group_id = req.group_id and c.low = v_low;
            if item.outcomes is not null then
                perform {schema}.settle(req.group_id, req.stream_id, grp.payload_kind, req.instance, v_now, v_low, item.outcomes);
            end if;
            delete from {schema}.done d where d.group_id = req.group_id and d.message_id > v_low and d.message_id <= v_mid;
            insert into {schema}.done (group_id, message_id)
            select req.group_id, x.id::bigint from json_array_elements_text(item.done) as x (id) where x.id::bigint > v_mid and x.id::bigint <= v_high on conflict do nothing;
            v_freed := v_freed || v_ids;
            v_keyed := true;
        end loop;
        for item in select x.low, x.token, x.prefix, x.done, x.outcomes
                   from json_to_recordset(req.surrenders) as x (low bigint, token uuid, prefix bigint, done json, outcomes json) order by x.low
        loop
            -- Under a token that nobody has: what a handler that was abandoned still does under the old one must be refused.
            -- Its keys stay held, until whoever takes it over looks at them again. What a partial record raised its low to without being confirmed is not lowered.
            select c.low, c.high, c.key_hashes is not null into v_low, v_high, v_holding from {schema}.claim c
             where c.group_id = req.group_id and c.low >= item.low and c.token = item.token and c.high > item.prefix order by c.low limit 1 for update;
            if not found then
                v_lost := v_lost || json_build_object('low', item.low, 'token', item.token);
                continue;
            end if;
            v_mid := greatest(v_low, item.prefix);
            update {schema}.claim c set low = v_mid, messages = null, token = gen_random_uuid(), expires_at = v_now, excused = true where c.group_id = req.group_id and c.low = v_low;
            if item.outcomes is not null then
                perform {schema}.settle(req.group_id, req.stream_id, grp.payload_kind, req.instance, v_now, v_low, item.outcomes);
            end if;
            delete from {schema}.done d where d.group_id = req.group_id and d.message_id > v_low and d.message_id <= v_mid;
            insert into {schema}.done (group_id, message_id)
            select req.group_id, x.id::bigint from json_array_elements_text(item.done) as x (id) where x.id::bigint > v_mid and x.id::bigint <= v_high on conflict do nothing;
            v_keyed := v_keyed or v_holding;
        end loop;
        for item in select x.low, x.token from json_to_recordset(req.stale) as x (low bigint, token uuid) order by x.low
        loop
            update {schema}.claim c set stale = c.stale + 1, excused = true
             where c.group_id = req.group_id and c.low >= item.low and c.token = item.token and not c.excused;
        end loop;
        for item in select x.id, x.token from json_to_recordset(req.release) as x (id bigint, token uuid) order by x.id
        loop
            update {schema}.delivery d set state = case when d.key_hash is null then 'pending' else 'waiting' end, due_at = v_now, token = null, expires_at = null, instance = null
             where d.group_id = req.group_id and d.message_id = item.id and d.token = item.token returning d.key_hash into v_hash;
            if v_hash is not null then
                v_freed := v_freed || v_hash;
            end if;
        end loop;
        if req.freed is not null then
            v_freed := v_freed || array(select {schema}.key_hash(x.key) from json_array_elements_text(req.freed) as x (key));
        end if;
    end if;

    if not grp.paused then
        -- 4. Deliveries whose lease ended return, to run alone from now on; it was an attempt only if it had run alone.
        if req.look_expired then
            -- Fixed once in a part of its own: a join may evaluate a subquery with a limit and locks again and again, and take more each time. And
            -- compared with an array, so that the rows are found by key whatever the statistics say.
            with tokens as materialized (
                select x.token from {schema}.delivery x
                 where x.group_id = req.group_id and x.state = 'running' and x.expires_at <= v_now
                 order by x.expires_at limit 1000),
            -- All that was handed out together: of a line that was cut here a late record of its end would be accepted, and its head would run again after it.
            ended as materialized (
                select x.message_id, x.token, x.key_hash from {schema}.delivery x
                 where x.group_id = req.group_id and x.state = 'running' and x.expires_at <= v_now and x.token = any (array(select distinct q.token from tokens q))
                 order by x.expires_at, x.message_id for update skip locked),
            -- Those behind another in the line of a key had not started.
            behind as materialized (
                select q.message_id from ended q
                 where q.key_hash is not null and exists (select from {schema}.delivery b where b.group_id = req.group_id and b.key_hash = q.key_hash and b.state <> 'waiting'
                                                            and b.state = 'running' and b.token = q.token and b.message_id < q.message_id)),
            back as (
                update {schema}.delivery d
                   set state = 'waiting', due_at = v_now, token = null, expires_at = null, instance = null
                 where d.group_id = req.group_id and d.message_id = any (array(select q.message_id from behind q))
                returning d.key_hash),
            alone as (
                update {schema}.delivery d
                   set state = 'pending', due_at = v_now, solo = true, attempt = d.attempt + case when d.solo then 1 else 0 end,
                       token = null, expires_at = null, instance = null,
                       last_error = case when d.solo then 'its lease ended while it ran alone' else d.last_error end
                 where d.group_id = req.group_id and d.message_id = any (array(select q.message_id from ended q except select q.message_id from behind q))
                returning d.key_hash)
            select array_agg(q.key_hash) into v_hashes from (select b.key_hash from back b union all select a.key_hash from alone a) q where q.key_hash is not null;
            v_freed := v_freed || v_hashes;
        end if;
        -- What was let go of is woken before deliveries are handed out, so that this call may hand out what waited.
        if v_freed is not null then
            v_woken := {schema}.wake(req.group_id, v_freed, grp.park, v_now);
            v_keyed := true;
            v_freed := null;
        end if;
        -- The limits of the group, over all its instances. What is under a lease that has not ended counts as running, started or not, so no more than can start at once is handed out.
        if grp.config->>'max_running' is not null then
            select greatest((grp.config->>'max_running')::bigint
                   - (select coalesce(sum(coalesce(x.messages, x.high - x.low)), 0) from {schema}.claim x where x.group_id = req.group_id and x.expires_at > v_now)
                   - (select count(*) from {schema}.delivery x where x.group_id = req.group_id and x.state = 'running' and x.expires_at > v_now), 0) into v_room;
            v_free := coalesce(req.free, req.max_messages);
        end if;
        if grp.config->>'rate_per_second' is not null then
            v_rate := (grp.config->>'rate_per_second')::double precision;
            select x.tokens + greatest(extract(epoch from v_now - x.tokens_at), 0) * v_rate into v_tokens
              from {schema}.cursor x where x.group_id = req.group_id order by x.seq desc limit 1;
            v_tokens := least(coalesce(v_tokens, 'infinity'), greatest(v_rate, 1));
            v_room := least(v_room, floor(v_tokens)::bigint);
        end if;
        if req.delivery_token is not null then
            with due as materialized (
                select x.message_id, x.key_hash from {schema}.delivery x
                 where x.group_id = req.group_id and x.state = 'pending' and x.solo = coalesce(req.solo, false) and x.due_at <= v_now
                 order by x.due_at, x.message_id limit least(case when req.solo then 1 else req.retries end, v_room) for update skip locked),
            taken as (
                update {schema}.delivery d
                   set state = 'running', token = req.delivery_token, instance = req.instance, ceiling_ms = grp.ceiling_ms,
                       expires_at = v_now + (req.margins_ms + grp.ceiling_ms) * interval '1 millisecond'
                 where d.group_id = req.group_id and d.message_id = any (array(select q.message_id from due q where q.key_hash is null))
                returning d.message_id, d.attempt, d.solo)
            select json_agg(json_build_object('id', t.message_id, 'attempt', t.attempt, 'solo', t.solo) order by t.message_id), count(*),
                   (select array_agg(q.message_id) from due q where q.key_hash is not null) into v_handed, v_count, v_ids from taken t;
            if v_ids is not null then
                select t.o_ids, t.o_freed into v_line, v_freed
                  from {schema}.line_up(req.group_id, v_ids, least(case when req.solo then 0 else req.followers end, v_room - v_count - cardinality(v_ids)), grp.park) t;
                with taken as (
                    update {schema}.delivery d
                       set state = 'running', token = req.delivery_token, instance = req.instance, ceiling_ms = grp.ceiling_ms,
                           expires_at = v_now + (req.margins_ms + grp.ceiling_ms) * interval '1 millisecond'
                     where d.ctid = any ({schema}.rows_of(req.group_id, v_line))
                    returning d.message_id, d.attempt, d.solo, d.ordered, d.out_of_order)
                select json_agg(json_build_object('id', t.message_id, 'attempt', t.attempt, 'solo', t.solo, 'key_order', case when t.ordered then 'ordered' else 'exclusive' end,
                                                  'out_of_order', t.out_of_order)) into v_lined from taken t;
                v_count := v_count + coalesce(cardinality(v_line), 0);
                v_keyed := true;
            end if;
            v_started := v_count;
            v_room := v_room - v_count;
            v_free := v_free - v_count;
        end if;

        -- 5. Expired ranges, the lowest first.
        v_floor := req.floor;
        if req.take_over then
            for i in 1 .. 4 loop
                select x.low, x.high, x.reclaims, x.stale, x.excused, x.key_hashes, x.key_order into expired from {schema}.claim x
                 where x.group_id = req.group_id and x.low >= req.floor and x.expires_at <= v_now
                 order by x.low limit 1 for update skip locked;
                exit when not found;
                if not expired.excused and expired.reclaims >= grp.max_reclaims then
                    v_broken := v_broken + {schema}.break_up(req.group_id, req.stream_id, expired.low, expired.high, expired.key_hashes is not null, expired.key_order, grp.park, v_now);
                    v_freed := v_freed || expired.key_hashes;
                    continue;
                end if;
                exit when req.range_token is null or least(v_room, v_free) <= 0;
                v_high := expired.high;
                v_mid := expired.high;
                if expired.stale >= 2 and expired.high - expired.low > 1 then
                    v_mid := expired.low + greatest(1, least((expired.high - expired.low) / 2, req.part_max));
                end if;
                v_mid := least(v_mid, expired.low + least(v_room, v_free));
                if v_mid < expired.high then
                    insert into {schema}.claim (group_id, low, high, token, expires_at, ceiling_ms, reclaims, stale, excused, instance, key_hashes, key_order)
                    values (req.group_id, v_mid, expired.high, req.rest_token, v_now, grp.ceiling_ms, expired.reclaims, expired.stale, true, req.instance, expired.key_hashes, expired.key_order);
                    v_high := v_mid;
                end if;
                update {schema}.claim x
                   set high = v_high, messages = case when v_high = expired.high then x.messages end, token = req.range_token, expires_at = v_now + (req.margins_ms + grp.ceiling_ms) * interval '1 millisecond',
                       ceiling_ms = grp.ceiling_ms, reclaims = x.reclaims + case when x.excused then 0 else 1 end, excused = false, instance = req.instance
                 where x.group_id = req.group_id and x.low = expired.low;
                v_count := v_high - expired.low;
                v_hashes := null;
                if expired.key_hashes is not null then
                    -- What lower claims have come to hold, and what was set waiting meanwhile, decides anew. A range that was claimed as parallel stays parallel.
                    select t.o_hashes, t.o_messages into v_hashes, v_count
                      from {schema}.take_keys(req.group_id, req.stream_id, expired.low, v_high, expired.key_order, grp.park, req.holds, v_now, 'again') t;
                    update {schema}.claim x set key_hashes = v_hashes, messages = v_count where x.group_id = req.group_id and x.low = expired.low;
                    v_freed := v_freed || array(select h.hash from unnest(expired.key_hashes) as h (hash) except select h.hash from unnest(v_hashes) as h (hash));
                    v_keyed := true;
                end if;
                v_started := v_started + v_count;
                v_room := v_room - v_count;
                v_range := json_build_object('low', expired.low, 'high', v_high, 'reclaims', expired.reclaims + case when expired.excused then 0 else 1 end, 'stale', expired.stale, 'again', true,
                    'keyed', v_hashes is not null, 'key_order', expired.key_order,
                    'done', (select json_agg(d.message_id order by d.message_id) from {schema}.done d
                              where d.group_id = req.group_id and d.message_id > expired.low and d.message_id <= v_high));
                exit;
            end loop;
            select min(x.low), bool_or(x.expires_at <= v_now), min(x.expires_at) filter (where x.expires_at > v_now and x.instance <> req.instance)
              into v_floor, v_more, v_expiry from {schema}.claim x where x.group_id = req.group_id and x.low >= req.floor;
            v_more := coalesce(v_more, false);
            if v_floor is null then
                -- Nothing is open; what will be opens at the cursor.
                select x.claimed into v_floor from {schema}.cursor x where x.group_id = req.group_id order by x.seq desc limit 1;
            end if;
        end if;

        -- 6. Fresh ids.
        v_high := null;
        if v_range is null and req.range_token is not null and least(v_room, v_free) <= 0 then
            -- Nothing may start; whether anything could is what the caller needs to know.
            v_more := v_more or exists (select from {schema}.head(req.stream_id, grp.first_id) h
                where h.head > (select x.claimed from {schema}.cursor x where x.group_id = req.group_id order by x.seq desc limit 1));
        elsif v_range is null and req.range_token is not null then
            select t.o_low, t.o_high, t.o_more, t.o_claimed, t.o_lost_from, t.o_count, t.o_keyed into v_low, v_high, v_fresh_more, v_claimed, v_lost_from, v_count, v_holding
              from {schema}.take_fresh(req.group_id, req.stream_id, grp.first_id, least(req.max_messages, v_room, v_free)::integer, req.max_bytes, grp.key_order) t;
            v_hashes := null;
            if v_holding then
                select t.o_hashes, t.o_waiting, case when t.o_hashes is null and t.o_waiting is null then v_count else t.o_messages end into v_hashes, v_waiting, v_count
                  from {schema}.take_keys(req.group_id, req.stream_id, v_low, v_high, grp.key_order, grp.park, req.holds, v_now, 'fresh') t;
                v_keyed := v_keyed or v_hashes is not null or v_waiting is not null;
            end if;
            if v_waiting is not null and v_count = 0 then
                -- All of it waits for its keys, off the main line: there is no range to open, and more may lie behind it.
                v_more := true;
                v_passed := v_high - v_low - cardinality(v_waiting);
            elsif v_high is not null then
                insert into {schema}.claim (group_id, low, high, token, expires_at, ceiling_ms, instance, messages, key_hashes, key_order)
                values (req.group_id, v_low, v_high, req.range_token, v_now + (req.margins_ms + grp.ceiling_ms) * interval '1 millisecond', grp.ceiling_ms, req.instance, v_count,
                        v_hashes, case when v_hashes is not null then grp.key_order end);
                v_started := v_started + coalesce(v_count, v_high - v_low);
                v_room := v_room - coalesce(v_count, v_high - v_low);
                v_range := json_build_object('low', v_low, 'high', v_high, 'reclaims', 0, 'stale', 0, 'again', false, 'keyed', v_hashes is not null, 'key_order', grp.key_order, 'done', v_waiting);
                v_more := v_more or v_fresh_more;
            end if;
        elsif v_range is not null then
            v_more := true;
        end if;
        if v_rate is not null then
            v_tokens := v_tokens - v_started;
            if v_room <= 0 and v_tokens < 1 then
                v_limited := (1 - v_tokens) / v_rate * 1000;
            end if;
            -- Appended, like the cursor that it stands in; also when the cursor moved for another reason, because the newest row is what counts.
            if v_started > 0 or v_high is not null or v_lost_from is not null then
                insert into {schema}.cursor (group_id, seq, claimed, tokens, tokens_at)
                select req.group_id, x.seq + 1, x.claimed, v_tokens, v_now from {schema}.cursor x where x.group_id = req.group_id order by x.seq desc limit 1;
            end if;
        end if;
    end if;
    -- What was let go of while ranges were taken over; and everything, if the group is paused.
    if v_freed is not null then
        v_woken := v_woken || {schema}.wake(req.group_id, v_freed, grp.park, v_now);
        v_keyed := true;
    end if;
    if v_woken is not null then
        v_woken := array(select w.id from unnest(v_woken) as w (id) except select l.id from unnest(v_line) as l (id));
    end if;

    select (select d.due_at from {schema}.delivery d
             where d.group_id = req.group_id and d.state = 'pending' and d.solo = false order by d.due_at limit 1),
           (select d.due_at from {schema}.delivery d
             where d.group_id = req.group_id and d.state = 'pending' and d.solo = true order by d.due_at limit 1) into v_due, v_solo_due;
    p_reply := json_build_object(
        'paused', grp.paused, 'epoch', grp.epoch, 'config_version', grp.config_version,
        'config', case when grp.config_version > req.config_version then grp.config end,
        'lost', case when cardinality(v_lost) > 0 then array_to_json(v_lost) end,
        'lost_deliveries', case when cardinality(v_lost_ids) > 0 then array_to_json(v_lost_ids) end,
        'range', v_range, 'deliveries', v_handed, 'lines', v_lined, 'woken', cardinality(v_woken), 'ceiling_ms', grp.ceiling_ms, 'broken_up', v_broken, 'floor', v_floor, 'more', v_more, 'claimed', v_claimed,
        'lost_from', v_lost_from, 'lost_to', case when v_lost_from is not null then grp.first_id - 1 end,
        'next_due_ms', extract(epoch from v_due - v_now) * 1000, 'next_solo_due_ms', extract(epoch from v_solo_due - v_now) * 1000,
        'limited_ms', v_limited, 'passed', v_passed,
        'next_expiry_ms', extract(epoch from v_expiry - v_now) * 1000);
    -- Looked at when the CALL commits. What says who holds a key must outlive a crash of the server: others act on it.
    if not req.durable and not v_keyed then
        perform set_config('synchronous_commit', 'off', true);
    end if;
end
$sqlstreams$;
