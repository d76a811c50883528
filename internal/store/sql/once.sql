-- name: once
-- Marks a key of a group in the caller's transaction: one row if it was not marked before, none if it was; a transaction that has marked it and is open is awaited. The group is found by name; its absence is a null id's error. Locks: its own row.
insert into {schema}.once (group_id, key)
select (select g.id from {schema}.consumer_group g join {schema}.stream s on s.id = g.stream_id where s.name = $1::text and s.state = 'active' and g.name = $2::text), $3::text
on conflict do nothing
