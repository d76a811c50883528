-- name: stream_state
-- Where a stream stands: first and newest id, rows waiting in the inbox. No locks.
select s.first_id, (select h.head from {schema}.head(s.id, s.first_id) h), (select count(*) from {schema}.inbox i where i.stream_id = s.id)
  from {schema}.stream s where s.id = $1::integer and s.state = 'active'
