-- name: stream_status
-- A stream for a person: newest message, partitions, bytes on disk, what waits for its id (counted to 10,000), groups. Locks: each partition, shared, for a moment. Repeatable.
select h.head, h.head_at,
       (select count(*) from {schema}.partition p where p.stream_id = s.id),
       coalesce((select sum(pg_total_relation_size(to_regclass({log} || p.stream_id || '_' || p.low))) from {schema}.partition p where p.stream_id = s.id), 0)::bigint,
       (select count(*) from (select from {schema}.inbox i where i.stream_id = s.id limit 10000) q),
       (select i.produced_at from {schema}.inbox i where i.stream_id = s.id order by i.seq limit 1),
       (select count(*) from {schema}.consumer_group g where g.stream_id = s.id)
  from {schema}.stream s
 cross join lateral {schema}.head(s.id, s.first_id) h
 where s.id = $1::integer and s.state = 'active'
