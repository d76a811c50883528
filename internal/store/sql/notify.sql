-- name: notify
-- Sends announcements on the installation's channel; they leave when this statement commits.
select pg_notify($1::text, x.payload) from unnest($2::text[]) as x (payload)
