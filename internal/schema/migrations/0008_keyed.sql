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
