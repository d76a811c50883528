-- name: streams_with_inbox
-- Streams that have rows in the inbox, by id, at most 1,000: one index probe each. No locks.
with recursive w as (
    (select i.stream_id from {schema}.inbox i order by i.stream_id limit 1)
    union all
    select (select i.stream_id from {schema}.inbox i where i.stream_id > w.stream_id order by i.stream_id limit 1) from w where w.stream_id is not null)
select w.stream_id from w where w.stream_id is not null limit 1000
