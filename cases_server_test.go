package sqlstreams_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/pgserver"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
	"github.com/sqlstreams/sqlstreams/internal/schema"
)

// Servers, roles, schemas and networks that are not as they should be: each is told by its code, nothing is half done, and no password gets into a text.

// as returns a database's URL for another user, and perhaps a password.
func as(t testing.TB, dsn, user, password string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.User(user)
	if password != "" {
		u.User = url.UserPassword(user, password)
	}
	return u.String()
}

// connectAs tries to open a client.
func connectAs(t testing.TB, dsn string, config sqlstreams.ClientConfig) error {
	t.Helper()
	pool := pgtest.OpenPool(t, dsn, noChange)
	config.Logger = quiet()
	client, err := sqlstreams.NewClient(t.Context(), pool, &config)
	if err == nil {
		client.Close(t.Context())
	}
	return err
}

func TestPasswordsAreNotTold(t *testing.T) {
	const right, wrong = "correct-horse-battery", "hunter2-staple"
	server := pgtest.NewServer(t, pgserver.Options{HBA: []string{"host all keeper 127.0.0.1/32 scram-sha-256"}})
	db := pgtest.NewDatabaseOn(t, server)
	db.SuperuserExec(t, `create role keeper login password '`+right+`'`)
	db.SuperuserExec(t, `grant create on database "`+db.Name+`" to keeper`)
	silent := func(text string) {
		t.Helper()
		if strings.Contains(text, right) || strings.Contains(text, wrong) || strings.Contains(text, "staple") {
			t.Errorf("a password is told: %s", text)
		}
	}
	err := connectAs(t, as(t, db.DSN, "keeper", wrong), sqlstreams.ClientConfig{})
	silent(coded(t, err, diag.Sentinel(diag.AuthFailed), false).Error())
	silent(fmt.Sprintf("%+v %#v", err, err))
	err = connectAs(t, as(t, db.DSN, "keeper", right), sqlstreams.ClientConfig{ListenDSN: "postgres://keeper:" + wrong + "@[::1/x?sslmode=maybe"})
	silent(coded(t, err, sqlstreams.ErrInvalidOption, false).Error())

	// A program that runs when its password is changed and its sessions are ended says why it cannot go on.
	var log lines
	pool := pgtest.OpenPool(t, as(t, db.DSN, "keeper", right), noChange)
	client := openOn(t, pool, &sqlstreams.ClientConfig{Logger: log.logger()})
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", nil)
	session := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		session <- instance.Consume(ctx, func(context.Context, *WelcomeEmail) error { return nil }, nil)
	}()
	pgtest.Eventually(t, 20*time.Second, "it consumes", func() bool { return !instance.Health().LastWork.IsZero() })
	db.SuperuserExec(t, `alter role keeper password 'another'`)
	db.SuperuserExec(t, `select pg_terminate_backend(pid) from pg_stat_activity where usename = 'keeper'`)
	_, err = stream.Producer(nil).Produce(t.Context(), &WelcomeEmail{}, nil)
	silent(coded(t, err, diag.Sentinel(diag.AuthFailed), false).Error())
	pgtest.Eventually(t, 20*time.Second, "the log says why", func() bool { return strings.Contains(log.String(), "password authentication failed") })
	cancel()
	if err := <-session; err != nil {
		silent(coded(t, err, diag.Sentinel(diag.AuthFailed), false).Error())
	}
	client.Close(t.Context())
	silent(log.String())
	if n := db.QueryInt(t, `select (select count(*) from pg_class where relname = 'log_1')`); n != 1 {
		t.Error("there is no log")
	}
}

func TestNoServer(t *testing.T) {
	server := pgtest.NewServer(t, pgserver.Options{})
	db := pgtest.NewDatabaseOn(t, server)
	client := openOn(t, db.Pool(t), nil)
	stream := register[WelcomeEmail](t, client, "s")
	group(t, stream, "g", nil)
	produceAll(t, stream, "before")
	err := connectAs(t, strings.Replace(db.DSN, db.Name, "nothing-here", 1), sqlstreams.ClientConfig{})
	coded(t, err, sqlstreams.ErrUnreachable, false)

	if err := server.Stop(t.Context(), pgserver.Fast); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	coded(t, connectAs(t, db.DSN, sqlstreams.ClientConfig{}), sqlstreams.ErrUnreachable, true)
	_, err = sqlstreams.RegisterStream[WelcomeEmail](t.Context(), client, "other", nil)
	coded(t, err, sqlstreams.ErrUnreachable, true)
	_, err = stream.RegisterConsumer(t.Context(), "other", nil)
	coded(t, err, sqlstreams.ErrUnreachable, true)
	_, err = client.ListStreams(t.Context())
	coded(t, err, sqlstreams.ErrUnreachable, true)
	coded(t, client.DeleteStream(t.Context(), "s"), sqlstreams.ErrUnreachable, true)
	// The first produce may meet a connection that is dead and looks alive: whether the server got it is not known then, and it is asked until it is.
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err = stream.Producer(nil).Produce(ctx, &WelcomeEmail{UserID: "first"}, nil)
	if !errors.Is(err, sqlstreams.ErrUnreachable) && !errors.Is(err, sqlstreams.ErrOutcomeUnknown) {
		t.Errorf("Produce: %v", err)
	}
	for range 8 { // as many as there are connections
		err = client.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			_, err := stream.Producer(nil).ProduceTx(ctx, tx, &WelcomeEmail{UserID: "tx"}, nil)
			return err
		})
		if e := coded(t, err, sqlstreams.ErrUnreachable, true); e.OutcomeUnknown {
			t.Errorf("nothing was committed, and the outcome is called unknown: %v", err)
		}
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("all of it took %v", took)
	}
	if err := server.StartAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	produceAll(t, register[WelcomeEmail](t, openOn(t, db.Pool(t), nil), "s"), "after")
	// The last one may wait in the inbox: the first client may be repeating its unknown batch at that moment.
	if n := db.QueryInt(t, `select count(*) from (select payload from sqlstreams.log_1 union all select payload from sqlstreams.inbox where stream_id = 1) m where payload->>'user_id' <> 'first'`); n != 2 {
		t.Errorf("%d messages, not 2", n)
	}
	if n := db.QueryInt(t, `select count(*) from sqlstreams.stream s full join sqlstreams.consumer_group g on g.stream_id = s.id`); n != 1 {
		t.Errorf("%d streams and groups, not 1", n)
	}
}

func TestRolesThatLackRights(t *testing.T) {
	client, db, _ := open(t, &sqlstreams.ClientConfig{DisableManager: true})
	stream := register[WelcomeEmail](t, client, "s")
	group(t, stream, "g", nil)
	produceAll(t, stream, "there")
	role := "reader_" + db.Name[len(db.Name)-12:]
	db.Exec(t, `create role `+role+` login`)
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), db.SuperuserDSN)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close(context.Background()) //nolint:errcheck // the statement's error says more
		if _, err := conn.Exec(context.Background(), `drop owned by `+role+`; drop role `+role); err != nil {
			t.Error(err)
		}
	})
	dsn := as(t, db.DSN, role, "")
	coded(t, connectAs(t, dsn, sqlstreams.ClientConfig{}), sqlstreams.ErrPermissionDenied, false)
	coded(t, connectAs(t, dsn, sqlstreams.ClientConfig{Schema: "another"}), sqlstreams.ErrPermissionDenied, false)

	db.Exec(t, `grant usage on schema sqlstreams to `+role)
	db.Exec(t, `grant select on all tables in schema sqlstreams to `+role)
	untouched(t, db, "stream", "consumer_group", "cursor", "claim", "log_1", "inbox", "producer_batch", "delivery", "instance")
	pool := pgtest.OpenPool(t, dsn, noChange)
	reader := openOn(t, pool, &sqlstreams.ClientConfig{DisableManager: true})
	if streams, err := reader.ListStreams(t.Context()); err != nil || len(streams) != 1 {
		t.Errorf("a reader lists %v, %v", streams, err)
	}
	if state, err := reader.GetGroup(t.Context(), "s", "g"); err != nil || state.Head != 1 {
		t.Errorf("a reader sees %+v, %v", state, err)
	}
	// What is declared already can be declared again without a right to write.
	theirs := register[WelcomeEmail](t, reader, "s")
	instance := group(t, theirs, "g", nil)
	for what, call := range map[string]func() error{
		"register a stream": func() error {
			_, err := sqlstreams.RegisterStream[WelcomeEmail](t.Context(), reader, "new", nil)
			return err
		},
		"change a stream": func() error {
			_, err := sqlstreams.RegisterStream[WelcomeEmail](t.Context(), reader, "s", &sqlstreams.StreamConfig{MaxKey: 7})
			return err
		},
		"register a group": func() error { _, err := theirs.RegisterConsumer(t.Context(), "new", nil); return err },
		"change a group": func() error {
			_, err := theirs.RegisterConsumer(t.Context(), "g", &sqlstreams.ConsumerConfig{MaxRangeReclaims: 7})
			return err
		},
		"Produce": func() error { _, err := theirs.Producer(nil).Produce(t.Context(), &WelcomeEmail{}, nil); return err },
		"ProduceTx": func() error {
			return reader.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
				_, err := theirs.Producer(nil).ProduceTx(ctx, tx, &WelcomeEmail{}, nil)
				return err
			})
		},
		"delete": func() error { return reader.DeleteStream(t.Context(), "s") },
		"Consume": func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			return instance.Consume(ctx, func(context.Context, *WelcomeEmail) error { t.Error("a handler ran"); return nil }, nil)
		},
	} {
		err := call()
		if !errors.Is(err, sqlstreams.ErrPermissionDenied) {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if e := coded(t, err, sqlstreams.ErrPermissionDenied, false); e.OutcomeUnknown {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestStandbyIsRefused(t *testing.T) {
	primary := pgtest.NewServer(t, pgserver.Options{})
	db := pgtest.NewDatabaseOn(t, primary)
	produceAll(t, register[WelcomeEmail](t, openOn(t, db.Pool(t), nil), "s"), "u")
	standby := pgtest.NewStandby(t, primary, pgserver.Options{})
	there := as(t, standby.DSN(db.Name), pgtest.Owner, "")
	coded(t, connectAs(t, there, sqlstreams.ClientConfig{}), sqlstreams.ErrReadOnlyServer, true)
	coded(t, connectAs(t, there, sqlstreams.ClientConfig{ManualMigration: true}), sqlstreams.ErrReadOnlyServer, true)
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Once it is a primary it is one like any other, and its ids go on.
	client := openOn(t, pgtest.OpenPool(t, there, noChange), nil)
	if produced := produceAll(t, register[WelcomeEmail](t, client, "s"), "v"); produced[0].ID != 2 {
		t.Errorf("the next id is %d", produced[0].ID)
	}
}

func TestSchemasThatAreMissingOldNewOrAltered(t *testing.T) {
	db := pgtest.NewDatabase(t)
	err := connectAs(t, db.DSN, sqlstreams.ClientConfig{ManualMigration: true})
	if e := coded(t, err, sqlstreams.ErrSchemaOld, false); !strings.Contains(e.Detail, "sqlstreams migrate up") {
		t.Errorf("the command is not named: %v", err)
	}
	if n := db.QueryInt(t, `select count(*) from pg_namespace where nspname = 'sqlstreams'`); n != 0 {
		t.Error("a schema was created")
	}
	for range 2 {
		if err := connectAs(t, db.DSN, sqlstreams.ClientConfig{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := connectAs(t, db.DSN, sqlstreams.ClientConfig{ManualMigration: true}); err != nil {
		t.Errorf("the schema is as it should be: %v", err)
	}
	steps, err := schema.Migrations()
	if err != nil {
		t.Fatal(err)
	}
	latest := len(steps)
	for _, manual := range []bool{true, false} {
		config := sqlstreams.ClientConfig{ManualMigration: manual}
		// From the future, by a step that older programs can live with, and by one that they cannot.
		db.Exec(t, `insert into sqlstreams.migration (version, name, checksum, breaking) values ($1, 'future', 'x', false)`, latest+1)
		if err := connectAs(t, db.DSN, config); err != nil {
			t.Errorf("a newer schema that breaks nothing: %v", err)
		}
		db.Exec(t, `insert into sqlstreams.migration (version, name, checksum, breaking) values ($1, 'future', 'x', true)`, latest+2)
		coded(t, connectAs(t, db.DSN, config), sqlstreams.ErrSchemaNewer, false)
		db.Exec(t, `insert into sqlstreams.migration (version, name, checksum, breaking) values ($1, 'future', 'x', false)`, latest+3)
		coded(t, connectAs(t, db.DSN, config), sqlstreams.ErrSchemaNewer, false)
		db.Exec(t, `delete from sqlstreams.migration where version > $1`, latest)

		db.Exec(t, `update sqlstreams.migration set checksum = 'x' where version = $1`, latest)
		coded(t, connectAs(t, db.DSN, config), diag.Sentinel(diag.SchemaAltered), false)
		db.Exec(t, `update sqlstreams.migration set checksum = $2 where version = $1`, latest, steps[latest-1].Checksum)
	}
	db.Exec(t, `delete from sqlstreams.migration where version = $1`, latest)
	coded(t, connectAs(t, db.DSN, sqlstreams.ClientConfig{ManualMigration: true}), sqlstreams.ErrSchemaOld, false)
}

func TestDatabaseOfAnotherEncoding(t *testing.T) {
	db := pgtest.NewDatabase(t)
	name := db.Name[:len(db.Name)-1] + "_"
	db.SuperuserExec(t, `create database "`+name+`" owner app template template0 encoding 'LATIN1' locale 'C'`)
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), db.SuperuserDSN)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close(context.Background()) //nolint:errcheck // the statement's error says more
		if _, err := conn.Exec(context.Background(), `drop database "`+name+`" with (force)`); err != nil {
			t.Error(err)
		}
	})
	coded(t, connectAs(t, strings.Replace(db.DSN, db.Name, name, 1), sqlstreams.ClientConfig{}), diag.Sentinel(diag.UnsupportedPG), false)
}

// The network fails right after, or right before, the server got what was sent.
func TestConfirmationThatIsLost(t *testing.T) {
	setup, db, _ := open(t, &sqlstreams.ClientConfig{DisableManager: true})
	register[WelcomeEmail](t, setup, "s")
	proxy := pgtest.NewProxy(t, db.DSN)
	t.Cleanup(proxy.Thaw)
	client := openOn(t, pgtest.OpenPool(t, proxy.DSN(t, db.DSN), func(c *pgxpool.Config) { c.ConnConfig.ConnectTimeout = 10 * time.Second }), &sqlstreams.ClientConfig{DisableManager: true})
	stream := register[WelcomeEmail](t, client, "s")
	producer := stream.Producer(nil)
	ctx := t.Context()
	stored := func(name string) int64 {
		return db.QueryInt(t, `select (select count(*) from sqlstreams.log_1 where payload->>'user_id' = $1) + (select count(*) from sqlstreams.inbox where payload->>'user_id' = $1)`, name)
	}
	// A repetition that overtakes the first sending finds the stream held by it and goes through the inbox: no id is told then.
	once := func(name string, id int64, produced sqlstreams.Produced, err error) {
		t.Helper()
		if err != nil || produced.ID != id && produced.ID != 0 || stored(name) != 1 {
			t.Errorf("%s: %+v, %v, stored %d times", name, produced, err, stored(name))
		}
	}
	produceAll(t, stream, "warm up")

	// The library asks again, and is told what was stored.
	fired := proxy.CutWhenSeen(t, "repeated")
	produced, err := producer.Produce(ctx, &WelcomeEmail{UserID: "repeated"}, nil)
	<-fired
	once("repeated", 2, produced, err)
	fired = proxy.CutBefore(t, "too early")
	produced, err = producer.Produce(ctx, &WelcomeEmail{UserID: "too early"}, nil)
	<-fired
	once("too early", 3, produced, err)

	// The caller's time is over before the library could ask.
	fired = proxy.CutWhenSeen(t, "unknown")
	frozen := make(chan struct{})
	go func() {
		defer close(frozen)
		<-fired
		proxy.Freeze()
	}()
	short, cancel := context.WithTimeout(ctx, time.Second)
	_, err = producer.Produce(short, &WelcomeEmail{UserID: "unknown"}, nil)
	cancel()
	<-frozen
	if e := coded(t, err, sqlstreams.ErrOutcomeUnknown, false); !e.OutcomeUnknown || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%#v", e)
	}
	proxy.Thaw()
	// The library goes on asking for the sake of those who are in the same batch; it stores nothing twice.
	produced, err = producer.Produce(ctx, &WelcomeEmail{UserID: "next"}, nil)
	once("next", 5, produced, err)
	if n := stored("unknown"); n != 1 {
		t.Errorf("what the server had got is stored %d times", n)
	}

	// A transaction is never repeated: it is the caller's.
	for name, want := range map[string]int64{"committed": 1, "not committed": 0} {
		arm := proxy.CutWhenSeen
		if want == 0 {
			arm = proxy.CutBefore
		}
		var fired <-chan struct{}
		err := client.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			_, err := producer.ProduceTx(ctx, tx, &WelcomeEmail{UserID: name}, nil)
			fired = arm(t, "commit")
			return err
		})
		<-fired
		coded(t, err, sqlstreams.ErrOutcomeUnknown, true)
		pgtest.Eventually(t, 10*time.Second, "no transaction is open", func() bool {
			return db.QueryInt(t, `select count(*) from pg_stat_activity where datname = current_database() and state = 'idle in transaction'`) == 0
		})
		if n := stored(name); n != want {
			t.Errorf("%s: stored %d times", name, n)
		}
	}
}
