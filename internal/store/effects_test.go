package store

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// An attempt was written off while the server commits its handler's transaction. Whoever records the failure, as a retry or as a dead letter, on the main line or of a delivery, waits for that commit and then writes
// nothing; if the transaction is rolled back, what was to be written is.
func TestARecordWaitsForTheHandlersCommit(t *testing.T) {
	for _, c := range []struct {
		name     string
		delivery bool
		kind     delivery.Kind
		commits  bool
	}{
		{"range, retry", false, delivery.Failed, true},
		{"range, dead letter", false, delivery.Dead, true},
		{"delivery, retry", true, delivery.Failed, true},
		{"delivery, dead letter", true, delivery.Dead, true},
		{"range, dead letter, rolled back", false, delivery.Dead, false},
		{"delivery, dead letter, rolled back", true, delivery.Dead, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := install(t)
			ctx := context.Background()
			stream := in.stream(t, "s", 0)
			group := in.group(t, stream, "g", "beginning")
			in.append(t, stream, `1`)
			instance, token := uuid.New(), uuid.New()
			work := func(req delivery.WorkRequest) *delivery.WorkReply {
				t.Helper()
				req.Group, req.Stream, req.Instance, req.Margins = group, stream, instance, time.Minute
				return in.work(t, &req)
			}
			if r := work(delivery.WorkRequest{RangeToken: token, MaxMessages: 1, MaxBytes: 1000}).Range; r == nil || r.High != 1 {
				t.Fatalf("%+v", r)
			}
			if c.delivery {
				work(delivery.WorkRequest{Results: []delivery.RangeResult{{RangeRef: delivery.RangeRef{Token: token}, Outcomes: []delivery.Outcome{{ID: 1, Kind: delivery.Failed, Attempt: 1}}}}})
				token = uuid.New()
				if r := work(delivery.WorkRequest{DeliveryToken: token, Retries: 1}); len(r.Deliveries) != 1 {
					t.Fatalf("%+v", r)
				}
			}
			handler, err := in.pool.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := handler.Exec(ctx, in.text["finish_tx"], group, int64(1), token, c.delivery); err != nil {
				t.Fatal(err)
			}
			outcome := delivery.Outcome{ID: 1, Kind: c.kind, Attempt: 2, Reason: delivery.Exhausted, Error: "hard timeout"}
			recorded := make(chan struct{})
			go func() {
				defer close(recorded)
				if c.delivery {
					work(delivery.WorkRequest{Deliveries: []delivery.DeliveryResult{{Token: token, Outcome: outcome}}})
				} else {
					work(delivery.WorkRequest{Results: []delivery.RangeResult{{RangeRef: delivery.RangeRef{Token: token}, Outcomes: []delivery.Outcome{outcome}}}})
				}
			}()
			pgtest.Eventually(t, 10*time.Second, "the record waits", func() bool {
				return in.count(t, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`) == 1
			})
			if c.commits {
				err = handler.Commit(ctx)
			} else {
				err = handler.Rollback(ctx)
			}
			if err != nil {
				t.Fatal(err)
			}
			<-recorded
			want := int64(1)
			if c.commits {
				want = 0
			}
			if n := in.count(t, `select (select count(*) from {schema}.dead_letter) + (select count(*) from {schema}.delivery)`); n != want {
				t.Errorf("%d deliveries and dead letters, want %d", n, want)
			}
			if n := in.count(t, `select (select count(*) from {schema}.claim) + (select count(*) from {schema}.done)`); n != 0 {
				t.Errorf("%d claims and marks are left", n)
			}
			// Nobody owns it any more.
			late, err := in.pool.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = late.Rollback(ctx) }()
			_, err = late.Exec(ctx, in.text["finish_tx"], group, int64(1), token, c.delivery)
			if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "SQ100" {
				t.Errorf("a late commit: %v", err)
			}
		})
	}
}
