package docs_test

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// doc: testing/open
func openTest(t *testing.T) (*sqlstreams.Client, *pgxpool.Pool) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), os.Getenv("TEST_DATABASE_URL"))
	if err != nil {
		t.Fatal(err)
	}
	schema := "test_" + strings.ToLower(rand.Text()[:12]) // crypto/rand
	client, err := sqlstreams.NewClient(t.Context(), pool, &sqlstreams.ClientConfig{Schema: schema, ControlConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // t.Context() has ended by now
		client.Close(context.Background())
		if _, err := pool.Exec(context.Background(), `drop schema `+schema+` cascade`); err != nil {
			t.Error(err)
		}
		pool.Close()
	})
	return client, pool
}

// doc: end

// doc: testing/wait
func waitIdle(t *testing.T, client *sqlstreams.Client, stream, group string) *sqlstreams.GroupStatus {
	t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		status, err := client.Group(stream, group).Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if status.Idle() {
			return status // each message has succeeded or is a dead letter
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("the group is not idle: %+v", status.Reasons)
		}
	}
}

// doc: end

func signUp(ctx context.Context, emails *sqlstreams.Stream[WelcomeEmail], user string) error {
	_, err := emails.Producer(nil).Produce(ctx, &WelcomeEmail{UserID: user}, nil)
	return err
}

func TestTheTestsOfThePage(t *testing.T) {
	t.Setenv("TEST_DATABASE_URL", pgtest.NewDatabase(t).DSN)
	t.Run("produced", testProduced)
	t.Run("consumed", testConsumed)
}

func testProduced(t *testing.T) {
	client, _ := openTest(t)
	emails := register[WelcomeEmail](t, client, "signup.welcome-email")
	// doc: testing/produced
	if err := signUp(t.Context(), emails, "u-1"); err != nil { // the code under test
		t.Fatal(err)
	}
	messages, err := client.Stream("signup.welcome-email").Read(t.Context(), 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	if len(messages) != 1 || string(messages[0].Payload) != `{"UserID":"u-1"}` {
		t.Errorf("the stream holds %v", messages)
	}
	// doc: end
}

func testConsumed(t *testing.T) {
	client, _ := openTest(t)
	emails := register[WelcomeEmail](t, client, "signup.welcome-email")
	if err := errors.Join(signUp(t.Context(), emails, "u-1"), signUp(t.Context(), emails, "bounces")); err != nil {
		t.Fatal(err)
	}
	handler := func(_ context.Context, email *WelcomeEmail) error {
		if email.UserID == "bounces" {
			return errors.New("mailbox unknown")
		}
		return nil
	}
	// doc: testing/consumed
	instance, err := emails.RegisterConsumer(t.Context(), "email-sender", &sqlstreams.ConsumerConfig{
		Message: &sqlstreams.MessageOptions{Timeout: time.Second, MaxAttempts: 3, BaseDelay: time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- instance.Consume(ctx, handler, &sqlstreams.ConsumeOptions{
			QueueMargin:  time.Second,
			TimeoutGrace: 50 * time.Millisecond,
			RecordMargin: 500 * time.Millisecond,
			PollInterval: 10 * time.Millisecond,
		})
	}()
	status := waitIdle(t, client, "signup.welcome-email", "email-sender")
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if status.Dead != 1 {
		t.Errorf("%d dead letters, want the one that bounces", status.Dead)
	}
	// doc: end
}
