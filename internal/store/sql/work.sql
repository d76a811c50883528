-- name: work
-- Records and hands out in one transaction that it commits by itself; see the procedure. Locks: the group's, then rows in the global order.
call {schema}.work($1::json, null::json)
