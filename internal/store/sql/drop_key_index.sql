-- name: drop_key_index
-- Drops what an interrupted build of the index by key left on one leaf. Sent alone, outside a transaction. Locks as the build. Repeatable.
drop index concurrently if exists {schema}.log_{stream}_{leaf}_key
