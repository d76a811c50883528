-- name: group_keys
-- The keys of a group for which messages wait, by the first ten among its first thousand waiting deliveries, each with how many wait (counted to 10,000) and what they wait for: a delivery that runs or retries, a dead
-- letter that parks the key, an open range. For a person. Locks nothing. Repeatable.
with waiting as (
    select distinct on (q.key_hash) q.key_hash, q.message_key, q.message_id
      from (select d.key_hash, d.message_key, d.message_id from {schema}.delivery d where d.group_id = $1::integer and d.state = 'waiting' order by d.message_id limit 1000) q
     order by q.key_hash, q.message_id)
select w.message_key, w.message_id,
       (select count(*) from (select from {schema}.delivery d where d.group_id = $1::integer and d.key_hash = w.key_hash and d.state = 'waiting' limit 10000) n),
       coalesce(b.state, case when p.message_id is not null then 'parked' when c.low is not null then 'claimed' else '' end),
       coalesce(b.message_id, p.message_id, 0), coalesce(b.attempt, 0),
       extract(epoch from coalesce(case when b.state = 'pending' then b.due_at else b.expires_at end, c.expires_at) - clock_timestamp())::double precision,
       coalesce(c.low, 0), coalesce(c.high, 0)
  from waiting w
  left join lateral (select d.message_id, d.state, d.attempt, d.due_at, d.expires_at from {schema}.delivery d
                      where d.group_id = $1::integer and d.key_hash = w.key_hash and d.state <> 'waiting' order by d.state = 'running' desc, d.message_id limit 1) b on true
  left join lateral (select l.message_id from {schema}.dead_letter l where l.group_id = $1::integer and l.parks = w.key_hash order by l.message_id limit 1) p on b.message_id is null
  left join lateral (select c.low, c.high, c.expires_at from {schema}.claim c
                      where c.group_id = $1::integer and w.key_hash = any (c.key_hashes) order by c.low limit 1) c on b.message_id is null and p.message_id is null
 order by w.message_id limit 10
