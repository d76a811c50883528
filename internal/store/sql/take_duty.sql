-- name: take_duty
-- Takes or renews the lease on a duty for $3 milliseconds; no row: somebody else holds it. A renewal notes that the duty has run. Locks: the duty's row. Repeatable.
insert into {schema}.duty as d (name, holder, expires_at)
values ($1::text, $2::uuid, clock_timestamp() + $3::bigint * interval '1 millisecond')
on conflict (name) do update set holder = excluded.holder, expires_at = excluded.expires_at,
       ran_at = case when d.holder = excluded.holder then clock_timestamp() else d.ran_at end
 where d.holder = excluded.holder or d.expires_at <= clock_timestamp()
returning extract(epoch from d.expires_at - clock_timestamp())::double precision
