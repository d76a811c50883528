package store

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
	"github.com/sqlstreams/sqlstreams/internal/schema"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// installation is a database with the schema in it.
type installation struct {
	*Store
	db   *pgtest.Database
	pool *pgxpool.Pool
}

func install(t testing.TB) *installation {
	t.Helper()
	return installAs(t, pgtest.NewDatabase(t), "sqlstreams", nil)
}

func installAs(t testing.TB, db *pgtest.Database, name string, change func(*pgxpool.Config)) *installation {
	t.Helper()
	ctx := context.Background()
	if change == nil {
		change = func(*pgxpool.Config) {}
	}
	pool := db.PoolConfig(t, change)
	names, err := schema.NewNames(name)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := schema.Up(ctx, conn, names); err != nil {
		t.Fatal(err)
	}
	return &installation{Store: New(names, pool, pool, 0, slog.New(slog.NewTextHandler(io.Discard, nil))), db: db, pool: pool}
}

func (in *installation) stream(t testing.TB, name string, partitionRows int) int {
	t.Helper()
	st, err := in.RegisterStream(context.Background(), name, KindJSON, []byte(`{"v":1}`), false, partitionRows)
	if err != nil {
		t.Fatal(err)
	}
	return st.ID
}

func (in *installation) group(t testing.TB, stream int, name, start string) int {
	t.Helper()
	g, err := in.RegisterGroup(context.Background(), stream, name, []byte(`{"v":1}`), false, time.Second, 3, start)
	if err != nil {
		t.Fatal(err)
	}
	return g.ID
}

// hideLog renames a log, once it has the leaves it needs, and leaves them their names. See make_log for why nothing may name it.
func (in *installation) hideLog(t testing.TB, stream int) {
	t.Helper()
	in.sql(t, fmt.Sprintf(`alter table {schema}.log_%d rename to whole_%[1]d`, stream))
}

func messages(payloads ...string) []Outgoing {
	var out []Outgoing
	for _, p := range payloads {
		out = append(out, Outgoing{Payload: []byte(p), Version: 1})
	}
	return out
}

func (in *installation) append(t testing.TB, stream int, payloads ...string) AppendReply {
	t.Helper()
	reply, err := in.Append(context.Background(), &AppendRequest{Stream: stream, Kind: KindJSON, Producer: uuid.New(), Batch: 1, Wait: time.Second, Messages: messages(payloads...)})
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

func (in *installation) work(t testing.TB, req *delivery.WorkRequest) *delivery.WorkReply {
	t.Helper()
	reply, err := in.Work(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// sql runs a statement with the schema's name put in.
func (in *installation) sql(t testing.TB, sql string, args ...any) {
	t.Helper()
	in.db.Exec(t, in.names.Expand(sql), args...)
}

func (in *installation) count(t testing.TB, sql string, args ...any) int64 {
	t.Helper()
	return in.db.QueryInt(t, in.names.Expand(sql), args...)
}
