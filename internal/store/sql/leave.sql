-- name: leave
-- Says that an instance has stopped. Locks: its own row. Repeatable.
delete from {schema}.instance i where i.id = $1::uuid
