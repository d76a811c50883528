-- name: duty_left
-- For how many seconds each duty is still held, by anybody. No locks.
select d.name, d.holder, extract(epoch from d.expires_at - clock_timestamp())::double precision from {schema}.duty d order by d.name
