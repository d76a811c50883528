-- name: ran_duty
-- Notes when a duty last ran. Locks: the duty's row. Repeatable.
update {schema}.duty d set ran_at = clock_timestamp() where d.name = $1::text and d.holder = $2::uuid
