-- name: leaf_from
-- The lowest leaf in use of stream $1 that ends above id $2; no row: there is none. Locks nothing. Repeatable.
select p.low, p.high from {schema}.partition p
 where p.stream_id = $1::integer and p.high > $2::bigint and p.state <> 'ahead'
 order by p.low limit 1
