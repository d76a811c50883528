-- title: tables of streams, groups and upkeep
-- breaking: no
-- transaction: yes
-- longest lock: none that anybody waits for; everything is new

create table {schema}.stream (
    id             integer generated always as identity primary key,
    name           text collate "C" not null,
    payload_kind   text not null check (payload_kind in ('json', 'bytes')),
    config         json not null,
    config_version integer not null default 1,
    state          text not null default 'active' check (state in ('active', 'deleting')),
    first_id       bigint not null default 1 check (first_id >= 1),
    partition_rows integer check (partition_rows > 0), -- null: sized to about 1 GiB by what was seen
    created_at     timestamptz not null default clock_timestamp(),
    updated_at     timestamptz not null default clock_timestamp()
);
comment on table {schema}.stream is 'Append-only logs by name. Not written on the hot path.';
comment on column {schema}.stream.first_id is 'Low watermark: ids below it are gone. Raised, in a transaction that commits first, before anything is removed.';
-- A stream that is being deleted has given its name free.
create unique index stream_name on {schema}.stream (name) where state = 'active';

create table {schema}.partition (
    stream_id  integer not null,
    low        bigint not null,
    high       bigint not null check (high > low),
    state      text not null check (state in ('ahead', 'active', 'pending detach', 'detached')),
    created_at timestamptz not null default clock_timestamp(),
    key_index  boolean not null default false,
    gaps       boolean not null default false,
    primary key (stream_id, low)
);
comment on column {schema}.partition.key_index is 'The leaf has the valid index (message_key, id), so a key''s messages can be found in it. Of leaves of keyed streams; built later where it is missing.';
comment on column {schema}.partition.gaps is 'Rows of the leaf were removed one by one, so so many ids are not so many messages.';
comment on table {schema}.partition is 'Leaves of the logs: ids [low, high). A leaf is active from the transaction on that puts its first id there.';

create sequence {schema}.inbox_seq as bigint cache 1;

create table {schema}.inbox_part (
    part          smallint primary key,
    current_since timestamptz not null,
    retired_at    timestamptz
);
comment on table {schema}.inbox_part is 'Parts of the inbox. The one with the latest current_since takes the rows.';
insert into {schema}.inbox_part (part, current_since)
values (0, clock_timestamp()), (1, 'epoch'), (2, 'epoch'), (3, 'epoch');

create function {schema}.inbox_current() returns smallint
language sql stable as $sqlstreams$
    select p.part from {schema}.inbox_part p order by p.current_since desc, p.part limit 1
$sqlstreams$;

create table {schema}.inbox (
    part           smallint not null default {schema}.inbox_current(),
    stream_id      integer not null,
    seq            bigint not null default nextval('{schema_text}.inbox_seq'),
    xid            xid8 not null default pg_current_xact_id(),
    produced_at    timestamptz not null default clock_timestamp(),
    scheduled_at   timestamptz,
    schema_version integer not null default 1,
    message_key    text collate "C",
    routing_key    text collate "C",
    headers        json,
    options        json,
    payload        json,
    payload_bytes  bytea,
    idempotency_key text collate "C",
    -- The xid stands in the key because nothing forbids a sequence to be set back (a copy, a restore): the seq alone need not be unique.
    primary key (stream_id, seq, xid, part)
) partition by list (part);
comment on table {schema}.inbox is 'Messages that were produced in somebody''s transaction and wait for their id.';
comment on column {schema}.inbox.xid is 'A hint for finding new rows beside a held snapshot. Nothing is decided by it.';
create index inbox_xid on {schema}.inbox (stream_id, xid);
create table {schema}.inbox_0 partition of {schema}.inbox for values in (0) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0);
create table {schema}.inbox_1 partition of {schema}.inbox for values in (1) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0);
create table {schema}.inbox_2 partition of {schema}.inbox for values in (2) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0);
create table {schema}.inbox_3 partition of {schema}.inbox for values in (3) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0);

create table {schema}.producer_batch (
    producer   uuid not null,
    batch      bigint not null,
    first_id   bigint, -- null: the batch went to the inbox
    created_at timestamptz not null default clock_timestamp(),
    primary key (producer, batch)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
comment on table {schema}.producer_batch is 'Batches that were stored, so that a repetition after a lost confirmation stores nothing twice.';

create table {schema}.idempotency_key (
    stream_id  integer not null,
    key        text collate "C" not null,
    batch      uuid not null,
    taken_at   timestamptz not null default clock_timestamp(),
    expires_at timestamptz not null,
    primary key (stream_id, key)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
comment on table {schema}.idempotency_key is 'Keys under which messages were produced: while a row is there, another message with its key is a duplicate.';
comment on column {schema}.idempotency_key.batch is 'The call that took the key, so that its own repetition is told from a duplicate.';
create index idempotency_key_expires on {schema}.idempotency_key (expires_at);

-- Apart from the keys, and never unique without the id: whoever gives ids must not wait for a row that an open transaction of somebody else can hold.
create table {schema}.idempotency_id (
    stream_id   integer not null,
    key         text collate "C" not null,
    message_id  bigint not null,
    recorded_at timestamptz not null default clock_timestamp(),
    primary key (stream_id, key, message_id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
comment on table {schema}.idempotency_id is 'The ids that messages with an idempotency key got. A row counts if it is not older than the key''s taken_at.';

create table {schema}.consumer_group (
    id             integer generated always as identity primary key,
    stream_id      integer not null references {schema}.stream (id),
    name           text collate "C" not null,
    config         json not null,
    config_version integer not null default 1,
    ceiling_ms     bigint not null check (ceiling_ms > 0), -- the longest timeout of a handler
    max_reclaims   integer not null default 3 check (max_reclaims >= 0),
    start_at       text not null, -- as declared when the group was created
    paused         boolean not null default false,
    epoch          bigint not null default 1,
    created_at     timestamptz not null default clock_timestamp(),
    updated_at     timestamptz not null default clock_timestamp(),
    unique (stream_id, name)
);
comment on table {schema}.consumer_group is 'The shared identity that holds progress.';

create table {schema}.cursor (
    group_id integer not null,
    seq      bigint not null,
    claimed  bigint not null check (claimed >= 0),
    tokens    double precision, -- of a group with a rate: how many messages may start, at tokens_at; null: as many as its burst
    tokens_at timestamptz,
    primary key (group_id, seq)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
comment on table {schema}.cursor is 'The frontier handed out. Appended, read newest first; upkeep removes what is behind.';

create table {schema}.claim (
    group_id   integer not null,
    low        bigint not null,
    high       bigint not null check (high > low),
    token      uuid not null,
    expires_at timestamptz not null,
    ceiling_ms bigint not null,
    reclaims   integer not null default 0,
    stale      integer not null default 0,
    excused    boolean not null default false,
    instance   uuid not null,
    messages   integer, -- how many it holds; null: at most high - low
    key_hashes bigint[],
    key_order  text, -- the group's own when the range was claimed; null: each message's; of no meaning without key_hashes
    primary key (group_id, low)
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
-- Hashes do not compress.
alter table {schema}.claim alter column key_hashes set storage external;
comment on table {schema}.claim is 'Open ranges (low, high] under a lease. The row with the token is the ownership.';
comment on column {schema}.claim.key_hashes is 'Keys that its exclusive and ordered messages hold: nobody else runs these until the range lets go of them.';
comment on column {schema}.claim.excused is 'The coming expiry does not count towards breaking the range up: it went stale or was surrendered.';

create table {schema}.done (
    group_id   integer not null,
    message_id bigint not null,
    primary key (group_id, message_id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
comment on table {schema}.done is 'Finished already, inside a range that is open. Removed with the range''s record.';

create table {schema}.delivery (
    group_id       integer not null,
    message_id     bigint not null,
    state          text not null check (state in ('pending', 'running', 'waiting')),
    due_at         timestamptz not null,
    attempt        integer not null default 0,
    solo           boolean not null default false,
    token          uuid,
    expires_at     timestamptz,
    ceiling_ms     bigint,
    instance       uuid,
    message_key    text collate "C",
    key_hash       bigint, -- of an exclusive or ordered message; null: it waits for none and none waits for it
    ordered        boolean not null default false,
    out_of_order   boolean not null default false, -- of an ordered key, redriven after its successors had gone on
    last_error     text,
    created_at     timestamptz not null default clock_timestamp(),
    copied         boolean not null default false,
    produced_at    timestamptz,
    appended_at    timestamptz,
    scheduled_at   timestamptz,
    schema_version integer,
    routing_key    text collate "C",
    headers        json,
    options        json,
    payload        json,
    payload_bytes  bytea,
    primary key (group_id, message_id),
    check ((state = 'running') = (token is not null))
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
comment on table {schema}.delivery is 'Messages off the main line of a group: retrying, delayed by their handler, waiting for their key.';
create index delivery_due on {schema}.delivery (group_id, solo, due_at, message_id) where state = 'pending';
-- A key can have a hundred thousand waiting messages: each question about a key finds its answer at one place. What waits: the lowest, exclusive and ordered apart.
create index delivery_waiting on {schema}.delivery (group_id, key_hash, ordered, message_id) where state = 'waiting';
-- What runs or retries, of which a key has few.
create index delivery_active on {schema}.delivery (group_id, key_hash) where key_hash is not null and state <> 'waiting';
-- What blocks the ordered ones behind it.
create index delivery_ordered on {schema}.delivery (group_id, key_hash, message_id) where ordered;
create index delivery_running on {schema}.delivery (group_id, expires_at) where state = 'running';

create table {schema}.dead_letter (
    group_id       integer not null,
    message_id     bigint not null,
    died_at        timestamptz not null default clock_timestamp(),
    reason         text not null,
    error          text,
    attempts       integer not null,
    produced_at    timestamptz,
    appended_at    timestamptz,
    scheduled_at   timestamptz,
    schema_version integer,
    message_key    text collate "C",
    routing_key    text collate "C",
    headers        json,
    options        json,
    payload        json,
    payload_bytes  bytea,
    parks          bigint, -- the hash of its key: an ordered one in a group that parks keys; its successors wait
    primary key (group_id, message_id)
);
create index dead_letter_parks on {schema}.dead_letter (group_id, parks, message_id) where parks is not null;
comment on table {schema}.dead_letter is 'Deliveries whose automatic attempts ended, with a copy of their own.';

create table {schema}.attempt (
    id         bigint generated always as identity primary key,
    group_id   integer not null,
    message_id bigint not null,
    attempt    integer not null,
    kind       text not null,
    error      text,
    instance   uuid,
    ended_at   timestamptz not null default clock_timestamp()
);
comment on table {schema}.attempt is 'History of attempts that did not succeed.';
create index attempt_message on {schema}.attempt (group_id, message_id, id);

create table {schema}.instance (
    id         uuid primary key,
    group_id   integer not null,
    host       text not null,
    pid        integer not null,
    started_at timestamptz not null default clock_timestamp(),
    seen_at    timestamptz not null default clock_timestamp()
) with (fillfactor = 50);
comment on table {schema}.instance is 'Running consumers.';
create index instance_group on {schema}.instance (group_id);

create table {schema}.duty (
    name       text primary key,
    holder     uuid not null,
    expires_at timestamptz not null,
    ran_at     timestamptz
) with (fillfactor = 50);
comment on table {schema}.duty is 'Leases on upkeep.';
