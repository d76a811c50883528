package docs_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

func mend(ctx context.Context, client *sqlstreams.Client, report func(format string, args ...any)) error {
	// doc: failures/deadletters
	group := client.Group("payments.requested", "charge-cards")
	kinds, err := group.DeadGroups(ctx, nil) // counted by error, the most frequent first
	if err != nil {
		return err
	}
	for _, kind := range kinds {
		report("%d died of %s: %s (message %d, for one)", kind.Count, kind.Reason, kind.Error, kind.Example)
	}
	outage := &sqlstreams.DeliveryFilter{Contains: "provider is down"}
	redriven, err := group.Redrive(ctx, outage, &sqlstreams.OperateOptions{Rate: 50}) // at most 50 a second
	if err != nil {
		return err
	}
	discarded, err := group.Discard(ctx, &sqlstreams.DeliveryFilter{Reason: "terminal"}, nil)
	if err != nil {
		return err
	}
	report("%d run again, %d are removed", redriven, discarded)
	// doc: end
	return nil
}

func why(ctx context.Context, client *sqlstreams.Client, report func(format string, args ...any)) error {
	// doc: operating/status
	status, err := client.Group("payments.requested", "charge-cards").Status(ctx)
	if err != nil {
		return err
	}
	for _, reason := range status.Reasons {
		report("blocking: %v. %s Remedy: %s", reason.Blocking, reason.Text, reason.Remedy)
	}
	// doc: end
	return nil
}

func moveBack(ctx context.Context, client *sqlstreams.Client, deployed time.Time, report func(format string, args ...any)) error {
	// doc: operating/seek
	group := client.Group("payments.requested", "charge-cards")
	preview, err := group.Seek(ctx, sqlstreams.StartAt(deployed), &sqlstreams.OperateOptions{DryRun: true})
	if err != nil {
		return err
	}
	report("up to %d messages would come again, %d open ranges would be taken from their holders", preview.Again, preview.OpenClaims)
	moved, err := group.Seek(ctx, sqlstreams.StartAt(deployed), nil)
	if err != nil {
		return err
	}
	report("moved from %d to %d", moved.From, moved.To)
	// doc: end
	return nil
}

func ready(instance *sqlstreams.Consumer[Payment]) error {
	// doc: operating/health
	health := instance.Health()
	if health.LastError != "" { // the last exchange with the database failed
		return fmt.Errorf("consumer cannot work: %s, last success %s", health.LastError, health.LastWork)
	}
	if health.Outstanding > 5 { // handlers that ignored their context and still run
		return fmt.Errorf("%d abandoned handlers", health.Outstanding)
	}
	// doc: end
	return nil
}

// Two payments die of two things; one is redriven and succeeds, the other is discarded. The group's status says so meanwhile.
func TestDeadLettersAreMended(t *testing.T) {
	t.Parallel()
	client, _, db := open(t)
	payments := register[Payment](t, client, "payments.requested")
	if err := produce(t.Context(), payments); err != nil {
		t.Fatal(err)
	}
	instance, err := payments.RegisterConsumer(t.Context(), "charge-cards", &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{MaxAttempts: 1}})
	if err != nil {
		t.Fatal(err)
	}
	var tries tally
	running(t, func(ctx context.Context) error {
		return instance.Consume(ctx, func(_ context.Context, p *Payment) error {
			switch n := tries.add(p.PaymentID); {
			case p.PaymentID == "p-2" && n == 1:
				return errors.New("provider is down since 17 s")
			case p.PaymentID == "p-3":
				return sqlstreams.Terminal(errCardUnknown)
			}
			return nil
		}, nil)
	})
	pgtest.Eventually(t, patience, "two are dead", func() bool { return db.QueryInt(t, `select count(*) from sqlstreams.dead_letter`) == 2 })
	var said strings.Builder
	report := func(format string, args ...any) { fmt.Fprintf(&said, format+"\n", args...) }
	if err := errors.Join(why(t.Context(), client, report), mend(t.Context(), client, report), ready(instance)); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"2 messages are dead letters", "sqlstreams dead list payments.requested charge-cards", "1 died of exhausted: provider is down since # s", "1 died of terminal: card unknown", "1 run again, 1 are removed"} {
		if !strings.Contains(said.String(), part) {
			t.Errorf("nothing is said of %q:\n%s", part, said.String())
		}
	}
	pgtest.Eventually(t, patience, "the redriven one succeeds", func() bool { return tries.count("p-2") == 2 })
	finished(t, client, db, "payments.requested", "charge-cards")
	if n := db.QueryInt(t, `select count(*) from sqlstreams.dead_letter`); n != 0 || tries.count("p-3") != 1 {
		t.Errorf("%d dead letters, p-3 ran %d times", n, tries.count("p-3"))
	}
	if err := moveBack(t.Context(), client, time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), report); err != nil {
		t.Fatal(err)
	}
	if text := said.String(); !strings.Contains(text, "would come again, 0 open ranges") || !strings.Contains(text, " to 0\n") {
		t.Errorf("of the move is said:\n%s", text)
	}
	pgtest.Eventually(t, patience, "they run again", func() bool { return tries.count("p-2") == 3 && tries.count("p-3") == 2 })
}
