-- name: key_index_gaps
-- Leaves of keyed streams (of stream $1 alone, if it is not null) that are not known to have the index by key, the newest first; what the catalog holds under the index's name (valid; null: nothing); whether somebody
-- builds it at this moment. No locks. Repeatable.
select p.stream_id, p.low, x.indisvalid,
       exists (select from pg_catalog.pg_stat_progress_create_index g where g.datname = current_database() and g.relid = to_regclass({log} || p.stream_id || '_' || p.low)::oid)
  from {schema}.stream s
  join {schema}.partition p on p.stream_id = s.id
  left join pg_catalog.pg_index x on x.indexrelid = to_regclass({log} || p.stream_id || '_' || p.low || '_key')::oid
 where s.state = 'active' and s.config->>'keyed' = 'true' and not p.key_index and p.state in ('ahead', 'active') and s.id = coalesce($1::integer, s.id)
 order by p.stream_id, p.low desc limit 100
