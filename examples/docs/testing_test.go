package docs_test

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
	"github.com/sqlstreams/sqlstreams/sqlstreamstest"
)

// doc: testing/open
func openTest(t *testing.T) *sqlstreams.Client {
	t.Helper()
	return sqlstreamstest.Open(t, os.Getenv("TEST_DATABASE_URL"), nil).Client()
}

// doc: end

func signUp(ctx context.Context, emails *sqlstreams.Stream[WelcomeEmail], user string) error {
	_, err := emails.Producer(nil).Produce(ctx, &WelcomeEmail{UserID: user}, nil)
	return err
}

// doc: testing/handler
func sendWelcome(ctx context.Context, email *WelcomeEmail) error {
	meta, _ := sqlstreams.MetaFromContext(ctx)
	switch {
	case email.UserID == "bounces":
		return errors.New("mailbox unknown")
	case meta.Attempt > 3:
		return sqlstreams.Terminal(errors.New("given up"))
	}
	return nil
}

// doc: end

func TestTheTestsOfThePage(t *testing.T) {
	t.Setenv("TEST_DATABASE_URL", pgtest.NewDatabase(t).DSN)
	t.Run("produced", testProduced)
	t.Run("handler", testHandler)
	t.Run("consumed", testConsumed)
	t.Run("delayed", testDelayed)
}

func testProduced(t *testing.T) {
	client := openTest(t)
	emails := register[WelcomeEmail](t, client, "signup.welcome-email")
	// doc: testing/produced
	if err := signUp(t.Context(), emails, "u-1"); err != nil { // the code under test
		t.Fatal(err)
	}
	sqlstreamstest.RequireProduced(t, client.Stream("signup.welcome-email"), WelcomeEmail{UserID: "u-1"})
	// doc: end
}

func testHandler(t *testing.T) {
	// doc: testing/handle
	if err := sqlstreamstest.Handle(t, sendWelcome, &WelcomeEmail{UserID: "u-1"}, nil); err != nil {
		t.Errorf("the first attempt: %v", err)
	}
	fourth := &sqlstreamstest.HandleOptions{Meta: sqlstreams.Meta{Attempt: 4, Key: "u-1"}}
	if err := sqlstreamstest.Handle(t, sendWelcome, &WelcomeEmail{UserID: "u-1"}, fourth); err == nil {
		t.Error("the fourth attempt succeeded")
	}
	// doc: end
}

func testConsumed(t *testing.T) {
	client := openTest(t)
	emails := register[WelcomeEmail](t, client, "signup.welcome-email")
	if err := errors.Join(signUp(t.Context(), emails, "u-1"), signUp(t.Context(), emails, "bounces")); err != nil {
		t.Fatal(err)
	}
	// doc: testing/consumed
	instance, err := emails.RegisterConsumer(t.Context(), "email-sender", nil)
	if err != nil {
		t.Fatal(err)
	}
	sqlstreamstest.Consume(t, instance, sendWelcome, nil) // until the test ends
	status := sqlstreamstest.DrainNow(t, client.Group("signup.welcome-email", "email-sender"))
	if status.Dead != 1 {
		t.Errorf("%d dead letters, want the one that bounces", status.Dead)
	}
	// doc: end
}

func testDelayed(t *testing.T) {
	client := openTest(t)
	emails := register[WelcomeEmail](t, client, "signup.welcome-email")
	if err := signUp(t.Context(), emails, "sleeps"); err != nil {
		t.Fatal(err)
	}
	instance, err := emails.RegisterConsumer(t.Context(), "email-sender", nil)
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	handler := func(context.Context, *WelcomeEmail) error {
		if asked.Add(1) == 1 {
			return sqlstreams.Delay(12 * time.Hour)
		}
		return nil
	}
	sqlstreamstest.Consume(t, instance, handler, nil)
	// doc: testing/forward
	group := client.Group("signup.welcome-email", "email-sender")
	if n := sqlstreamstest.BringForward(t, group); n != 1 {
		t.Errorf("%d messages were delayed", n)
	}
	sqlstreamstest.Drain(t, group)
	// doc: end
}
