-- name: attempts
-- The attempts of one message in a group that did not succeed, oldest first, the latest 1,000. Locks nothing. Repeatable.
select q.attempt, q.kind, coalesce(q.error, ''), coalesce(q.instance::text, ''), q.ended_at
  from (select a.id, a.attempt, a.kind, a.error, a.instance, a.ended_at from {schema}.attempt a
         where a.group_id = $1::integer and a.message_id = $2::bigint order by a.id desc limit 1000) q
 order by q.id
