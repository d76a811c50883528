-- name: trim_keys
-- Removes idempotency keys whose time is over, at most $1, and the ids recorded under them. Locks: those rows, but none that somebody takes at that moment. Repeatable.
with over as materialized (
    select k.stream_id, k.key, k.expires_at from {schema}.idempotency_key k
     where k.expires_at <= (select clock_timestamp()) order by k.expires_at limit $1::integer for update skip locked),
keys as (
    delete from {schema}.idempotency_key k using over o where k.stream_id = o.stream_id and k.key = o.key and k.expires_at = o.expires_at returning k.stream_id, k.key),
ids as (
    delete from {schema}.idempotency_id x using over o where x.stream_id = o.stream_id and x.key = o.key and x.recorded_at <= o.expires_at returning x.message_id)
select count(*) from keys
