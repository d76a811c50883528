package sqlstreamstest

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// order is a payload.
type order struct {
	ID    string
	Cents int
}

// pool leads to a database of the test's own.
func pool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	return pgtest.NewDatabase(t).Pool(t)
}

func register(t *testing.T, i *Installation) *sqlstreams.Stream[order] {
	t.Helper()
	orders, err := sqlstreams.RegisterStream[order](t.Context(), i.Client(), "orders", nil)
	if err != nil {
		t.Fatal(err)
	}
	return orders
}

func group(t *testing.T, orders *sqlstreams.Stream[order], config *sqlstreams.ConsumerConfig) *sqlstreams.Consumer[order] {
	t.Helper()
	consumer, err := orders.RegisterConsumer(t.Context(), "shipping", config)
	if err != nil {
		t.Fatal(err)
	}
	return consumer
}

func produce(t *testing.T, orders *sqlstreams.Stream[order], payloads ...order) {
	t.Helper()
	for i := range payloads {
		if _, err := orders.Producer(nil).Produce(t.Context(), &payloads[i], nil); err != nil {
			t.Fatal(err)
		}
	}
}

// recorder stands for a test in which a helper fails: it keeps the message and the line that it belongs to.
type recorder struct {
	testing.TB
	failure string
	helper  bool
	failed  bool // what Failed says
	logged  string
}

func (r *recorder) Failed() bool { return r.failed }

func (r *recorder) Logf(format string, args ...any) { r.logged += fmt.Sprintf(format, args...) }

func (r *recorder) Helper() { r.helper = true }

func (r *recorder) Errorf(format string, args ...any) { r.failure += fmt.Sprintf(format, args...) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatal(args ...any) {
	r.failure += fmt.Sprint(args...)
	runtime.Goexit()
}

// failure returns what f's helper fails with.
func failure(t *testing.T, f func(t testing.TB)) string {
	t.Helper()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	if !r.helper {
		t.Error("the failure is not told at the caller's line")
	}
	return r.failure
}

func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in:\n%s", part, text)
		}
	}
}
