-- name: beat
-- Says that an instance lives. Locks: its own row. Repeatable.
insert into {schema}.instance (id, group_id, host, pid)
select $1::uuid, g.id, $3::text, $4::integer from {schema}.consumer_group g where g.id = $2::integer
on conflict (id) do update set seen_at = clock_timestamp()
