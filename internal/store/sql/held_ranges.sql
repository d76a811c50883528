-- name: held_ranges
-- What a group still holds open under these tokens, by the database's clock. No locks. Repeatable.
select c.low, c.high, c.token, c.reclaims, c.stale, c.ceiling_ms, extract(epoch from c.expires_at - clock_timestamp())::double precision,
       array(select d.message_id from {schema}.done d where d.group_id = c.group_id and d.message_id > c.low and d.message_id <= c.high order by d.message_id),
       c.key_hashes is not null, case when c.key_hashes is not null then coalesce(c.key_order, '') else '' end
  from {schema}.claim c
 where c.group_id = $1::integer and c.token = any ($2::uuid[])
 order by c.low
