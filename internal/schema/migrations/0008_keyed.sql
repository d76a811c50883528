-- title: streams that are read, written and compacted by key
-- breaking: no
-- transaction: yes
-- longest lock: none that anybody waits for; everything is new

-- The ids of a key's messages below p_below, the newest first, from at most p_leaves leaves, each by its own name; at most p_limit, and about p_bytes of payload, but one message at least. All of it is seen by one
-- snapshot: a version that is removed meanwhile, because a newer one came, is not missed in both places. What waits in the inbox has no id and is not seen. Locks the leaves it looks at, shared.
-- o_outcome: ok | gone (the stream is) | unkeyed | building (a leaf that had to be looked at has no index yet). o_next: where the next call goes on (its p_below); null: there is nothing more.
create function {schema}.key_ids(p_stream integer, p_key text, p_below bigint, p_limit integer, p_bytes bigint, p_leaves integer,
                                 out o_outcome text, out o_ids bigint[], out o_next bigint)
language plpgsql stable set enable_seqscan = off set enable_bitmapscan = off as $sqlstreams$
declare
    v_stream record;
    v_leaf   record;
    v_found  record;
    v_looked integer := 0;
begin
    o_ids := '{}';
    select s.first_id, coalesce(s.config->>'keyed' = 'true', false) as keyed into v_stream from {schema}.stream s where s.id = p_stream and s.state = 'active';
    if not found then
        o_outcome := 'gone';
        return;
    elsif not v_stream.keyed then
        o_outcome := 'unkeyed';
        return;
    end if;
    o_outcome := 'ok';
    for v_leaf in select p.low, p.high, p.key_index from {schema}.partition p
                   where p.stream_id = p_stream and p.state = 'active' and p.low < p_below and p.high > v_stream.first_id order by p.low desc limit p_leaves + 1
    loop
        if v_looked = p_leaves then
            o_next := v_leaf.high;
            return;
        elsif not v_leaf.key_index then
            o_outcome := 'building';
            return;
        end if;
        v_looked := v_looked + 1;
        -- Bounds instead of an equality, and the key in the order: only the index by key can serve that, whatever the statistics say of how common the key is. (With an equality the primary key, read backwards, may look
        -- cheaper, and is the whole leaf for a key that is not there.)
        execute 'select array_agg(r.id order by r.id desc) as ids, sum(r.size) as bytes, count(*) as n, min(r.id) as low
                   from (select q.id, q.size, sum(q.size) over (order by q.id desc) - q.size as before
                           from (select l.id, l.size from ' || {log} || p_stream || '_' || v_leaf.low || ' l
                                  where (l.message_key, l.id) < ($1, $2) and l.message_key >= $1 and l.id >= $3
                                  order by l.message_key desc, l.id desc limit $4) q) r
                  where r.before < $5'
           into v_found using p_key, p_below, v_stream.first_id, p_limit, p_bytes;
        if v_found.n > 0 then
            o_ids := o_ids || v_found.ids;
            p_limit := p_limit - v_found.n;
            p_bytes := p_bytes - v_found.bytes;
            if p_limit <= 0 or p_bytes <= 0 then
                o_next := v_found.low;
                return;
            end if;
        end if;
    end loop;
end
$sqlstreams$;

-- Whether the newest ids of keys are those expected: ok | conflict | gone | unkeyed | building. o_conflicts: "n=id", comma-separated, of those that are not; n counts from 0, -1 stands for none. Under the stream's lock, after
-- the drain of the inbox: nobody can append until the caller commits. Compaction removes no version that is its key's newest, but old tombstones: one that was seen here was there when the caller appended.
create function {schema}.check_expected(p_stream integer, p_keys text, p_expected text, out o_outcome text, out o_conflicts text)
language plpgsql stable as $sqlstreams$
declare
    e       record;
    v_found record;
begin
    o_outcome := 'ok';
    for e in select t.n - 1 as n, t.key, t.expected::bigint as id
               from rows from (string_to_table(p_keys, E'\x1e', E'\x1f'), string_to_table(p_expected, E'\x1e', E'\x1f')) with ordinality as t (key, expected, n)
              where t.expected is not null order by t.n
    loop
        select k.o_outcome, coalesce(k.o_ids[1], -1) as id into v_found from {schema}.key_ids(p_stream, e.key, 9223372036854775807, 1, 1, 1000000) k;
        if v_found.o_outcome <> 'ok' then
            o_outcome := v_found.o_outcome;
            o_conflicts := null;
            return;
        elsif v_found.id <> e.id then
            o_outcome := 'conflict';
            o_conflicts := concat_ws(',', o_conflicts, e.n || '=' || v_found.id);
        end if;
    end loop;
end
$sqlstreams$;

create table {schema}.compaction (
    stream_id  integer primary key,
    superseded bigint not null default 0,
    tombstones bigint not null default 0,
    removed    bigint not null default 0,
    updated_at timestamptz not null default clock_timestamp()
) with (fillfactor = 50);
comment on table {schema}.compaction is 'How far compacted streams are compacted.';
comment on column {schema}.compaction.superseded is 'What messages up to this id replaced is removed.';
comment on column {schema}.compaction.tombstones is 'Tombstones up to this id were looked at when their time was over.';

-- The next messages of one leaf behind p_from, up to p_to, that were appended before p_before, in order of id, at most p_limit: their ids, keys and whether they are tombstones. o_last: up to where was looked; null: what comes next is
-- younger, or nothing comes. Ids and times of appending rise together.
create function {schema}.compaction_window(p_stream integer, p_first_id bigint, p_from bigint, p_to bigint, p_before timestamptz, p_limit integer,
                                           out o_ids bigint[], out o_keys text[], out o_tombstones boolean[], out o_last bigint)
language plpgsql as $sqlstreams$
declare
    v_leaf  record;
    v_count integer;
    v_at    timestamptz;
begin
    for v_leaf in select p.low, p.high from {schema}.partition p
                   where p.stream_id = p_stream and p.state = 'active' and p.high > greatest(p_from + 1, p_first_id) and p.low <= p_to order by p.low
    loop
        execute 'select l.appended_at from ' || {log} || p_stream || '_' || v_leaf.low || ' l where l.id > $1 and l.id <= $2 order by l.id limit 1' into v_at using p_from, p_to;
        if v_at is null then
            o_last := least(v_leaf.high - 1, p_to); -- nothing (any more) here
            continue;
        elsif v_at > p_before then
            return;
        end if;
        execute 'select array_agg(q.id order by q.id), array_agg(q.message_key order by q.id), array_agg(q.tombstone order by q.id), max(q.id), count(*)
                   from (select l.id, l.message_key, l.appended_at, l.payload is null and l.redacted_at is null and l.message_key is not null as tombstone
                           from ' || {log} || p_stream || '_' || v_leaf.low || ' l where l.id > $1 and l.id <= $2 order by l.id limit $3) q
                  where q.appended_at <= $4'
           into o_ids, o_keys, o_tombstones, o_last, v_count using p_from, p_to, p_limit, p_before;
        return;
    end loop;
end
$sqlstreams$;

-- One step of compacting a stream, in a transaction of its own: looks at the next p_limit messages that are older than the stream's lag, and removes the older versions of their keys; then at the next p_limit that are older than its
-- tombstones' time, and removes the tombstones among them. Beside another compaction of the stream it does nothing. Locks: nothing that producers, consumers or readers wait for. Repeatable.
-- Never removed: a message without a key; the newest message of the log, which says where ids go on; the newest version of a key, but for a tombstone that has had its time and whose older versions are gone.
-- The stream's lock is not taken. A version is removed only because of a newer one that is committed, and stays until a still newer one has come; so the newest id of a key never falls, whatever an append looks at. A tombstone that goes
-- was there, or was not, for an append that looks at the key: as if the append came before or after. Older versions cannot come back.
-- o_removed: how many; o_more: there is more to do now.
create procedure {schema}.compact(p_stream integer, p_limit integer, inout o_removed bigint, inout o_more boolean)
language plpgsql as $sqlstreams$
declare
    v_stream record;
    v_state  record;
    v_head   bigint;
    v_now    timestamptz := clock_timestamp();
    v_window record;
    v_leaf   record;
    v_rows   bigint;
    v_ids    bigint[];
    v_keys   text[];
    v_to     bigint;
    v_dead   bigint;
begin
    commit;
    set transaction isolation level read committed;
    perform set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '2s', true), set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
            set_config('enable_mergejoin', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_material', 'off', true), set_config('jit', 'off', true);
    o_removed := 0;
    o_more := false;
    select s.first_id, (s.config->>'compaction_lag_ms')::double precision * interval '1 millisecond' as lag,
           (s.config->>'tombstone_ttl_ms')::double precision * interval '1 millisecond' as ttl
      into v_stream from {schema}.stream s where s.id = p_stream and s.state = 'active' and s.config->>'compacted' = 'true';
    if not found or not pg_try_advisory_xact_lock({class_compaction}, p_stream)
       or exists (select from {schema}.partition p where p.stream_id = p_stream and p.state = 'active' and not p.key_index) then
        return;
    end if;
    select coalesce(max(c.superseded), 0) as superseded, coalesce(max(c.tombstones), 0) as tombstones into v_state from {schema}.compaction c where c.stream_id = p_stream;
    select h.head into v_head from {schema}.head(p_stream, v_stream.first_id) h;

    -- 1. What the next messages replaced. All groups cover all messages, so a newer version frees the older ones for each of them; a group that covers less (bindings) must be asked here first.
    v_to := v_state.superseded;
    if v_to < v_head then
        select w.o_ids, w.o_keys, w.o_last into v_window from {schema}.compaction_window(p_stream, v_stream.first_id, v_to, v_head, v_now - v_stream.lag, p_limit) w;
        if v_window.o_last is not null then
            v_to := v_window.o_last;
            o_more := v_to < v_head and v_window.o_ids is not null;
        end if;
        select array_agg(q.key order by q.key), array_agg(q.id order by q.key) into v_keys, v_ids
          from (select u.key, max(u.id) as id from unnest(v_window.o_keys, v_window.o_ids) as u (key, id) where u.key is not null group by u.key) q;
        if v_keys is not null then
            for v_leaf in select p.low, p.gaps from {schema}.partition p
                           where p.stream_id = p_stream and p.state = 'active' and p.high > v_stream.first_id and p.low <= v_to order by p.low desc
            loop
                execute 'delete from ' || {log} || p_stream || '_' || v_leaf.low || ' l where l.id = any (array(
                             select x.id from unnest($1, $2) as k (key, id)
                              cross join lateral (select y.id from ' || {log} || p_stream || '_' || v_leaf.low || ' y where (y.message_key, y.id) < (k.key, k.id) and y.message_key >= k.key offset 0) x))'
                  using v_keys, v_ids;
                get diagnostics v_rows = row_count;
                o_removed := o_removed + v_rows;
                if v_rows > 0 and not v_leaf.gaps then
                    update {schema}.partition p set gaps = true where p.stream_id = p_stream and p.low = v_leaf.low;
                end if;
            end loop;
        end if;
    end if;

    -- 2. Tombstones whose time is over. What they replaced went in 1, because it has looked at them.
    v_dead := v_state.tombstones;
    if v_dead < least(v_to, v_head - 1) then
        select w.o_ids, w.o_tombstones, w.o_last into v_window
          from {schema}.compaction_window(p_stream, v_stream.first_id, v_dead, least(v_to, v_head - 1), v_now - v_stream.ttl, p_limit) w;
        if v_window.o_last is not null then
            v_dead := v_window.o_last;
            o_more := o_more or v_dead < least(v_to, v_head - 1) and v_window.o_ids is not null;
        end if;
        select array_agg(u.id order by u.id) into v_ids from unnest(v_window.o_ids, v_window.o_tombstones) as u (id, tombstone) where u.tombstone;
        if v_ids is not null then
            -- A window lies in one leaf.
            select p.low, p.gaps into v_leaf from {schema}.partition p where p.stream_id = p_stream and p.low <= v_ids[1] order by p.low desc limit 1;
            execute 'delete from ' || {log} || p_stream || '_' || v_leaf.low || ' l where l.id = any ($1)' using v_ids;
            get diagnostics v_rows = row_count;
            o_removed := o_removed + v_rows;
            if v_rows > 0 and not v_leaf.gaps then
                update {schema}.partition p set gaps = true where p.stream_id = p_stream and p.low = v_leaf.low;
            end if;
        end if;
    end if;
    if v_to > v_state.superseded or v_dead > v_state.tombstones then
        insert into {schema}.compaction (stream_id, superseded, tombstones, removed) values (p_stream, v_to, v_dead, o_removed)
        on conflict (stream_id) do update set superseded = excluded.superseded, tombstones = excluded.tombstones, removed = compaction.removed + excluded.removed, updated_at = clock_timestamp();
    end if;
end
$sqlstreams$;
