-- name: read_bound
-- The last id of a page from one leaf: of at most $2 messages from id $1 on, and of at most $3 bytes, but one message at least; null: the leaf holds none. Only that leaf is locked. Repeatable.
select max(q.id) from (
    select r.id, sum(r.size) over (order by r.id) - r.size as before
      from (select l.id, l.size from {schema}.log_{stream}_{leaf} l where l.id >= $1 order by l.id limit $2) r) q
 where q.before < $3
