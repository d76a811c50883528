-- name: build_key_index
-- Builds the index by key on one leaf, while it is written to. Sent alone, outside a transaction. Locks: the leaf, against DDL and another build; it waits for transactions older than itself, and nobody waits for it.
-- Interrupted, it leaves an index that is not valid; that is dropped before it is repeated.
create index concurrently log_{stream}_{leaf}_key on {schema}.log_{stream}_{leaf} (message_key, id) where message_key is not null
