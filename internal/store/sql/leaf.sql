-- name: leaf
-- The ids [low, high) of the leaf that holds id $2 of stream $1; no row: no leaf does. They never change while the leaf is there. Locks nothing. Repeatable.
select p.low, p.high from {schema}.partition p
 where p.stream_id = $1::integer and p.low <= $2::bigint and p.high > $2::bigint
 order by p.low desc limit 1
