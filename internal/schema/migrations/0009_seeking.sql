-- title: moving a group
-- breaking: no
-- transaction: yes
-- longest lock: none that anybody waits for; everything is new

-- Moves a group so that it goes on behind a position (see the function of that name), clamped to what is there; with p_dry it changes nothing and says the same. One transaction under the group's lock.
-- Repeating it is safe: it moves the group to the same place again. o_result: null if the group is gone.
-- Every open range is fenced, because its row goes or gets a token that nobody has. Going back (or nowhere), what lies above the target comes again: deliveries and marks there go, and letters there park no key any longer; ranges at or below
-- it are given back with their marks, so nothing there is skipped. Going forward, what open ranges had not finished is passed over with what was not handed out yet, and deliveries stay.
create procedure {schema}.seek(p_group integer, p_start text, p_dry boolean, p_actor text, p_object text, inout o_result json)
language plpgsql as $sqlstreams$
declare
    grp       record;
    v_now     timestamptz;
    v_want    bigint;
    v_seq     bigint;
    v_from    bigint;
    v_reached bigint; -- v_from, but not below what is gone from the stream
    v_head    bigint;
    v_to      bigint;
    v_back    boolean;
    v_clamped boolean;
    v_again   bigint := 0;
    v_passed  bigint := 0;
    v_claims  json;
    v_open    bigint;
    v_dropped bigint := 0;
    v_dead    bigint := 0;
    v_some    bigint[];
    v_hashes  bigint[] := '{}'; -- keys that are let go of
begin
    commit;
    set transaction isolation level read committed;
    perform set_config('lock_timeout', '2s', true), set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
            set_config('enable_mergejoin', 'off', true), set_config('enable_bitmapscan', 'off', true), set_config('jit', 'off', true);
    -- To look for a time takes a while in a stream of many leaves, so it is done before the lock is taken.
    select {schema}.position(s.id, s.first_id, p_start) into v_want
      from {schema}.consumer_group g join {schema}.stream s on s.id = g.stream_id where g.id = p_group and s.state = 'active';
    perform pg_advisory_xact_lock({class_group}, p_group);
    v_now := clock_timestamp();
    select s.id as stream_id, s.first_id, coalesce((g.config->>'park_key_on_dead_letter')::boolean, false) as park into grp
      from {schema}.consumer_group g join {schema}.stream s on s.id = g.stream_id where g.id = p_group and s.state = 'active';
    if not found or v_want is null then
        return;
    end if;
    select h.head into v_head from {schema}.head(grp.stream_id, grp.first_id) h;
    select c.seq, c.claimed into v_seq, v_from from {schema}.cursor c where c.group_id = p_group order by c.seq desc limit 1;
    v_to := greatest(least(v_want, v_head), grp.first_id - 1);
    v_clamped := v_to <> v_want or (p_start like 'at %' and substr(p_start, 4)::timestamptz > v_now);
    v_reached := greatest(v_from, grp.first_id - 1);
    v_back := v_to <= v_reached;
    select json_agg(json_build_object('low', q.low, 'high', q.high, 'instance', q.instance, 'host', q.host, 'pid', q.pid, 'expires_at', q.expires_at, 'left', extract(epoch from q.expires_at - v_now),
                                      'reclaims', q.reclaims, 'stale', q.stale, 'alive', q.alive) order by q.low) into v_claims
      from (select c.low, c.high, c.instance, coalesce(i.host, '') as host, coalesce(i.pid, 0) as pid, c.expires_at, c.reclaims, c.stale, coalesce(i.seen_at > v_now - interval '1 minute', false) as alive
              from {schema}.claim c left join {schema}.instance i on i.id = c.instance where c.group_id = p_group order by c.low limit 100) q;
    select count(*), coalesce(sum(c.high - c.low), 0) into v_open, v_passed from {schema}.claim c where c.group_id = p_group;
    if v_back then
        v_again := v_reached - v_to;
        v_passed := 0;
        select count(*) into v_dropped from {schema}.delivery d where d.group_id = p_group and d.message_id > v_to;
        select count(*) into v_dead from {schema}.dead_letter d where d.group_id = p_group and d.message_id > v_to;
    end if;
    if not p_dry then
        -- The claims first: a handler's transaction that is about to commit (finish_tx) is waited for here, and the statements below see its mark.
        with gone as (
            delete from {schema}.claim c where c.group_id = p_group and (c.low >= v_to or not v_back) returning c.key_hashes)
        select v_hashes || array_agg(k.hash) into v_hashes from gone g cross join lateral unnest(g.key_hashes) as k (hash);
        update {schema}.claim c set high = least(c.high, v_to), messages = null, token = gen_random_uuid(), expires_at = v_now, excused = true where c.group_id = p_group;
    end if;
    if not v_back then
        v_passed := v_passed - (select count(*) from {schema}.done d where d.group_id = p_group) + v_to - v_reached;
    end if;
    if not p_dry then
        delete from {schema}.done d where d.group_id = p_group and (d.message_id > v_to or not v_back);
        if v_back then
            with gone as (
                delete from {schema}.delivery d where d.group_id = p_group and d.message_id > v_to returning d.key_hash)
            select count(*), v_hashes || array_agg(g.key_hash) filter (where g.key_hash is not null) into v_dropped, v_hashes from gone g;
            v_some := array(select d.parks from {schema}.dead_letter d where d.group_id = p_group and d.message_id > v_to and d.parks is not null);
            if cardinality(v_some) > 0 then
                update {schema}.dead_letter d set parks = null where d.group_id = p_group and d.message_id > v_to and d.parks is not null;
                v_hashes := v_hashes || v_some;
            end if;
        end if;
        -- The level of the group's rate stays what it was.
        insert into {schema}.cursor (group_id, seq, claimed, tokens, tokens_at)
        select p_group, c.seq + 1, v_to, c.tokens, c.tokens_at from {schema}.cursor c where c.group_id = p_group and c.seq = v_seq;
        update {schema}.consumer_group g set epoch = g.epoch + 1, updated_at = v_now where g.id = p_group;
        if cardinality(v_hashes) > 0 then
            perform {schema}.wake(p_group, v_hashes, grp.park, v_now);
        end if;
        insert into {schema}.operator_action (actor, action, object, detail, affected, finished_at)
        values (p_actor, 'seek', p_object, json_build_object('start', p_start, 'from', v_from, 'to', v_to, 'again', v_again, 'passed', v_passed, 'claims', v_open, 'deliveries', v_dropped),
                v_again + v_passed, clock_timestamp());
    end if;
    o_result := json_build_object('from', v_from, 'to', v_to, 'clamped', v_clamped, 'again', v_again, 'passed', v_passed, 'claims', v_claims, 'open', v_open, 'dropped', v_dropped, 'dead', v_dead);
end
$sqlstreams$;
