package docs_test

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// The service signs a user up, sends the mail, and stops cleanly at SIGTERM.
func TestService(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "service")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./service").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	db := pgtest.NewDatabase(t)
	db.Exec(t, `create table users (id text primary key)`)
	address := freeAddress(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+db.DSN, "LISTEN_ADDRESS="+address)
	var out shared
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	pgtest.Eventually(t, patience, "it answers", func() bool {
		response, err := http.PostForm("http://"+address+"/signup", url.Values{"user": {"u-1"}})
		if err != nil {
			return false
		}
		if err := response.Body.Close(); err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("status %d\n%s", response.StatusCode, out.String())
		}
		return true
	})
	pgtest.Eventually(t, patience, "the mail is sent", func() bool { return strings.Contains(out.String(), "sending to u-1\n") })
	// The user exists already: neither a second row nor a second message.
	response, err := http.PostForm("http://"+address+"/signup", url.Values{"user": {"u-1"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil || response.StatusCode != http.StatusInternalServerError {
		t.Errorf("signing up twice: status %d", response.StatusCode)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil || !strings.Contains(out.String(), "consumer stopped") {
		t.Errorf("it ended with %v\n%s", err, out.String())
	}
	if n := db.QueryInt(t, `select count(*) from sqlstreams.log_1`); n != 1 {
		t.Errorf("%d messages", n)
	}
	if n := db.QueryInt(t, `select count(*) from sqlstreams.claim`) + db.QueryInt(t, `select count(*) from sqlstreams.instance`); n != 0 {
		t.Errorf("%d claims and instances are left", n)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	return l.Addr().String()
}

// shared is output that is read while it is written.
type shared struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *shared) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func TestWithoutPreparedStatements(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t)
	client := openPooled(t, db.DSN)
	emails := register[WelcomeEmail](t, client, "signup.welcome-email")
	if _, err := emails.Producer(nil).Produce(t.Context(), &WelcomeEmail{UserID: "u-1"}, nil); err != nil {
		t.Fatal(err)
	}
	err := client.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := emails.Producer(nil).ProduceTx(ctx, tx, &WelcomeEmail{UserID: "u-2"}, nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	instance, err := emails.RegisterConsumer(t.Context(), "email-sender", nil)
	if err != nil {
		t.Fatal(err)
	}
	var sent tally
	running(t, func(ctx context.Context) error {
		return instance.Consume(ctx, func(_ context.Context, email *WelcomeEmail) error { sent.add(email.UserID); return nil }, nil)
	})
	finished(t, client, db, "signup.welcome-email", "email-sender")
	if sent.count("u-1") != 1 || sent.count("u-2") != 1 {
		t.Errorf("sent %v", sent.seen)
	}
	if n := db.QueryInt(t, `select count(*) from pg_stat_activity where datname = current_database() and query like 'listen%'`); n != 0 {
		t.Errorf("%d sessions listen", n)
	}
}

func openPooled(t *testing.T, databaseURL string) *sqlstreams.Client {
	t.Helper()
	ctx := t.Context()
	// doc: start/pooler
	config, err := pgxpool.ParseConfig(databaseURL) // leads through the pooler
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	client, err := sqlstreams.NewClient(ctx, pool, &sqlstreams.ClientConfig{PollOnly: true})
	// doc: end
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close(context.Background())
		pool.Close()
	})
	return client
}
