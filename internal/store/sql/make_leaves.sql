-- name: make_leaves
-- Makes leaves until two are ahead and $2 ids fit. Locks: the maker's lock of the stream; ATTACH lets readers and writers go on. Repeatable.
select {schema}.make_leaves($1::integer, $2::bigint)
