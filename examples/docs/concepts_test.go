package docs_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // database/sql's driver

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// WelcomeEmail and Payment are what the pages' streams hold.
type WelcomeEmail struct{ UserID string }

type Payment struct {
	PaymentID string
	Account   string
	Cents     int64
}

func produce(ctx context.Context, payments *sqlstreams.Stream[Payment]) error {
	// doc: concepts/produce
	producer := payments.Producer(nil)
	_, err := producer.Produce(ctx, &Payment{PaymentID: "p-1", Account: "a-1", Cents: 1250}, nil)
	if err != nil {
		return err
	}
	_, err = producer.ProduceBatch(ctx, []sqlstreams.Outgoing[Payment]{
		{Payload: &Payment{PaymentID: "p-2", Account: "a-1", Cents: 800}},
		{Payload: &Payment{PaymentID: "p-3", Account: "a-2", Cents: 90}, Options: &sqlstreams.ProduceOptions{
			Key:     "a-2",
			Headers: map[string]string{"trace": "7f3a"},
		}},
	})
	// doc: end
	return err
}

func request(ctx context.Context, client *sqlstreams.Client, producer *sqlstreams.Producer[Payment], payment *Payment) error {
	// doc: concepts/transaction
	err := client.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `insert into payment (id, cents) values ($1, $2)`, payment.PaymentID, payment.Cents); err != nil {
			return err // rolls back: no row, no message
		}
		_, err := producer.ProduceTx(ctx, tx, payment, nil)
		return err
	})
	// doc: end
	return err
}

func requestSQL(ctx context.Context, db *sql.DB, producer *sqlstreams.Producer[Payment], payment *Payment) error {
	// doc: concepts/sqltx
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after the commit
	if _, err := tx.ExecContext(ctx, `insert into payment (id, cents) values ($1, $2)`, payment.PaymentID, payment.Cents); err != nil {
		return err
	}
	if _, err := producer.ProduceSQLTx(ctx, tx, payment, nil); err != nil {
		return err
	}
	return tx.Commit()
	// doc: end
}

func TestProducing(t *testing.T) {
	t.Parallel()
	client, _, db := open(t)
	ctx := t.Context()
	db.Exec(t, `create table payment (id text primary key, cents bigint not null)`)
	payments := register[Payment](t, client, "payments.requested")
	if err := produce(ctx, payments); err != nil {
		t.Fatal(err)
	}
	standard, err := sql.Open("pgx", db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := standard.Close(); err != nil {
			t.Error(err)
		}
	})
	producer := payments.Producer(nil)
	if err := errors.Join(request(ctx, client, producer, &Payment{PaymentID: "p-4"}), requestSQL(ctx, standard, producer, &Payment{PaymentID: "p-5"})); err != nil {
		t.Fatal(err)
	}
	// Each row exists already: no second message.
	if request(ctx, client, producer, &Payment{PaymentID: "p-4"}) == nil || requestSQL(ctx, standard, producer, &Payment{PaymentID: "p-5"}) == nil {
		t.Error("the same payment was requested twice")
	}
	instance, err := payments.RegisterConsumer(ctx, "charge-cards", nil)
	if err != nil {
		t.Fatal(err)
	}
	var charged tally
	running(t, func(ctx context.Context) error {
		return instance.Consume(ctx, func(ctx context.Context, p *Payment) error {
			if meta, ok := sqlstreams.MetaFromContext(ctx); !ok || (meta.Key == "a-2") != (p.PaymentID == "p-3") || (meta.Headers["trace"] == "7f3a") != (p.PaymentID == "p-3") {
				return fmt.Errorf("%s came with key %q and headers %v", p.PaymentID, meta.Key, meta.Headers)
			}
			charged.add(p.PaymentID)
			return nil
		}, nil)
	})
	pgtest.Eventually(t, patience, "five payments are charged", func() bool {
		return db.QueryInt(t, `select count(*) from sqlstreams.inbox`) == 0 && charged.distinct() == 5
	})
}

// groups declares two groups and starts one instance of each.
func groups(ctx context.Context, payments *sqlstreams.Stream[Payment], run func(func() error), charge, audit func(context.Context, *Payment) error) error {
	// doc: concepts/groups
	chargeCards, err := payments.RegisterConsumer(ctx, "charge-cards", nil)
	if err != nil {
		return err
	}
	auditPayments, err := payments.RegisterConsumer(ctx, "audit-payments", nil)
	if err != nil {
		return err
	}
	run(func() error { return chargeCards.Consume(ctx, charge, nil) })
	run(func() error { return auditPayments.Consume(ctx, audit, nil) })
	// doc: end
	return nil
}

func TestGroupsGetEverythingEach(t *testing.T) {
	t.Parallel()
	client, _, db := open(t)
	payments := register[Payment](t, client, "payments.requested")
	if err := produce(t.Context(), payments); err != nil {
		t.Fatal(err)
	}
	var charged, audited tally
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	err := groups(ctx, payments, func(f func() error) { go func() { ended <- f() }() },
		func(_ context.Context, p *Payment) error { charged.add(p.PaymentID); return nil },
		func(_ context.Context, p *Payment) error { audited.add(p.PaymentID); return nil })
	if err != nil {
		t.Fatal(err)
	}
	finished(t, client, db, "payments.requested", "charge-cards")
	finished(t, client, db, "payments.requested", "audit-payments")
	cancel()
	if err := errors.Join(<-ended, <-ended); err != nil {
		t.Error(err)
	}
	if charged.distinct() != 3 || audited.distinct() != 3 {
		t.Errorf("charged %v, audited %v", charged.seen, audited.seen)
	}
}

func leases(ctx context.Context, payments *sqlstreams.Stream[Payment], charge func(context.Context, *Payment) error) error {
	// doc: concepts/leases
	instance, err := payments.RegisterConsumer(ctx, "charge-cards", &sqlstreams.ConsumerConfig{
		Message: &sqlstreams.MessageOptions{Timeout: 30 * time.Second},
	})
	if err != nil {
		return err
	}
	return instance.Consume(ctx, charge, &sqlstreams.ConsumeOptions{
		Handlers:     1,
		BatchLimit:   4,
		BatchMin:     4, // claim four, however slow the handlers are
		QueueMargin:  15 * time.Second,
		TimeoutGrace: time.Second,
		RecordMargin: 2 * time.Second,
	})
	// doc: end
}

// The four payments share a lease of 48 s; a start needs 33 s.
func TestTheExamplesLease(t *testing.T) {
	t.Parallel()
	client, _, db := open(t)
	payments := register[Payment](t, client, "payments.requested")
	four := make([]sqlstreams.Outgoing[Payment], 4)
	for i := range four {
		four[i].Payload = &Payment{PaymentID: fmt.Sprint("p-", i+1)}
	}
	if _, err := payments.Producer(nil).ProduceBatch(t.Context(), four); err != nil {
		t.Fatal(err)
	}
	left := make(chan time.Duration, 4)
	onward := make(chan struct{})
	running(t, func(ctx context.Context) error {
		return leases(ctx, payments, func(ctx context.Context, _ *Payment) error {
			meta, _ := sqlstreams.MetaFromContext(ctx)
			left <- time.Until(meta.LeaseDeadline)
			<-onward
			return nil
		})
	})
	t.Cleanup(func() { close(onward) })
	if l := <-left; l > 48*time.Second || l < 33*time.Second {
		t.Errorf("message 1 started with %v left", l)
	}
	if n := db.QueryInt(t, `select count(*) from sqlstreams.claim where low = 0 and high = 4 and expires_at between clock_timestamp() + interval '33 s' and clock_timestamp() + interval '48 s'`); n != 1 {
		t.Errorf("%d claims of messages 1-4 with a lease of 48 s", n)
	}
}

func send(instance *sqlstreams.Consumer[WelcomeEmail], ctx context.Context, mailURL string) error {
	// doc: concepts/timeouts
	err := instance.Consume(ctx, func(ctx context.Context, email *WelcomeEmail) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, mailURL, strings.NewReader(email.UserID))
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request) // returns when ctx ends
		if err != nil {
			return err
		}
		return response.Body.Close()
	}, nil)
	// doc: end
	return err
}

// The mail API hangs the first time: the handler ends at its timeout, nothing is abandoned, and the retry succeeds.
func TestHandlersThatHeedTheirContext(t *testing.T) {
	t.Parallel()
	client, _, db := open(t)
	emails := register[WelcomeEmail](t, client, "signup.welcome-email")
	if _, err := emails.Producer(nil).Produce(t.Context(), &WelcomeEmail{UserID: "u-1"}, nil); err != nil {
		t.Fatal(err)
	}
	instance, err := emails.RegisterConsumer(t.Context(), "email-sender", &sqlstreams.ConsumerConfig{
		Message: &sqlstreams.MessageOptions{Timeout: 100 * time.Millisecond, BaseDelay: 10 * time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	var calls tally
	api := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		// The server notices that the client has gone only once it has read the body.
		if _, err := io.Copy(io.Discard, r.Body); err == nil && calls.add("all") == 1 {
			<-r.Context().Done()
		}
	}))
	t.Cleanup(api.Close)
	running(t, func(ctx context.Context) error { return send(instance, ctx, api.URL) })
	finished(t, client, db, "signup.welcome-email", "email-sender")
	if h := instance.Health(); h.Succeeded != 1 || h.Failed == 0 || h.Abandoned != 0 {
		t.Errorf("health %+v", h)
	}
}

// errRateLimited and errCardUnknown are what the page's provider answers.
var (
	errRateLimited = errors.New("rate limited")
	errCardUnknown = errors.New("card unknown")
)

func retrying(chargeCard func(context.Context, *Payment) error) func(context.Context, *Payment) error {
	// doc: failures/retries
	charge := func(ctx context.Context, payment *Payment) error {
		err := chargeCard(ctx, payment)
		switch {
		case errors.Is(err, errRateLimited):
			return sqlstreams.Delay(time.Minute) // later, and this is no failure
		case errors.Is(err, errCardUnknown):
			return sqlstreams.Terminal(err) // a dead letter now
		}
		return err // nil: done; else again after the backoff
	}
	// doc: end
	return charge
}

func TestDelayAndTerminal(t *testing.T) {
	t.Parallel()
	client, _, db := open(t)
	payments := register[Payment](t, client, "payments.requested")
	if err := produce(t.Context(), payments); err != nil {
		t.Fatal(err)
	}
	instance, err := payments.RegisterConsumer(t.Context(), "charge-cards", nil)
	if err != nil {
		t.Fatal(err)
	}
	running(t, func(ctx context.Context) error {
		return instance.Consume(ctx, retrying(func(_ context.Context, p *Payment) error {
			return map[string]error{"p-2": errRateLimited, "p-3": errCardUnknown}[p.PaymentID]
		}), nil)
	})
	pgtest.Eventually(t, patience, "one is done, one waits, one is dead", func() bool {
		s, err := client.GetGroup(t.Context(), "payments.requested", "charge-cards")
		if err != nil {
			t.Fatal(err)
		}
		return s.Committed == 3 && s.Pending == 1 && s.Dead == 1
	})
	if n := db.QueryInt(t, `select count(*) from sqlstreams.delivery where attempt = 0 and due_at between clock_timestamp() and clock_timestamp() + interval '61 s'`); n != 1 {
		t.Errorf("%d messages wait a minute without a failure", n)
	}
	if n := db.QueryInt(t, `select count(*) from sqlstreams.dead_letter where reason = 'terminal' and error = 'card unknown'`); n != 1 {
		t.Errorf("%d dead letters say why", n)
	}
}

// The page's table of waits, from the policy itself.
func TestTheTableOfWaits(t *testing.T) {
	t.Parallel()
	policy := delivery.DefaultPolicy()
	want := "| wait |"
	var sum time.Duration
	for failure := 1; failure < policy.MaxAttempts; failure++ {
		wait := policy.Backoff(failure, 0.5)
		sum += wait
		want += fmt.Sprintf(" %gs |", wait.Round(time.Second).Seconds())
	}
	want += " dead letter |\n\nThat is " + fmt.Sprint(sum.Round(time.Second).Seconds()) + " s in all"
	if !strings.Contains(page(t, "failures.md"), want) {
		t.Errorf("failures.md does not say %q", want)
	}
}

func TestSeveralMessagesAtOnce(t *testing.T) {
	t.Parallel()
	client, _, db := open(t)
	payments, err := sqlstreams.RegisterStream[Payment](t.Context(), client, "payments.requested", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, cents := range []int{5, 0, 7} {
		if _, err := payments.Producer(nil).Produce(t.Context(), &Payment{Cents: int64(cents)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	instance, err := payments.RegisterConsumer(t.Context(), "book", nil)
	if err != nil {
		t.Fatal(err)
	}
	running(t, func(ctx context.Context) error { return booked(ctx, instance) })
	finished(t, client, db, "payments.requested", "book")
	if s, err := client.Group("payments.requested", "book").Status(t.Context()); err != nil || s.Dead != 1 {
		t.Errorf("%+v, %v", s, err)
	}
}

func booked(ctx context.Context, instance *sqlstreams.Consumer[Payment]) error {
	book := func(context.Context, *sqlstreams.Batch[Payment]) error { return nil }
	var err error
	// doc: concepts/batch
	err = instance.ConsumeBatch(ctx, func(ctx context.Context, b *sqlstreams.Batch[Payment]) error {
		for i, payment := range b.All() {
			if payment.Cents <= 0 {
				b.Fail(i, sqlstreams.Terminal(errors.New("nothing to book"))) // this one alone
			}
		}
		return book(ctx, b) // an error is that of all others
	}, &sqlstreams.BatchOptions{MaxMessages: 500})
	// doc: end
	return err
}
