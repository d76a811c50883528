-- name: inbox_parts
-- The parts of the inbox that are not current, the longest retired first. No locks.
select p.part from {schema}.inbox_part p where p.retired_at is not null order by p.retired_at
