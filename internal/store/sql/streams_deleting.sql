-- name: streams_deleting
-- Streams whose deletion was begun and not finished a minute ago. No locks.
select s.id from {schema}.stream s where s.state = 'deleting' and s.updated_at < (select clock_timestamp()) - interval '1 minute' order by s.id limit 10
