//go:build full

package store

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/pgserver"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// Every statement is prepared, and a message goes all its ways, on each supported version of Postgres.
func TestEveryVersionOfPostgres(t *testing.T) {
	versions, err := pgserver.Versions(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(versions) == 0 {
		t.Fatal("no versions to test on: SQLSTREAMS_PG_VERSIONS names none")
	}
	for _, binaries := range versions {
		t.Run(binaries.Version, func(t *testing.T) {
			in := installAs(t, pgtest.NewDatabaseOn(t, pgtest.NewServer(t, pgserver.Options{Binaries: binaries})), "sqlstreams", nil)
			ctx := context.Background()
			stream := in.stream(t, "s", 20)
			prepareAll(t, in)
			group := in.group(t, stream, "g", "beginning")
			in.append(t, stream, `1`, `2`, `3`)
			tx, err := in.pool.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := in.PutTx(ctx, tx, stream, KindJSON, messages(`4`, `5`)); err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(ctx); err != nil {
				t.Fatal(err)
			}
			if reply, err := in.Drain(ctx, stream, 100); err != nil || reply.Moved != 2 {
				t.Fatalf("%+v, %v", reply, err)
			}
			token := uuid.New()
			reply := in.work(t, &delivery.WorkRequest{Group: group, Stream: stream, Instance: uuid.New(), RangeToken: token, MaxMessages: 100, MaxBytes: 1 << 20,
				TakeOver: true, LookExpired: true, RestToken: uuid.New(), PartMax: 10, DeliveryToken: uuid.New(), Retries: 5, Margins: time.Second})
			if reply.Range == nil || reply.Range.High != 5 {
				t.Fatalf("%+v", reply)
			}
			got, err := in.Read(ctx, stream, 0, 5)
			if err != nil || len(got) != 5 {
				t.Fatalf("%d messages, %v", len(got), err)
			}
			retry := uuid.New()
			reply = in.work(t, &delivery.WorkRequest{Group: group, Stream: stream, Instance: uuid.New(), DeliveryToken: retry, Retries: 5, Margins: time.Second,
				Results: []delivery.RangeResult{{RangeRef: delivery.RangeRef{Low: 0, Token: token}, Outcomes: []delivery.Outcome{
					{ID: 2, Kind: delivery.Failed, Attempt: 1, Error: "x"}, {ID: 3, Kind: delivery.Dead, Attempt: 1, Reason: delivery.TerminalErr, Error: "y"}}}}})
			if len(reply.LostRanges) != 0 || len(reply.Deliveries) != 1 || reply.Deliveries[0].ID != 2 {
				t.Fatalf("%+v", reply)
			}
			if n := in.count(t, `select count(*) from {schema}.dead_letter where payload::text = '3'`); n != 1 {
				t.Errorf("%d dead letters with their payload", n)
			}
			if probed, err := in.Probe(ctx, []int{group, 99}); err != nil || len(probed) != 2 || probed[0].Head != 5 || !probed[1].Gone {
				t.Errorf("%+v, %v", probed, err)
			}
			if outcome, err := in.RotateInbox(ctx, 1); err != nil || outcome != "rotated" {
				t.Errorf("%q, %v", outcome, err)
			}
			if failed := runHistories(t, in, 1, 20); len(failed) > 0 {
				t.Error(failed)
			}
			if err := in.DropStream(ctx, stream, "ann"); err != nil {
				t.Error(err)
			}
		})
	}
}
