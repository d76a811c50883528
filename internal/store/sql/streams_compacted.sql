-- name: streams_compacted
-- Streams that are declared compacted, by id, after $1, at most 100. No locks. Repeatable.
select s.id from {schema}.stream s where s.state = 'active' and s.config->>'compacted' = 'true' and s.id > $1::integer order by s.id limit 100
