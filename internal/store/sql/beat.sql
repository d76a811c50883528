-- name: beat
-- Says that instances live. Locks: their own rows, in the order of their ids. Repeatable.
insert into {schema}.instance (id, group_id, host, pid)
select x.id, g.id, $3::text, $4::integer
  from unnest($1::text[], $2::integer[]) as u (instance, group_id)
 cross join lateral (select u.instance::uuid as id) x
  join {schema}.consumer_group g on g.id = u.group_id
 order by x.id
on conflict (id) do update set seen_at = clock_timestamp()
