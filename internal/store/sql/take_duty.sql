-- name: take_duty
-- Takes or renews the lease on a duty for $3 milliseconds; no row: somebody else holds it. Locks: the duty's row. Repeatable.
insert into {schema}.duty (name, holder, expires_at)
values ($1::text, $2::uuid, clock_timestamp() + $3::bigint * interval '1 millisecond')
on conflict (name) do update set holder = excluded.holder, expires_at = excluded.expires_at
 where duty.holder = excluded.holder or duty.expires_at <= clock_timestamp()
returning extract(epoch from duty.expires_at - clock_timestamp())::double precision
