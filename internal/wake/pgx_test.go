package wake

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/pgserver"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const channel = `sqlstreams_"Test`

func connConfig(t *testing.T, dsn string) *pgx.ConnConfig {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// listen opens a listener and checks at the test's end that nothing is left of it.
func listen(t *testing.T, dsn string) *pgxListener {
	t.Helper()
	l, err := ListenPGX(t.Context(), connConfig(t, dsn), channel)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		began := time.Now()
		l.Close(ctx)
		l.Close(ctx)
		if d := time.Since(began); d > time.Second/2 {
			t.Errorf("closing took %v", d)
		}
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		if bytes.Contains(stacks, []byte("pgconn.(*PgConn).asyncClose")) {
			t.Errorf("pgx is still saying goodbye:\n%s", stacks)
		}
	})
	return l.(*pgxListener)
}

func notify(t *testing.T, db *pgtest.Database, payload string) {
	t.Helper()
	db.Exec(t, "select pg_notify($1, $2)", channel, payload)
}

// wait waits for an announcement for a while.
func wait(l Listener, d time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return l.Wait(ctx)
}

// certificate makes a self-signed one for a server.
func certificate(t *testing.T) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// with sets a parameter of a connection string.
func with(t *testing.T, dsn, name, value string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	return u.String()
}

func TestWaitThatEndsLeavesTheConnectionAlone(t *testing.T) {
	t.Run("plain", func(t *testing.T) {
		db := pgtest.NewDatabase(t)
		waitOften(t, db, db.DSN)
	})
	t.Run("TLS", func(t *testing.T) {
		cert, key := certificate(t)
		server := pgtest.NewServer(t, pgserver.Options{
			Settings: map[string]string{"ssl": "on", "ssl_cert_file": "wake.crt", "ssl_key_file": "wake.key"},
			Files:    map[string][]byte{"wake.crt": cert, "wake.key": key},
		})
		db := pgtest.NewDatabaseOn(t, server)
		waitOften(t, db, with(t, db.DSN, "sslmode", "require"))
	})
}

// waitOften lets many short waits end at every moment of an announcement's arrival.
func waitOften(t *testing.T, db *pgtest.Database, dsn string) {
	t.Helper()
	l := listen(t, dsn)
	_, encrypted := l.network.(*tls.Conn)
	if encrypted != strings.Contains(dsn, "sslmode=require") {
		t.Fatalf("a connection of type %T", l.network)
	}
	for i := range 100 {
		if _, err := wait(l, time.Duration(i%30)*time.Millisecond/10); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("wait %d: %v", i, err)
		}
		if err := l.Ping(t.Context()); err != nil || l.conn.IsClosed() {
			t.Fatalf("ping %d: %v", i, err)
		}
	}

	const n = 300
	var want, got []string
	for i := range n {
		want = append(want, "d1"+strings.Repeat("0", i))
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		for i, payload := range want {
			notify(t, db, payload)
			quiet(t, time.Duration(i%7)*time.Millisecond/2)
		}
	})
	end := time.Now().Add(30 * time.Second)
	for i := 0; len(got) < n && time.Now().Before(end); i++ {
		payload, err := wait(l, time.Duration(i%20)*time.Millisecond/10)
		switch {
		case err == nil:
			got = append(got, payload)
		case !errors.Is(err, context.DeadlineExceeded):
			t.Fatalf("wait: %v", err)
		default:
			if err := l.Ping(t.Context()); err != nil {
				t.Fatalf("ping: %v", err)
			}
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("heard %d of %d", len(got), n)
	}
}

func TestWaitEndsWithAnEndedContext(t *testing.T) {
	db := pgtest.NewDatabase(t)
	l := listen(t, db.DSN)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Wait(ctx); err == nil {
		t.Error("no error")
	}
	if err := l.Ping(t.Context()); err != nil {
		t.Errorf("ping: %v", err)
	}
}

func TestTerminatedConnectionIsNoticed(t *testing.T) {
	db := pgtest.NewDatabase(t)
	l := listen(t, db.DSN)
	db.Exec(t, "select pg_terminate_backend($1)", l.conn.PgConn().PID())
	began := time.Now()
	if _, err := wait(l, 30*time.Second); err == nil || time.Since(began) > 5*time.Second {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
}

func TestFrozenConnectionFailsItsPingAndClosesAtOnce(t *testing.T) {
	db := pgtest.NewDatabase(t)
	proxy := pgtest.NewProxy(t, db.DSN)
	l := listen(t, proxy.DSN(t, db.DSN)) // its clean-up looks at the time and at goroutines
	proxy.Freeze()
	if _, err := wait(l, 100*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := l.Ping(ctx); err == nil || time.Since(began) > time.Second {
		t.Errorf("ping after %v: %v", time.Since(began), err)
	}
}

func TestStandbyIsRefused(t *testing.T) {
	primary := pgtest.NewServer(t, pgserver.Options{})
	standby := pgtest.NewStandby(t, primary, pgserver.Options{})
	_, err := ListenPGX(t.Context(), connConfig(t, standby.DSN("postgres")), channel)
	if diag.CodeOf(err) != diag.ReadOnlyServer || !diag.Retryable(err) {
		t.Errorf("got %v", err)
	}

	// With several hosts the primary is found behind the standby, also for a pool that prefers standbys.
	for _, attrs := range []string{"any", "prefer-standby"} {
		dsn := strings.Replace(standby.DSN("postgres"), standby.Addr(), standby.Addr()+","+primary.Addr(), 1)
		l, err := ListenPGX(t.Context(), connConfig(t, with(t, dsn, "target_session_attrs", attrs)), channel)
		if err != nil {
			t.Fatalf("%s: %v", attrs, err)
		}
		if addr := l.(*pgxListener).network.RemoteAddr().String(); addr != primary.Addr() {
			t.Errorf("%s: connected to %s", attrs, addr)
		}
		l.Close(t.Context())
	}
}

func TestListenErrorsHaveCodes(t *testing.T) {
	server := pgtest.NewServer(t, pgserver.Options{HBA: []string{"host all locked 127.0.0.1/32 scram-sha-256"}})
	db := pgtest.NewDatabaseOn(t, server)
	db.SuperuserExec(t, "create role locked login password 'right'")
	u, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("locked", "wrong")
	_, err = ListenPGX(t.Context(), connConfig(t, u.String()), channel)
	if diag.CodeOf(err) != diag.AuthFailed || strings.Contains(err.Error(), "wrong") {
		t.Errorf("wrong password: %v", err)
	}
	if err := server.Stop(t.Context(), pgserver.Immediate); err != nil {
		t.Fatal(err)
	}
	_, err = ListenPGX(t.Context(), connConfig(t, db.DSN), channel)
	if diag.CodeOf(err) != diag.Unreachable || !diag.Retryable(err) {
		t.Errorf("server down: %v", err)
	}
}

// realSource announces and listens for real; what it is asked about groups it answers from memory.
type realSource struct {
	*fakeSource
	pool   *pgxpool.Pool
	config *pgx.ConnConfig
}

func (s realSource) Notify(ctx context.Context, payload string) error {
	_, err := s.pool.Exec(ctx, "select pg_notify($1, $2)", channel, payload)
	return err
}

func (s realSource) Listen(ctx context.Context) (Listener, error) {
	return ListenPGX(ctx, s.config, channel)
}

func realHub(t *testing.T, db *pgtest.Database, listenDSN string, ping time.Duration) *Hub {
	t.Helper()
	f := newFake()
	f.set(Probed{Group: 1, Stream: 1, NextDue: -1})
	pool := db.Pool(t)
	h := NewHub(Config{
		Source: realSource{f, pool, connConfig(t, listenDSN)}, Logger: slog.New(slog.DiscardHandler),
		PollInterval: time.Hour, PingInterval: ping,
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := h.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return h
}

func listens(t *testing.T, h *Hub) {
	t.Helper()
	pgtest.Eventually(t, 10*time.Second, "the hub listens", func() bool { return h.State().Listening })
}

// quiet lets real time pass in which nothing is announced: against a real server the passing of time is what these tests are about.
func quiet(t *testing.T, d time.Duration) {
	t.Helper()
	from := time.Now()
	pgtest.Eventually(t, d+time.Minute, "time passes", func() bool { return time.Since(from) >= d })
}

// heardWithin makes an announcement in the name of another process and expects it.
func heardWithin(t *testing.T, db *pgtest.Database, sub *Subscription, d time.Duration) {
	t.Helper()
	woken(sub)
	notify(t, db, "d1")
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-sub.C():
	case <-timer.C:
		t.Errorf("not woken within %v", d)
	}
}

func TestListensAgainAfterItsBackendWasTerminated(t *testing.T) {
	db := pgtest.NewDatabase(t)
	h := realHub(t, db, db.DSN, 0)
	sub := h.Subscribe(1, 1)
	listens(t, h)
	heardWithin(t, db, sub, 5*time.Second)
	for i := 1; i <= 3; i++ {
		const sql = "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and query like 'listen %'"
		if n := db.QueryInt(t, sql); n != 1 {
			t.Fatalf("%d listening sessions", n)
		}
		pgtest.Eventually(t, 10*time.Second, "the hub listens again", func() bool {
			st := h.State()
			return st.Listening && st.Reconnects == i
		})
		heardWithin(t, db, sub, 5*time.Second)
	}
}

func TestHalfOpenListenerIsReplaced(t *testing.T) {
	db := pgtest.NewDatabase(t)
	proxy := pgtest.NewProxy(t, db.DSN)
	const ping = 200 * time.Millisecond // the default is 5 s
	h := realHub(t, db, proxy.DSN(t, db.DSN), ping)
	sub := h.Subscribe(1, 1)
	listens(t, h)
	heardWithin(t, db, sub, 5*time.Second)
	proxy.Freeze()
	began := time.Now()
	pgtest.Eventually(t, 10*time.Second, "the half-open connection is noticed", func() bool { return !h.State().Listening })
	if d := time.Since(began); d > ping+minPong+time.Second {
		t.Errorf("noticed after %v with a ping every %v", d, ping)
	}
	proxy.CutAll()
	proxy.Thaw()
	listens(t, h)
	heardWithin(t, db, sub, 5*time.Second)
}

func TestRealListenerSurvivesQuietPings(t *testing.T) {
	db := pgtest.NewDatabase(t)
	h := realHub(t, db, db.DSN, 20*time.Millisecond)
	sub := h.Subscribe(1, 1)
	listens(t, h)
	for range 20 {
		quiet(t, 53*time.Millisecond)
		heardWithin(t, db, sub, 5*time.Second)
	}
	if n := h.State().Reconnects; n != 0 {
		t.Errorf("%d reconnects", n)
	}
}

func TestServerRestart(t *testing.T) {
	server := pgtest.NewServer(t, pgserver.Options{})
	db := pgtest.NewDatabaseOn(t, server)
	h := realHub(t, db, db.DSN, 0)
	sub := h.Subscribe(1, 1)
	listens(t, h)
	if err := server.Restart(t.Context(), pgserver.Immediate); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, 15*time.Second, "the hub listens again", func() bool {
		st := h.State()
		return st.Listening && st.Reconnects > 0
	})
	pgtest.Eventually(t, 10*time.Second, "announcements can be made again", func() bool {
		_, err := db.Pool(t).Exec(t.Context(), "select 1")
		return err == nil
	})
	heardWithin(t, db, sub, 5*time.Second)
}
