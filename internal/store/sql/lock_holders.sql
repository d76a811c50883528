-- name: lock_holders
-- Who holds the lock of a stream ($2) or of a group ($3) in this database, with how long its transaction has run. Locks nothing. Repeatable.
select case when l.classid::bigint = ($1::bigint & 4294967295) then 'stream' else 'group' end, l.pid, coalesce(a.state, ''), coalesce(a.application_name, ''),
       coalesce(extract(epoch from clock_timestamp() - a.xact_start), 0)::double precision
  from pg_catalog.pg_locks l left join pg_catalog.pg_stat_activity a on a.pid = l.pid
 where l.locktype = 'advisory' and l.granted and l.objsubid = 2 and l.mode = 'ExclusiveLock'
   and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = current_database())
   and (l.classid::bigint = ($1::bigint & 4294967295) and l.objid::bigint = $2::bigint or l.classid::bigint = ($4::bigint & 4294967295) and l.objid::bigint = $3::bigint)
 order by 5 desc limit 10
