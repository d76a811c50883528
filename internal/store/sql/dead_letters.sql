-- name: dead_letters
-- A page of a group's dead letters that a filter means, in order of id, at most $4 and about $5 bytes, but one at least. Locks nothing. Repeatable.
select d.message_id, d.reason, coalesce(d.error, ''), d.attempts, d.died_at, d.schema_version, d.message_key, d.routing_key, d.headers, d.payload, d.payload_bytes, d.produced_at, d.appended_at, d.scheduled_at
  from {schema}.dead_letter d
  join (select x.message_id, sum(coalesce(octet_length(x.payload::text), octet_length(x.payload_bytes), 0))
               over (order by x.message_id rows between unbounded preceding and 1 preceding) as before
          from {schema}.dead_letter x
         where x.group_id = $1::integer and x.message_id in (select i.id from {schema}.dead_ids($1::integer, $2::json, $3::bigint, $4::integer) as i (id))) q on q.message_id = d.message_id
 where d.group_id = $1::integer and coalesce(q.before, 0) < $5::bigint
 order by d.message_id
