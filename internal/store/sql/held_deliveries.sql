-- name: held_deliveries
-- The deliveries that a group still holds under these tokens, by the database's clock. No locks. Repeatable.
select d.message_id, d.token, d.attempt, d.solo, d.ceiling_ms, extract(epoch from d.expires_at - clock_timestamp())::double precision,
       case when d.key_hash is null then '' when d.ordered then 'ordered' else 'exclusive' end, d.out_of_order
  from {schema}.delivery d
 where d.group_id = $1::integer and d.state = 'running' and d.token = any ($2::uuid[])
 order by d.message_id
