-- name: keep_key_index
-- Notes that leaf $2 of stream $1 has its index by key, if the catalog says that it is there and valid. Locks: the leaf's row of partition. Repeatable.
update {schema}.partition p set key_index = true
 where p.stream_id = $1::integer and p.low = $2::bigint and not p.key_index
   and exists (select from pg_catalog.pg_index x where x.indexrelid = to_regclass({log} || p.stream_id || '_' || p.low || '_key')::oid and x.indisvalid)
