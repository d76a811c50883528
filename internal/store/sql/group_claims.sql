-- name: group_claims
-- A group's open ranges, the lowest first, at most 100, with who holds them. Locks nothing. Repeatable.
select c.low, c.high, c.instance::text, coalesce(i.host, ''), coalesce(i.pid, 0), extract(epoch from c.expires_at - clock_timestamp())::double precision, c.expires_at, c.reclaims, c.stale,
       i.seen_at is not null and i.seen_at > (select clock_timestamp()) - interval '1 minute'
  from {schema}.claim c left join {schema}.instance i on i.id = c.instance
 where c.group_id = $1::integer
 order by c.low limit 100
