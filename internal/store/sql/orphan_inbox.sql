-- name: orphan_inbox
-- Removes rows of the inbox whose stream is gone: their transactions committed after the deletion. Locks: those rows. Repeatable.
delete from {schema}.inbox i where i.stream_id = $1::integer and not exists (select from {schema}.stream s where s.id = i.stream_id)
