-- name: dead_letters
-- A page of a group's dead letters that a filter means, in order of id, at most $4 and about $5 bytes, but one at least. Locks nothing. Repeatable.
-- Each id is looked up by itself: with statistics from before the group's first failures a join would read all of its dead letters for each row.
with ids as materialized (
    select i.id from {schema}.dead_ids($1::integer, $2::json, $3::bigint, $4::integer) as i (id)),
sized as materialized (
    select i.id, sum(x.size) over (order by i.id rows between unbounded preceding and 1 preceding) as before
      from ids i
     cross join lateral (select coalesce(octet_length(l.payload::text), octet_length(l.payload_bytes), 0) as size
                           from {schema}.dead_letter l where l.group_id = $1::integer and l.message_id = i.id limit 1) x)
select d.message_id, d.reason, coalesce(d.error, ''), d.attempts, d.died_at, d.schema_version, d.message_key, d.routing_key, d.headers, d.payload, d.payload_bytes, d.produced_at, d.appended_at, d.scheduled_at
  from sized s
 cross join lateral (select l.message_id, l.reason, l.error, l.attempts, l.died_at, l.schema_version, l.message_key, l.routing_key, l.headers, l.payload, l.payload_bytes, l.produced_at,
                            l.appended_at, l.scheduled_at
                       from {schema}.dead_letter l where l.group_id = $1::integer and l.message_id = s.id limit 1) d
 where coalesce(s.before, 0) < $5::bigint
 order by d.message_id
