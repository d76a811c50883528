-- name: get_stream
-- One stream by name. No locks.
select s.id, s.name, s.payload_kind, s.config, s.first_id, s.created_at from {schema}.stream s where s.name = $1::text and s.state = 'active'
