-- name: list_streams
-- All streams, by name. No locks.
select s.id, s.name, s.payload_kind, s.config, s.first_id, s.created_at from {schema}.stream s where s.state = 'active' order by s.name
