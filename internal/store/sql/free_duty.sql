-- name: free_duty
-- Gives a duty up. Locks: the duty's row. Repeatable.
update {schema}.duty d set expires_at = clock_timestamp() where d.name = any ($1::text[]) and d.holder = $2::uuid
