-- name: probe
-- What there is to do for these groups; see the function. No locks. Order: as given.
select p.group_id, p.stream_id, p.claimed, p.head, p.inbox, p.due, p.next_due_ms, p.expired, p.paused, p.gone from {schema}.probe($1::integer[]) p
