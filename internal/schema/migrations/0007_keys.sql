-- title: exclusive and ordered keys
-- breaking: no
-- transaction: yes
-- longest lock: none that anybody waits for

-- Everything here runs under the group's lock. Who holds a key: an open claim that has its hash in key_hashes, expired or not, and a running delivery. Who blocks an ordered message: an ordered delivery of its
-- key with a lower id, whatever its state, and in a group that parks keys a dead letter of it with a lower id.
-- What could grow with the product of two lists of keys is written as a set operation, or as a look-up in an index for each key: a scalar subquery with a limit, which the planner cannot turn into a join. An EXISTS it turns
-- into one that reads all waiting rows for each key, while its statistics say that there are none. A list of ids is compared as the result of a query: of a list whose length it knows the planner may think that reading the
-- whole group costs less than so many look-ups.

-- By this keys are compared. A collision makes two keys wait for each other, no more.
create function {schema}.key_hash(p_key text) returns bigint
language sql immutable strict parallel safe as $sqlstreams$
    select hashtextextended(p_key collate "C", 0)
$sqlstreams$;

-- The order of a message that has a key: exclusive, ordered, or null if it waits for none. p_order is the group's own, which overrides what the message's options request.
create function {schema}.order_of(p_order text, p_options json) returns text
language sql immutable parallel safe as $sqlstreams$
    select case when coalesce(p_order, p_options->>'key_order') in ('exclusive', 'ordered') then coalesce(p_order, p_options->>'key_order') end
$sqlstreams$;

-- Those of p_hashes that somebody holds. Of the claims those below p_below count (null: all), but not those with a token in p_holds: the caller keeps the line of a key over these in memory.
create function {schema}.held_keys(p_group integer, p_hashes bigint[], p_below bigint, p_holds uuid[]) returns bigint[]
language plpgsql set enable_sort = off as $sqlstreams$
begin
    -- All of it is set operations: an index look-up a key could be planned as a scan of all that runs, for each key.
    return array(
        select h.hash from unnest(p_hashes) as h (hash)
        intersect
        (select k.hash from {schema}.claim c cross join lateral unnest(c.key_hashes) as k (hash)
          where c.group_id = p_group and c.low < coalesce(p_below, 9223372036854775807) and c.key_hashes is not null
            and (p_holds is null or not c.token = any (p_holds))
         union all
         select d.key_hash from {schema}.delivery d where d.group_id = p_group and d.state = 'running' and d.key_hash is not null));
end
$sqlstreams$;

-- Looks at the keys of the range (p_low, p_high]. Its exclusive and ordered messages without a mark that must wait become waiting deliveries (o_waiting: their ids) with a mark; o_hashes are the keys of the others (null: none), and
-- o_messages counts what is left to run. p_how: fresh (no marks if nothing is left to run, because the range is not opened then), again (a takeover), alone (its range is broken up: all become deliveries that
-- run alone, of each key the first that may run pending and the others waiting; no marks).
create function {schema}.take_keys(p_group integer, p_stream integer, p_low bigint, p_high bigint, p_order text, p_park boolean, p_holds uuid[], p_now timestamptz, p_how text,
                                   out o_hashes bigint[], out o_waiting bigint[], out o_messages integer)
language plpgsql as $sqlstreams$
declare
    v_leaf    bigint;
    v_marks   text := '';
    v_ids     bigint[];
    v_hashes  bigint[];
    v_keys    text[];
    v_ordered boolean[];
    v_waits   boolean[];
    v_held    bigint[];
begin
    o_messages := 0;
    select p.low into v_leaf from {schema}.partition p
     where p.stream_id = p_stream and p.low <= p_high and p.high > p_high order by p.low desc limit 1;
    if not found then
        return;
    end if;
    if exists (select from {schema}.done d where d.group_id = p_group and d.message_id > p_low and d.message_id <= p_high) then
        v_marks := ' and not exists (select from {schema_text}.done d where d.group_id = $2 and d.message_id = l.id)';
    end if;
    execute 'with m as materialized (
                 select l.id, l.message_key, case when l.message_key is not null then {schema_text}.order_of($1, l.options) end as o from ' || {log} || p_stream || '_' || v_leaf || ' l
                  where l.id >= ' || p_low + 1 || ' and l.id <= ' || p_high || ' and l.redacted_at is null' || v_marks || ' order by l.id)
             select count(*), array_agg(m.id order by m.id) filter (where m.o is not null), array_agg({schema_text}.key_hash(m.message_key) order by m.id) filter (where m.o is not null),
                    array_agg(m.message_key order by m.id) filter (where m.o is not null), array_agg(m.o = ''ordered'' order by m.id) filter (where m.o is not null)
               from m'
       into o_messages, v_ids, v_hashes, v_keys, v_ordered using p_order, p_group;
    if v_ids is null then
        return;
    end if;
    v_held := {schema}.held_keys(p_group, v_hashes, p_low, p_holds);
    -- The membership stands in the list of a query, where it is looked up in a hash table made once.
    with m as materialized (
        select u.id, u.hash, u.n,
               u.hash in (select h.hash from unnest(v_held) as h (hash))
               or (u.ordered and exists (select from {schema}.delivery d where d.group_id = p_group and d.key_hash = u.hash and d.ordered and d.message_id < u.id))
               or (u.ordered and p_park and exists (select from {schema}.dead_letter l where l.group_id = p_group and l.parks = u.hash and l.message_id < u.id)) as waits
          from unnest(v_ids, v_hashes, v_ordered) with ordinality as u (id, hash, ordered, n))
    select array_agg(m.waits order by m.n), array_agg(m.id order by m.n) filter (where m.waits), array_agg(distinct m.hash) filter (where not m.waits)
      into v_waits, o_waiting, o_hashes from m;
    if p_how = 'alone' then
        insert into {schema}.delivery (group_id, message_id, state, due_at, solo, message_key, key_hash, ordered, last_error)
        select p_group, q.id, case when q.waits or q.place > 1 then 'waiting' else 'pending' end, p_now, true, q.key, q.hash, q.ordered, 'its range was taken over too often'
          from (select u.id, u.hash, u.key, u.ordered, u.waits, row_number() over (partition by u.hash, u.waits order by u.id) as place
                  from unnest(v_ids, v_hashes, v_keys, v_ordered, v_waits) as u (id, hash, key, ordered, waits)) q
         order by q.id
        on conflict (group_id, message_id) do nothing;
        get diagnostics o_messages = row_count;
        return;
    end if;
    if o_waiting is null then
        return;
    end if;
    o_messages := o_messages - cardinality(o_waiting);
    insert into {schema}.delivery (group_id, message_id, state, due_at, message_key, key_hash, ordered)
    select p_group, u.id, 'waiting', p_now, u.key, u.hash, u.ordered
      from unnest(v_ids, v_hashes, v_keys, v_ordered, v_waits) as u (id, hash, key, ordered, waits) where u.waits order by u.id
    on conflict (group_id, message_id) do nothing;
    if p_how = 'again' or o_messages > 0 then
        insert into {schema}.done (group_id, message_id) select p_group, u.id from unnest(o_waiting) as u (id) on conflict do nothing;
    end if;
end
$sqlstreams$;

-- Where the deliveries with these ids stand. Each is looked up by itself: a list of ids can be planned as a scan of all deliveries of the group, as long as the statistics call them few. Only the holder of the group's lock moves rows, and a handler's
-- transaction may delete one; so the places are good until this transaction moves them.
create function {schema}.rows_of(p_group integer, p_ids bigint[]) returns tid[]
language sql stable as $sqlstreams$
    select array(select d.at from unnest(p_ids) as i (id)
                  cross join lateral (select x.ctid as at from {schema}.delivery x where x.group_id = p_group and x.message_id = i.id limit 1) d)
$sqlstreams$;

-- Of each of these keys that nobody holds and of which nothing is due already, the lowest waiting delivery that may run. Reads only.
create function {schema}.wakeable(p_group integer, p_hashes bigint[], p_park boolean, p_now timestamptz) returns bigint[]
language plpgsql set enable_sort = off as $sqlstreams$
declare
    v_hashes bigint[];
begin
    v_hashes := array(select q.hash from (select distinct h.hash from unnest(p_hashes) as h (hash)) q
                       where (select true from {schema}.delivery d where d.group_id = p_group and d.key_hash = q.hash and d.state = 'waiting' limit 1));
    if cardinality(v_hashes) = 0 then
        return '{}';
    end if;
    v_hashes := array(
        select h.hash from unnest(v_hashes) as h (hash)
         where (select true from {schema}.delivery d
                 where d.group_id = p_group and d.key_hash = h.hash and d.state <> 'waiting' and (d.state = 'running' or d.due_at <= p_now) limit 1) is null
        except
        select k.hash from {schema}.claim c cross join lateral unnest(c.key_hashes) as k (hash) where c.group_id = p_group and c.key_hashes is not null);
    if cardinality(v_hashes) = 0 then
        return '{}';
    end if;
    -- The lowest exclusive one, or the lowest ordered one if that waits itself: else what it is behind blocks all of them.
    return array_remove(array(
        select least(
            (select d.message_id from {schema}.delivery d
              where d.group_id = p_group and d.key_hash = h.hash and d.ordered = false and d.state = 'waiting' order by d.message_id limit 1),
            (select case when l.state = 'waiting' and not (p_park and exists (select from {schema}.dead_letter x
                                                                                where x.group_id = p_group and x.parks = h.hash and x.message_id < l.message_id)) then l.message_id end
               from (select d.message_id, d.state from {schema}.delivery d where d.group_id = p_group and d.key_hash = h.hash and d.ordered order by d.message_id limit 1) l))
          from unnest(v_hashes) as h (hash)), null);
end
$sqlstreams$;

-- Makes them due, and returns their ids. To be called when what held or blocked the keys is gone.
create function {schema}.wake(p_group integer, p_hashes bigint[], p_park boolean, p_now timestamptz) returns bigint[]
language plpgsql as $sqlstreams$
declare
    v_ids bigint[];
begin
    v_ids := {schema}.wakeable(p_group, p_hashes, p_park, p_now);
    if cardinality(v_ids) > 0 then
        update {schema}.delivery d set state = 'pending', due_at = p_now where d.ctid = any ({schema}.rows_of(p_group, v_ids));
    end if;
    return v_ids;
end
$sqlstreams$;

-- Chooses among due deliveries with a key. Those whose key is held or that are blocked go (back) to waiting; whoever held or blocked them wakes them. Of each other key the lowest is a head, the others wait, and behind the
-- heads at most p_followers waiting ones go along, in order of id and of a key that has more the more: its messages run one after the other, so the longest line decides when all are done; an ordered one only if all that could block it go before it. o_ids: what is to be handed out; o_freed: keys that nobody holds and of which
-- nothing is handed out.
create function {schema}.line_up(p_group integer, p_ids bigint[], p_followers bigint, p_park boolean, out o_ids bigint[], out o_freed bigint[])
language plpgsql as $sqlstreams$
declare
    v_rows   tid[];
    v_hashes bigint[];
    v_held   bigint[];
    v_each   bigint;
begin
    select array_agg(d.ctid), array_agg(d.key_hash) into v_rows, v_hashes
      from {schema}.delivery d where d.ctid = any ({schema}.rows_of(p_group, p_ids));
    v_held := {schema}.held_keys(p_group, v_hashes, null, null);
    select array_agg(q.id), array_agg(q.hash) filter (where q.id is null) into o_ids, o_freed
      from (select d.key_hash as hash, min(d.message_id) filter (where not (d.ordered and (
                       exists (select from {schema}.delivery b where b.group_id = p_group and b.key_hash = d.key_hash and b.ordered and b.message_id < d.message_id)
                       or (p_park and exists (select from {schema}.dead_letter l where l.group_id = p_group and l.parks = d.key_hash and l.message_id < d.message_id))))) as id
              from {schema}.delivery d
             where d.ctid = any (v_rows) and not d.key_hash = any (v_held)
             group by d.key_hash) q;
    o_ids := array_remove(o_ids, null);
    update {schema}.delivery d set state = 'waiting'
     where d.ctid = any (v_rows) and not d.message_id = any (coalesce(o_ids, '{}'));
    if coalesce(p_followers, 0) <= 0 or o_ids is null or cardinality(o_ids) = 0 then
        return;
    end if;
    -- So many of one key are looked at.
    v_each := greatest(16, p_followers / 2);
    o_ids := o_ids || array(
        select q.id from (
            select c.id, h.message_id as head, row_number() over (partition by h.key_hash order by c.id) / count(*) over (partition by h.key_hash)::double precision as place
              from (select d.message_id, d.key_hash,
                           -- From this id on ordered ones are blocked by one that does not go along.
                           least(9223372036854775807, (select 0 from {schema}.delivery b where b.group_id = p_group and b.key_hash = d.key_hash and b.ordered and b.message_id < d.message_id limit 1),
                               (select min(b.message_id) from (select x.message_id, x.ordered from {schema}.delivery x
                                                                 where x.group_id = p_group and x.key_hash = d.key_hash and x.state <> 'waiting' offset 0) b
                                 where b.ordered and b.message_id <> d.message_id),
                               (select l.message_id from {schema}.dead_letter l where p_park and l.group_id = p_group and l.parks = d.key_hash order by l.message_id limit 1)) as blocked
                      from {schema}.delivery d where d.ctid = any ({schema}.rows_of(p_group, o_ids))) h
             cross join lateral (
                 select x.id from (
                     (select w.message_id as id from {schema}.delivery w
                       where w.group_id = p_group and w.key_hash = h.key_hash and w.ordered = false and w.state = 'waiting' and w.message_id > h.message_id and not w.solo
                       order by w.message_id limit v_each)
                     union all
                     (select y.id from (select w.message_id as id, bool_or(w.solo) over (order by w.message_id) as cut
                                          from (select v.message_id, v.solo from {schema}.delivery v
                                                 where v.group_id = p_group and v.key_hash = h.key_hash and v.ordered = true and v.state = 'waiting' and v.message_id > h.message_id
                                                 order by v.message_id limit v_each) w) y
                       where not y.cut and y.id < h.blocked)) x
                  order by x.id limit v_each) c) q
         order by q.place, q.head limit p_followers);
end
$sqlstreams$;

-- Wakes what nobody woke: an instance that dies between the commit of a handler's transaction (finish_tx) and its next call lets go of a key without saying so. Looks at no more than p_limit keys with waiting deliveries, from
-- p_from on (null: from the lowest); p_from returns where to go on, null at the end, p_woken how many were woken. The group's lock is taken only if there is something to wake.
create procedure {schema}.wake_waiting(p_group integer, p_limit integer, inout p_from bigint, inout p_woken integer)
language plpgsql as $sqlstreams$
declare
    v_hashes bigint[];
    v_park   boolean;
begin
    commit;
    set transaction isolation level read committed;
    perform set_config('lock_timeout', '2s', true), set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true);
    p_woken := 0;
    v_hashes := array(
        with recursive w as (
            (select d.key_hash from {schema}.delivery d
              where d.group_id = p_group and d.state = 'waiting' and d.key_hash >= coalesce(p_from, -9223372036854775808) order by d.key_hash limit 1)
            union all
            select (select d.key_hash from {schema}.delivery d where d.group_id = p_group and d.state = 'waiting' and d.key_hash > w.key_hash order by d.key_hash limit 1)
              from w where w.key_hash is not null)
        select w.key_hash from w where w.key_hash is not null limit p_limit);
    p_from := case when cardinality(v_hashes) = p_limit and v_hashes[p_limit] < 9223372036854775807 then v_hashes[p_limit] + 1 end;
    select coalesce((g.config->>'park_key_on_dead_letter')::boolean, false) into v_park from {schema}.consumer_group g where g.id = p_group;
    if not found or cardinality({schema}.wakeable(p_group, v_hashes, v_park, clock_timestamp())) = 0 then
        return;
    end if;
    perform pg_advisory_xact_lock({class_group}, p_group);
    p_woken := cardinality({schema}.wake(p_group, v_hashes, v_park, clock_timestamp()));
end
$sqlstreams$;
