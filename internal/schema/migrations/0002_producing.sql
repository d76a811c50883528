-- title: procedures that give ids
-- breaking: no
-- transaction: yes
-- longest lock: none that anybody waits for

-- Creates the log of a new stream. In the caller's transaction. The log is the sum of its leaves for people and tools; the product itself names the leaf it means in every statement.
-- A session keeps the list of a table's partitions in memory, and when it makes that list while another session commits an ATTACH, it may go on with the list from before for as
-- long as it lives (in Postgres 14 to 18: the list is read before the commit, the message that it is out of date arrives while the list is still being made): a row would find no partition, and a reader no row.
create function {schema}.make_log(p_stream integer, p_kind text) returns void
language plpgsql as $sqlstreams$
begin
    -- What is read without the payload stands first, so that a claim need not walk past it.
    execute 'create table ' || {log} || p_stream || ' (
        id             bigint not null,
        appended_at    timestamptz not null,
        produced_at    timestamptz not null,
        size           integer not null,
        schema_version integer not null,
        redacted_at    timestamptz,
        scheduled_at   timestamptz,
        message_key    text collate "C",
        routing_key    text collate "C",
        headers        json,
        options        json,
        payload        ' || case p_kind when 'json' then 'json' else 'bytea' end || ',
        primary key (id)
    ) partition by range (id)';
end
$sqlstreams$;

-- Makes leaves until two are ahead of the active one and p_room ids fit behind the head; says how many it made. Built apart and attached, because ATTACH does not stop readers and writers, and
-- creating in place would. The advisory lock keeps two makers apart; the stream's lock is not taken.
create function {schema}.make_leaves(p_stream integer, p_room bigint) returns integer
language plpgsql as $sqlstreams$
declare
    v_stream record;
    v_last   bigint;
    v_rows   bigint;
    v_ahead  integer;
    v_made   integer := 0;
    v_leaf   text;
    v_head   bigint;
begin
    perform pg_advisory_xact_lock({class_leaves}, p_stream);
    select s.first_id, s.partition_rows, coalesce(s.config->>'keyed' = 'true', false) as keyed into v_stream
      from {schema}.stream s where s.id = p_stream and s.state = 'active';
    if not found then
        return 0;
    end if;
    select h.head into v_head from {schema}.head(p_stream, v_stream.first_id) h;
    loop
        select count(*) filter (where p.state = 'ahead'), max(p.high) into v_ahead, v_last
          from {schema}.partition p where p.stream_id = p_stream;
        exit when v_ahead >= 2 and v_last > v_head + p_room;
        v_last := coalesce(v_last, v_stream.first_id);
        v_rows := coalesce(v_stream.partition_rows, {schema}.leaf_rows(p_stream));
        v_leaf := {log} || p_stream || '_' || v_last;
        execute 'create table ' || v_leaf || ' (like ' || {log} || p_stream || ' including defaults including constraints including indexes)';
        -- On the leaves alone, as everything is found by leaf. A leaf that exists gets it later, concurrently: not here, where it would stop producers.
        if v_stream.keyed then
            execute 'create index log_' || p_stream || '_' || v_last || '_key on ' || v_leaf || ' (message_key, id) where message_key is not null';
        end if;
        execute 'alter table ' || {log} || p_stream || ' attach partition ' || v_leaf
             || ' for values from (' || v_last || ') to (' || v_last + v_rows || ')';
        insert into {schema}.partition (stream_id, low, high, state, key_index) values (p_stream, v_last, v_last + v_rows, 'ahead', v_stream.keyed);
        v_made := v_made + 1;
    end loop;
    return v_made;
end
$sqlstreams$;

-- How many ids make about 1 GiB, by what the newest used leaf looks like; a million where nothing is known.
create function {schema}.leaf_rows(p_stream integer) returns bigint
language plpgsql stable as $sqlstreams$
declare
    v_low  bigint;
    v_rows bigint;
    v_size bigint;
    v_last bigint;
begin
    select p.low into v_low from {schema}.partition p
     where p.stream_id = p_stream and p.state = 'active' order by p.low desc limit 1;
    if not found then
        return 1000000;
    end if;
    execute 'select max(l.id) from ' || {log} || p_stream || '_' || v_low || ' l' into v_last;
    v_rows := v_last - v_low + 1;
    if v_rows is null or v_rows < 10000 then
        return 1000000;
    end if;
    v_size := pg_total_relation_size(({log} || p_stream || '_' || v_low)::regclass);
    return greatest(100000, least(50000000, (1024.0 * 1024 * 1024 * v_rows / greatest(v_size, 1))::bigint));
end
$sqlstreams$;

-- The newest id that is there, or what comes before first_id if nothing is; when it was appended; where the last leaf ends (exclusive).
-- Exact under the stream's lock; elsewhere a lower bound. Looks at one leaf, however many there are.
create function {schema}.head(p_stream integer, p_first_id bigint, out head bigint, out head_at timestamptz, out leaf_end bigint, out leaf_ahead bigint)
language plpgsql as $sqlstreams$
declare
    v_low bigint;
begin
    select p.low into v_low from {schema}.partition p
     where p.stream_id = p_stream and p.state = 'active' order by p.low desc limit 1;
    if found then
        execute 'select l.id, l.appended_at from ' || {log} || p_stream || '_' || v_low || ' l order by l.id desc limit 1' into head, head_at;
    end if;
    head := greatest(head, p_first_id - 1);
    select p.high into leaf_end from {schema}.partition p
     where p.stream_id = p_stream order by p.low desc limit 1;
    select p.low into leaf_ahead from {schema}.partition p
     where p.stream_id = p_stream and p.low > coalesce(v_low, 0) order by p.low limit 1;
end
$sqlstreams$;

-- Marks the leaves that ids up to p_head now lie in as active. Under the stream's lock, in the transaction that appended.
create function {schema}.use_leaves(p_stream integer, p_head bigint) returns void
language sql as $sqlstreams$
    update {schema}.partition p set state = 'active' where p.stream_id = p_stream and p.state = 'ahead' and p.low <= p_head
$sqlstreams$;

-- Moves at most p_limit visible rows of the inbox into the log, behind p_head. Under the stream's lock; every deleter of inbox rows holds it, so the positions
-- that the first statement fixes stay good for the two that follow. Never by a range of seq: a lower seq may commit between the statements.
-- With p_hint, the snapshot of an earlier complete look, only rows of transactions that ran then or began later are looked for.
create function {schema}.move_inbox(p_stream integer, p_kind text, p_head bigint, p_head_at timestamptz, p_limit integer, p_hint pg_snapshot,
                                    out moved integer, out more boolean, out seen pg_snapshot)
language plpgsql as $sqlstreams$
declare
    v_parts     smallint[];
    v_positions tid[];
    v_leaf      bigint;
    v_from      integer;
    v_to        integer;
    v_rows      integer;
    v_count     integer := 0;
    v_keyed     boolean;
begin
    if p_hint is null then
        select array_agg(q.part order by q.seq), array_agg(q.position order by q.seq), coalesce(bool_or(q.keyed), false), pg_current_snapshot()
          into v_parts, v_positions, v_keyed, seen
          from (select i.part, i.ctid as position, i.seq, i.idempotency_key is not null as keyed from {schema}.inbox i
                 where i.stream_id = p_stream order by i.seq limit p_limit + 1) q;
    else
        select array_agg(q.part order by q.seq), array_agg(q.position order by q.seq), coalesce(bool_or(q.keyed), false), pg_current_snapshot()
          into v_parts, v_positions, v_keyed, seen
          from (select u.part, u.position, u.seq, u.keyed from (
                    select i.part, i.ctid as position, i.seq, i.idempotency_key is not null as keyed from {schema}.inbox i
                     where i.stream_id = p_stream and i.xid >= pg_snapshot_xmax(p_hint)
                    union all
                    select r.part, r.ctid, r.seq, r.idempotency_key is not null from pg_snapshot_xip(p_hint) as x (xid)
                     cross join lateral (select i.part, i.ctid, i.seq, i.idempotency_key from {schema}.inbox i where i.stream_id = p_stream and i.xid = x.xid offset 0) r) u
                 order by u.seq limit p_limit + 1) q;
    end if;
    moved := coalesce(cardinality(v_parts), 0);
    more := moved > p_limit;
    if more then
        moved := p_limit;
        v_parts := v_parts[1:p_limit];
        v_positions := v_positions[1:p_limit];
    end if;
    if moved = 0 then
        return;
    end if;
    while v_count < moved loop
        v_from := v_count + 1;
        select p.low, least(p.high - 1 - p_head, moved)::integer into v_leaf, v_to from {schema}.partition p
         where p.stream_id = p_stream and p.low <= p_head + v_from order by p.low desc limit 1;
        execute 'insert into ' || {log} || p_stream || '_' || v_leaf || ' (id, appended_at, produced_at, size, schema_version, scheduled_at, message_key, routing_key, headers, options, payload)
            select $1 + p.n, $2, i.produced_at,
                   coalesce(octet_length(' || case p_kind when 'json' then 'i.payload::text' else 'i.payload_bytes' end || '), 0) + coalesce(octet_length(i.headers::text), 0),
                   i.schema_version, i.scheduled_at, i.message_key, i.routing_key, i.headers, i.options, '
                || case p_kind when 'json' then 'i.payload' else 'i.payload_bytes' end || '
              from unnest($3::smallint[], $4::tid[]) with ordinality as p (part, position, n)
              join {schema_text}.inbox i on i.part = p.part and i.ctid = p.position'
          using p_head + v_count, greatest(clock_timestamp(), p_head_at), v_parts[v_from:v_to], v_positions[v_from:v_to];
        get diagnostics v_rows = row_count;
        if v_rows <> v_to - v_count then
            raise exception 'inbox of stream %: % rows were fixed and % were there', p_stream, v_to - v_count, v_rows using errcode = 'XX000';
        end if;
        v_count := v_to;
    end loop;
    if v_keyed then
        insert into {schema}.idempotency_id (stream_id, key, message_id)
        select p_stream, i.idempotency_key, p_head + p.n
          from unnest(v_parts, v_positions) with ordinality as p (part, position, n)
          join {schema}.inbox i on i.part = p.part and i.ctid = p.position
         where i.idempotency_key is not null;
    end if;
    delete from {schema}.inbox i using unnest(v_parts, v_positions) as p (part, position)
     where i.part = p.part and i.ctid = p.position;
    get diagnostics v_count = row_count;
    if v_count <> moved then
        raise exception 'inbox of stream %: % rows were moved and % deleted', p_stream, moved, v_count using errcode = 'XX000';
    end if;
end
$sqlstreams$;

-- Puts a packed batch into the inbox, in the caller's transaction.
create function {schema}.put_inbox(p_stream integer, p_payloads text, p_bytes bytea[], p_versions integer[], p_keys text, p_routing_keys text,
                                   p_headers text, p_options text) returns integer
language plpgsql as $sqlstreams$
declare
    v_count integer;
begin
    insert into {schema}.inbox (part, stream_id, schema_version, message_key, routing_key, headers, options, payload, payload_bytes)
    select (select q.part from {schema}.inbox_part q order by q.current_since desc, q.part limit 1), p_stream, coalesce(t.version, 1), t.message_key, t.routing_key, t.headers::json, t.options::json, t.payload::json, t.bytes
      from rows from (string_to_table(p_payloads, E'\x1e', E'\x1f'), unnest(p_bytes), unnest(p_versions), string_to_table(p_keys, E'\x1e', E'\x1f'),
                      string_to_table(p_routing_keys, E'\x1e', E'\x1f'), string_to_table(p_headers, E'\x1e', E'\x1f'), string_to_table(p_options, E'\x1e', E'\x1f'))
           with ordinality as t (payload, bytes, version, message_key, routing_key, headers, options, n)
     order by t.n;
    get diagnostics v_count = row_count;
    return v_count;
end
$sqlstreams$;

-- Puts a packed batch of which some messages carry idempotency keys into the inbox, in the caller's transaction, and leaves out those whose key was taken before. Keys are taken first, sorted, each by an insert
-- that does nothing on a conflict, and looked at in a new statement: a transaction that has taken one and is still open is awaited for at most five seconds (55P03 then), and if it rolls back this one stores.
-- o_outcome: stored | gone (the stream is, or holds another kind). o_states has a letter for each message: n stored now, r stored before by this very batch (a repetition), d duplicate. o_ids: the ids
-- of duplicates' originals, comma-separated, empty where none is known yet.
create function {schema}.put_keyed(p_stream integer, p_kind text, p_batch uuid, p_window_ms bigint, p_idempotency_keys text, p_payloads text, p_bytes bytea[], p_versions integer[],
                                   p_keys text, p_routing_keys text, p_headers text, p_options text, out o_outcome text, out o_states text, out o_ids text)
language plpgsql set lock_timeout = '5s' as $sqlstreams$
declare
    v_given text[] := array(select t.key from string_to_table(p_idempotency_keys, E'\x1e', E'\x1f') with ordinality as t (key, n) order by t.n);
    v_now   timestamptz := clock_timestamp();
    v_taken text[];
    v_count integer;
begin
    perform from {schema}.stream s where s.id = p_stream and s.state = 'active' and s.payload_kind = p_kind;
    if not found then
        o_outcome := 'gone';
        return;
    end if;
    -- A key that has expired is free, also before upkeep has removed it.
    if exists (select from {schema}.idempotency_key k where k.stream_id = p_stream and k.key = any (v_given) and k.expires_at <= v_now) then
        perform from (select k.key from {schema}.idempotency_key k where k.stream_id = p_stream and k.key = any (v_given) and k.expires_at <= v_now order by k.key for update) q;
        delete from {schema}.idempotency_key k where k.stream_id = p_stream and k.key = any (v_given) and k.expires_at <= v_now;
    end if;
    with taken as (
        insert into {schema}.idempotency_key (stream_id, key, batch, taken_at, expires_at)
        select p_stream, g.key, p_batch, v_now, v_now + p_window_ms * interval '1 millisecond'
          from (select distinct u.key from unnest(v_given) as u (key) where u.key is not null) g
         order by g.key
        on conflict do nothing returning key)
    select array_agg(t.key) into v_taken from taken t;
    -- In a new statement, which sees what was committed while the insert waited. The first of a batch's messages with one key is the original of the others.
    select string_agg(case when q.key is null or q.first and q.key = any (v_taken) then 'n' when q.first and k.batch = p_batch then 'r' else 'd' end, '' order by q.n),
           string_agg(coalesce(case when not q.first or k.batch <> p_batch then (select max(x.message_id) from {schema}.idempotency_id x
               where x.stream_id = p_stream and x.key = q.key and x.recorded_at >= k.taken_at)::text end, ''), ',' order by q.n)
      into o_states, o_ids
      from (select u.key, u.n, row_number() over (partition by u.key order by u.n) = 1 as first from unnest(v_given) with ordinality as u (key, n)) q
      left join {schema}.idempotency_key k on k.stream_id = p_stream and k.key = q.key;
    insert into {schema}.inbox (part, stream_id, schema_version, message_key, routing_key, headers, options, payload, payload_bytes, idempotency_key)
    select (select q.part from {schema}.inbox_part q order by q.current_since desc, q.part limit 1), p_stream, coalesce(t.version, 1), t.message_key, t.routing_key, t.headers::json, t.options::json,
           t.payload::json, t.bytes, t.idempotency_key
      from rows from (string_to_table(p_payloads, E'\x1e', E'\x1f'), unnest(p_bytes), unnest(p_versions), string_to_table(p_keys, E'\x1e', E'\x1f'),
                      string_to_table(p_routing_keys, E'\x1e', E'\x1f'), string_to_table(p_headers, E'\x1e', E'\x1f'), string_to_table(p_options, E'\x1e', E'\x1f'), unnest(v_given))
           with ordinality as t (payload, bytes, version, message_key, routing_key, headers, options, idempotency_key, n)
     where substr(o_states, t.n::integer, 1) = 'n'
     order by t.n;
    get diagnostics v_count = row_count;
    if v_count <> length(translate(o_states, 'rd', '')) then
        raise exception 'a batch of % messages came apart into %', length(translate(o_states, 'rd', '')), v_count using errcode = '22000';
    end if;
    o_outcome := 'stored';
end
$sqlstreams$;

-- put_keyed in a transaction of its own, which it commits. Repeating it under one p_batch stores nothing twice.
create procedure {schema}.produce_keyed(p_stream integer, p_kind text, p_batch uuid, p_window_ms bigint, p_idempotency_keys text, p_payloads text, p_bytes bytea[], p_versions integer[],
                                        p_keys text, p_routing_keys text, p_headers text, p_options text, inout o_outcome text, inout o_states text, inout o_ids text)
language plpgsql as $sqlstreams$
begin
    commit;
    set transaction isolation level read committed;
    select k.o_outcome, k.o_states, k.o_ids into o_outcome, o_states, o_ids
      from {schema}.put_keyed(p_stream, p_kind, p_batch, p_window_ms, p_idempotency_keys, p_payloads, p_bytes, p_versions, p_keys, p_routing_keys, p_headers, p_options) k;
end
$sqlstreams$;

-- Appends one batch, all or nothing, and commits. Sent alone; its data have arrived before it runs, so no client can sleep on the stream's lock.
-- p_wait_ms: 0 tries the lock, more waits so long, less takes the inbox at once; not got, the batch goes to the inbox.
-- p_expected: packed like p_keys, the ids that are to be the newest of the messages' keys (-1: the key has none), each key once. Then the batch is never put into the inbox, and stored only if all of it holds.
-- o_outcome: appended | inbox | repeated (stored before: o_first as then, null if it went to the inbox) | partition (nothing of the batch is stored: make leaves, repeat) | gone | kind
-- and with p_expected: busy (the lock was not got, or more waits in the inbox than was moved: repeat) | conflict (o_conflicts: "n=id" of each message whose key has another newest id) | unkeyed | building
create procedure {schema}.append(p_stream integer, p_kind text, p_wait_ms integer, p_producer uuid, p_batch bigint, p_count integer,
                                 p_payloads text, p_bytes bytea[], p_versions integer[], p_keys text, p_routing_keys text, p_headers text, p_options text,
                                 p_hint text, p_expected text, inout o_outcome text, inout o_first bigint, inout o_moved integer, inout o_hint text, inout o_conflicts text)
language plpgsql as $sqlstreams$
declare
    v_locked  boolean := false;
    v_is_json boolean := p_kind = 'json';
    v_state   record;
    v_move    record;
    v_head    bigint;
    v_head_at timestamptz;
    v_count   integer := 0;
    v_leaf    bigint;
    v_to      integer;
    v_rows    integer;
    v_columns text := '';
    v_values  text := '';
    v_sources text := '';
    v_names   text := '';
begin
    -- The empty commit ends the transaction in which the CALL began, whose isolation level is the role's.
    commit;
    set transaction isolation level read committed;
    -- For this transaction only. Statistics of tables that are empty now and full a minute later mislead the planner into scanning them whole, and plans inside
    -- procedures live as long as the session; so only index plans are left.
    perform set_config('lock_timeout', '2s', true), set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
            set_config('enable_mergejoin', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_material', 'off', true), set_config('jit', 'off', true);
    if p_wait_ms = 0 then
        v_locked := pg_try_advisory_xact_lock({class_stream}, p_stream);
    elsif p_wait_ms > 0 then
        begin
            perform set_config('lock_timeout', p_wait_ms || 'ms', true);
            perform pg_advisory_xact_lock({class_stream}, p_stream);
            v_locked := true;
        exception when lock_not_available then
            v_locked := false;
        end;
        perform set_config('lock_timeout', '2s', true);
    end if;
    if p_expected is not null and not v_locked then
        o_outcome := 'busy';
        return;
    end if;

    -- From here on statements see all that earlier holders of the lock committed.
    select s.first_id, s.payload_kind, b.batch is not null as repeated, b.first_id as repeated_first,
           (select p.low from {schema}.partition p where p.stream_id = s.id and p.state = 'active' order by p.low desc limit 1) as leaf,
           (select p.low from {schema}.partition p where p.stream_id = s.id and p.state = 'ahead' order by p.low limit 1) as leaf_ahead,
           (select p.high from {schema}.partition p where p.stream_id = s.id order by p.low desc limit 1) as leaf_end
      into v_state
      from {schema}.stream s left join {schema}.producer_batch b on b.producer = p_producer and b.batch = p_batch
     where s.id = p_stream and s.state = 'active';
    if not found then
        o_outcome := 'gone';
        return;
    elsif v_state.payload_kind <> p_kind then
        o_outcome := 'kind';
        return;
    elsif v_state.repeated then
        o_first := v_state.repeated_first;
        o_outcome := 'repeated';
        return;
    end if;

    if v_locked then
        -- As in head(), without its queries.
        if v_state.leaf is not null then
            execute 'select l.id, l.appended_at from ' || {log} || p_stream || '_' || v_state.leaf || ' l order by l.id desc limit 1' into v_head, v_head_at;
        end if;
        v_head := greatest(v_head, v_state.first_id - 1);
        -- Before a leaf is used for the first time its maker must have gone wholly: a commit becomes visible a moment before it tells other sessions, and in that moment this one might
        -- not find the leaf's name. The maker's lock goes after that.
        if v_head + 1000 + p_count >= v_state.leaf_ahead then
            perform pg_advisory_xact_lock_shared({class_leaves}, p_stream);
        end if;
        -- A drain is clipped to the room there is; a batch is not.
        select m.moved, m.more, m.seen into v_move
          from {schema}.move_inbox(p_stream, p_kind, v_head, v_head_at, least(1000, v_state.leaf_end - 1 - v_head)::integer, p_hint::pg_snapshot) m;
        o_moved := v_move.moved;
        if v_move.more then
            -- More waits than one batch: this one goes behind it.
            if v_head + v_move.moved >= v_state.leaf_ahead then
                perform {schema}.use_leaves(p_stream, v_head + v_move.moved);
            end if;
            if p_expected is not null then
                -- Among what is left may be a message of the key. What was moved stays so.
                o_outcome := case when v_head + v_move.moved + p_count >= v_state.leaf_end then 'partition' else 'busy' end;
                return;
            end if;
            v_locked := false;
        elsif v_state.leaf_end is null or v_head + v_move.moved + p_count >= v_state.leaf_end then
            rollback;
            o_outcome := 'partition';
            o_moved := 0;
            return;
        end if;
    end if;

    if p_expected is not null then
        -- What was moved a moment ago counts, so the leaf that it lies in must be in use. It stays moved, whatever becomes of the batch.
        if v_head + v_move.moved >= v_state.leaf_ahead then
            perform {schema}.use_leaves(p_stream, v_head + v_move.moved);
        end if;
        select c.o_outcome, c.o_conflicts into o_outcome, o_conflicts from {schema}.check_expected(p_stream, p_keys, p_expected) c;
        if o_outcome <> 'ok' then
            return;
        end if;
    end if;
    if v_locked then
        o_first := v_head + v_move.moved + 1;
        o_hint := v_move.seen::text;
    end if;
    insert into {schema}.producer_batch (producer, batch, first_id) values (p_producer, p_batch, o_first) on conflict do nothing;
    if not found then
        -- An earlier sending of the same batch took the way through the inbox, without the lock, and committed while the insert waited for it.
        rollback;
        select b.first_id into o_first from {schema}.producer_batch b where b.producer = p_producer and b.batch = p_batch;
        o_outcome := 'repeated';
        o_moved := 0;
        o_hint := null;
        return;
    end if;

    if not v_locked then
        v_count := {schema}.put_inbox(p_stream, p_payloads, p_bytes, p_versions, p_keys, p_routing_keys, p_headers, p_options);
        o_outcome := 'inbox';
    else
        -- Only the columns that hold something: planning and zipping the others costs more than a small message.
        if p_versions is not null then
            v_columns := v_columns || ', schema_version'; v_values := v_values || ', t.version'; v_sources := v_sources || ', unnest($6)'; v_names := v_names || ', version';
        else
            v_columns := v_columns || ', schema_version'; v_values := v_values || ', 1';
        end if;
        if p_keys is not null then
            v_columns := v_columns || ', message_key'; v_values := v_values || ', t.message_key'; v_sources := v_sources || ', string_to_table($7, $11, $12)'; v_names := v_names || ', message_key';
        end if;
        if p_routing_keys is not null then
            v_columns := v_columns || ', routing_key'; v_values := v_values || ', t.routing_key'; v_sources := v_sources || ', string_to_table($8, $11, $12)'; v_names := v_names || ', routing_key';
        end if;
        if p_options is not null then
            v_columns := v_columns || ', options'; v_values := v_values || ', t.options::json'; v_sources := v_sources || ', string_to_table($10, $11, $12)'; v_names := v_names || ', options';
        end if;
        if p_headers is not null then
            v_columns := v_columns || ', headers, size'; v_values := v_values || ', t.headers::json, coalesce(octet_length(t.payload), 0) + coalesce(octet_length(t.headers), 0)';
            v_sources := v_sources || ', string_to_table($9, $11, $12)'; v_names := v_names || ', headers';
        else
            v_columns := v_columns || ', size'; v_values := v_values || ', coalesce(octet_length(t.payload), 0)';
        end if;
        while v_count < p_count loop
            if o_first >= v_state.leaf and (v_state.leaf_ahead is null or o_first + p_count <= v_state.leaf_ahead) then
                v_leaf := v_state.leaf;
                v_to := p_count;
            else
                select p.low, least(p.high - o_first, p_count)::integer into v_leaf, v_to from {schema}.partition p
                 where p.stream_id = p_stream and p.low <= o_first + v_count order by p.low desc limit 1;
            end if;
            -- The last piece has no upper bound, so that a batch that holds more than it said is noticed.
            execute 'insert into ' || {log} || p_stream || '_' || v_leaf
                || ' (id, appended_at, produced_at, payload' || v_columns || ') select $1 + t.n, $2, $3, t.payload' || case when v_is_json then '::json' else '' end || v_values
                || ' from rows from (' || case when v_is_json then 'string_to_table($4, $11, $12)' else 'unnest($5)' end || v_sources
                || ') with ordinality as t (payload' || v_names || ', n)'
                || case when v_count > 0 then ' where t.n > ' || v_count || case when v_to < p_count then ' and t.n <= ' || v_to else '' end
                        when v_to < p_count then ' where t.n <= ' || v_to else '' end
              using o_first - 1, greatest(clock_timestamp(), v_head_at), clock_timestamp(), p_payloads, p_bytes, p_versions, p_keys, p_routing_keys,
                    p_headers, p_options, E'\x1e', E'\x1f';
            get diagnostics v_rows = row_count;
            v_count := v_count + v_rows;
            exit when v_count <> v_to;
        end loop;
        if o_first + v_count - 1 >= v_state.leaf_ahead then
            perform {schema}.use_leaves(p_stream, o_first + v_count - 1);
        end if;
        o_outcome := 'appended';
    end if;
    if v_count <> p_count then
        raise exception 'a batch of % messages came apart into %', p_count, v_count using errcode = '22000';
    end if;
end
$sqlstreams$;

-- Gives ids to what waits in the inbox of one stream: at most p_limit rows, in a transaction of its own. The lock is only tried.
-- o_hint is set after a complete look and may be passed to the next one on the same connection.
create procedure {schema}.drain(p_stream integer, p_limit integer, p_hint text,
                                inout o_moved integer, inout o_more boolean, inout o_busy boolean, inout o_partition boolean, inout o_head bigint, inout o_hint text)
language plpgsql as $sqlstreams$
declare
    v_state record;
    v_head  record;
    v_move  record;
    v_limit integer;
begin
    commit;
    set transaction isolation level read committed;
    o_moved := 0;
    o_more := false;
    o_partition := false;
    -- For this transaction only. Statistics of tables that are empty now and full a minute later mislead the planner into scanning them whole, and plans inside
    -- procedures live as long as the session; so only index plans are left.
    perform set_config('lock_timeout', '2s', true), set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
            set_config('enable_mergejoin', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('enable_material', 'off', true), set_config('jit', 'off', true);
    o_busy := not pg_try_advisory_xact_lock({class_stream}, p_stream);
    if o_busy then
        return;
    end if;
    select s.first_id, s.payload_kind into v_state from {schema}.stream s where s.id = p_stream and s.state = 'active';
    if not found then
        return;
    end if;
    select h.head, h.head_at, h.leaf_end, h.leaf_ahead into v_head from {schema}.head(p_stream, v_state.first_id) h;
    -- Before a leaf is used for the first time its maker must have gone wholly, as in append.
    if v_head.head + p_limit >= v_head.leaf_ahead then
        perform pg_advisory_xact_lock_shared({class_leaves}, p_stream);
    end if;
    v_limit := least(p_limit, v_head.leaf_end - 1 - v_head.head);
    select m.moved, m.more, m.seen into v_move
      from {schema}.move_inbox(p_stream, v_state.payload_kind, v_head.head, v_head.head_at, coalesce(v_limit, 0), p_hint::pg_snapshot) m;
    o_moved := v_move.moved;
    o_more := v_move.more;
    o_head := v_head.head + v_move.moved;
    -- The caller makes leaves in a transaction of its own and comes again.
    o_partition := v_move.more and v_limit < p_limit or v_limit is null;
    if v_move.moved > 0 and v_head.head + v_move.moved >= v_head.leaf_ahead then
        perform {schema}.use_leaves(p_stream, v_head.head + v_move.moved);
    end if;
    if not v_move.more then
        o_hint := v_move.seen::text;
    end if;
end
$sqlstreams$;
