-- name: groups_waiting
-- Groups with deliveries that wait for their keys, by id, and their streams, at most 1,000: one index probe each. No locks.
with recursive w as (
    (select d.group_id from {schema}.delivery d where d.state = 'waiting' order by d.group_id limit 1)
    union all
    select (select d.group_id from {schema}.delivery d where d.state = 'waiting' and d.group_id > w.group_id order by d.group_id limit 1) from w where w.group_id is not null)
select g.id, g.stream_id from w join {schema}.consumer_group g on g.id = w.group_id order by g.id limit 1000
