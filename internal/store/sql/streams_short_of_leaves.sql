-- name: streams_short_of_leaves
-- Streams with fewer than two leaves ahead, by id, after $1. No locks.
select s.id from {schema}.stream s
 where s.state = 'active' and s.id > $1::integer
   and (select count(*) from {schema}.partition p where p.stream_id = s.id and p.state = 'ahead') < 2
 order by s.id limit 100
