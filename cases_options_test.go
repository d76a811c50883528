package sqlstreams_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// Zero, negative and the largest values of every option.

// numbers returns the paths of all numeric fields of a struct type, those of structs it points to included.
func numbers(typ reflect.Type, path ...int) (all [][]int) {
	for i := range typ.NumField() {
		at := append(append([]int{}, path...), i)
		switch f := typ.Field(i).Type; {
		case f.Kind() == reflect.Pointer && f.Elem().Kind() == reflect.Struct && f.Elem().NumField() > 0 && f.Elem().PkgPath() == typ.PkgPath():
			all = append(all, numbers(f.Elem(), at...)...)
		case f.Kind() == reflect.Int || f.Kind() == reflect.Int64 || f.Kind() == reflect.Float64:
			all = append(all, at)
		}
	}
	return all
}

// with returns a new struct with one field set, the field's name, and whether it is a float.
func with(typ reflect.Type, path []int, value float64) (options any, name string, float bool) {
	made := reflect.New(typ)
	at := made.Elem()
	for _, i := range path {
		if at.Kind() == reflect.Pointer {
			at.Set(reflect.New(at.Type().Elem()))
			at = at.Elem()
		}
		name += "." + at.Type().Field(i).Name
		at = at.Field(i)
	}
	switch {
	case at.Kind() == reflect.Float64:
		at.SetFloat(value)
	case value >= math.MaxInt64:
		at.SetInt(math.MaxInt64)
	default:
		at.SetInt(int64(value))
	}
	return made.Interface(), typ.Name() + name, at.Kind() == reflect.Float64
}

// Every number of every option, found by reflection so that new ones are not forgotten.
func TestNumbersOutOfBoundsAreRefused(t *testing.T) {
	client, db, pool := open(t, &sqlstreams.ClientConfig{DisableManager: true})
	stream := register[WelcomeEmail](t, client, "s")
	instance := group(t, stream, "g", nil)
	ended, end := context.WithCancel(t.Context())
	end() // a Consume with options that are in order returns at once
	tables := []string{"stream", "consumer_group", "cursor", "log_1", "inbox"}
	before := content(t, db, tables...)
	use := map[reflect.Type]func(options any) error{
		reflect.TypeFor[sqlstreams.ClientConfig](): func(options any) error {
			other, err := sqlstreams.NewClient(t.Context(), pool, options.(*sqlstreams.ClientConfig))
			if err == nil {
				other.Close(t.Context())
			}
			return err
		},
		reflect.TypeFor[sqlstreams.StreamConfig](): func(options any) error {
			_, err := sqlstreams.RegisterStream[WelcomeEmail](t.Context(), client, "s", options.(*sqlstreams.StreamConfig))
			return err
		},
		reflect.TypeFor[sqlstreams.ConsumerConfig](): func(options any) error {
			_, err := stream.RegisterConsumer(t.Context(), "g", options.(*sqlstreams.ConsumerConfig))
			return err
		},
		reflect.TypeFor[sqlstreams.ProduceOptions](): func(options any) error {
			_, err := stream.Producer(nil).Produce(t.Context(), &WelcomeEmail{}, options.(*sqlstreams.ProduceOptions))
			return err
		},
		reflect.TypeFor[sqlstreams.ConsumeOptions](): func(options any) error {
			return instance.Consume(ended, func(context.Context, *WelcomeEmail) error { return nil }, options.(*sqlstreams.ConsumeOptions))
		},
		reflect.TypeFor[sqlstreams.BatchOptions](): func(options any) error {
			return instance.ConsumeBatch(ended, func(context.Context, *sqlstreams.Batch[WelcomeEmail]) error { return nil }, options.(*sqlstreams.BatchOptions))
		},
	}
	fields := 0
	for typ, call := range use {
		for _, path := range numbers(typ) {
			fields++
			for _, value := range []float64{-1, -2, math.MinInt64, math.MaxInt64, 0.5, math.Inf(1), math.Inf(-1), math.NaN()} {
				options, name, float := with(typ, path, value)
				if name == "ConsumerConfig.MaxRangeReclaims" && value == sqlstreams.Off {
					continue
				}
				if name == "ConsumerConfig.RatePerSecond" && value == 0.5 {
					continue // one in two seconds
				}
				if !float && value != math.Trunc(value) || !float && math.IsInf(value, 0) {
					continue
				}
				err := call(options)
				if !errors.Is(err, sqlstreams.ErrInvalidOption) {
					t.Errorf("%s = %v: %v", name, value, err)
					continue
				}
				coded(t, err, sqlstreams.ErrInvalidOption, false)
			}
			options, name, _ := with(typ, path, 0)
			if typ == reflect.TypeFor[sqlstreams.ConsumerConfig]() || typ == reflect.TypeFor[sqlstreams.ProduceOptions]() || typ == reflect.TypeFor[sqlstreams.StreamConfig]() {
				continue // they would be stored
			}
			if err := call(options); err != nil {
				t.Errorf("%s = 0, which means unset: %v", name, err)
			}
		}
	}
	if fields < 30 {
		t.Errorf("only %d numbers were found", fields)
	}
	if after := content(t, db, tables...); after != before {
		t.Errorf("refused options changed\n%sto\n%s", before, after)
	}
}

// The largest values that are allowed: nothing overflows, the lease is what they add up to, and a stop does not wait for them.
func TestLargestOptionsAreBounded(t *testing.T) {
	const week, month = 7 * 24 * time.Hour, 30 * 24 * time.Hour
	client, db, _ := open(t, nil)
	stream, err := sqlstreams.RegisterStream[WelcomeEmail](t.Context(), client, "s", &sqlstreams.StreamConfig{MaxPayload: 256 << 20, MaxKey: 2048, MaxHeaders: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	largest := sqlstreams.MessageOptions{Timeout: week, MaxAttempts: 1_000_000, BaseDelay: month, Exponent: 100, MaxDelay: month}
	instance := group(t, stream, "g", &sqlstreams.ConsumerConfig{Message: &largest, MessageMin: &largest, MessageMax: &largest, MaxRangeReclaims: 1000})
	if _, err := stream.Producer(nil).Produce(t.Context(), &WelcomeEmail{UserID: "u"}, &sqlstreams.ProduceOptions{Message: &largest}); err != nil {
		t.Fatal(err)
	}
	entered, leave := make(chan sqlstreams.Meta), make(chan error)
	r := consume(t, instance, &sqlstreams.ConsumeOptions{Handlers: 2000, BatchLimit: 10_000, BatchMin: 10_000, MaxBatchBytes: 1 << 30, QueueSize: 100, QueueMargin: week,
		TimeoutGrace: time.Hour, RecordMargin: time.Hour, StopTimeout: week, PollInterval: time.Hour}, func(ctx context.Context, _ *WelcomeEmail) error {
		meta, _ := sqlstreams.MetaFromContext(ctx)
		if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) < week-time.Minute {
			t.Errorf("the handler's deadline is %v", deadline)
		}
		entered <- meta
		return <-leave
	})
	meta := <-entered
	const lease = 2*week + 2*time.Hour
	if left := time.Until(meta.LeaseDeadline); left < lease-time.Minute || left > lease {
		t.Errorf("the lease lasts %v, not %v", left, lease)
	}
	if n := db.QueryInt(t, `select count(*) from sqlstreams.claim where expires_at between clock_timestamp() + $1 - interval '1 minute' and clock_timestamp() + $1`, lease); n != 1 {
		t.Error("the stored lease is not what the options add up to")
	}
	leave <- errors.New("once")
	pgtest.Eventually(t, 10*time.Second, "the retry is far away", func() bool {
		return db.QueryInt(t, `select count(*) from sqlstreams.delivery where state = 'pending' and due_at between clock_timestamp() + interval '26 days' and clock_timestamp() + interval '34 days'`) == 1
	})
	began := time.Now()
	r.stop(t)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("an idle consumer took %v to stop", took)
	}
}

// The backoff of a late attempt is the longest one, whatever its power comes to.
func TestAttempt310WaitsForMaxDelay(t *testing.T) {
	for _, exponent := range []float64{1, 2, 100} {
		t.Run(fmt.Sprint(exponent), func(t *testing.T) {
			client, db, _ := open(t, nil)
			stream := register[WelcomeEmail](t, client, "s")
			instance := group(t, stream, "g", &sqlstreams.ConsumerConfig{
				Message: &sqlstreams.MessageOptions{MaxAttempts: 1_000_000, BaseDelay: 5 * time.Minute, Exponent: exponent, MaxDelay: 5 * time.Minute}})
			produceAll(t, stream, "u")
			failed := make(chan int, 10)
			consume(t, instance, &sqlstreams.ConsumeOptions{PollInterval: 10 * time.Millisecond}, func(ctx context.Context, _ *WelcomeEmail) error {
				meta, _ := sqlstreams.MetaFromContext(ctx)
				failed <- meta.Attempt
				return errors.New("no luck")
			})
			if attempt := <-failed; attempt != 1 {
				t.Errorf("attempt %d", attempt)
			}
			const waits = `select count(*) from sqlstreams.delivery where state = 'pending' and attempt = $1 and due_at between clock_timestamp() + interval '4 minutes' and clock_timestamp() + interval '5.6 minutes'`
			pgtest.Eventually(t, 10*time.Second, "the first failure is recorded", func() bool { return db.QueryInt(t, waits, 1) == 1 })
			db.Exec(t, `update sqlstreams.delivery set attempt = 309, due_at = clock_timestamp()`)
			if attempt := <-failed; attempt != 310 {
				t.Errorf("attempt %d", attempt)
			}
			pgtest.Eventually(t, 10*time.Second, "attempt 310 waits for five minutes", func() bool { return db.QueryInt(t, waits, 310) == 1 })
		})
	}
}

// MaxRangeReclaims can be turned off: a range is broken up at its first expiry, and each of its messages runs alone.
func TestRangesAreBrokenUpAtTheFirstExpiryWhereReclaimsAreOff(t *testing.T) {
	client, db, pool := open(t, &sqlstreams.ClientConfig{DisableManager: true})
	stream := register[WelcomeEmail](t, client, "s")
	config := &sqlstreams.ConsumerConfig{MaxRangeReclaims: sqlstreams.Off}
	next := group(t, register[WelcomeEmail](t, openOn(t, pool, &sqlstreams.ClientConfig{DisableManager: true}), "s"), "g", config)
	first := group(t, stream, "g", config)
	produceAll(t, stream, "a", "b", "c")
	entered, leave := make(chan struct{}, 10), make(chan struct{})
	consume(t, first, &sqlstreams.ConsumeOptions{Handlers: 3}, func(context.Context, *WelcomeEmail) error {
		entered <- struct{}{}
		<-leave
		return nil
	})
	defer close(leave)
	for range 3 {
		<-entered
	}
	db.Exec(t, `update sqlstreams.claim set expires_at = clock_timestamp()`)
	var runs tally
	var at, most atomic.Int32
	consume(t, next, nil, func(_ context.Context, m *WelcomeEmail) error {
		runs.add(m.UserID)
		most.Store(max(most.Load(), at.Add(1)))
		pause(20 * time.Millisecond)
		at.Add(-1)
		return nil
	})
	pgtest.Eventually(t, 20*time.Second, "each has run", func() bool {
		return runs.distinct() == 3 && db.QueryInt(t, `select (select count(*) from sqlstreams.delivery) + (select count(*) from sqlstreams.claim)`) == 0
	})
	if h := next.Health(); h.BrokenUp != 3 || h.Reclaimed != 0 || most.Load() != 1 || runs.total() != 3 {
		t.Errorf("%+v; %d ran at once; %d runs", h, most.Load(), runs.total())
	}
}

// What a handler asks for is bounded as well.
func TestDelaysThatHandlersAskForAreBounded(t *testing.T) {
	client, db, _ := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	var runs tally
	consume(t, group(t, stream, "g", nil), nil, func(_ context.Context, m *WelcomeEmail) error {
		switch n := runs.add(m.UserID); {
		case m.UserID == "largest":
			return sqlstreams.Delay(math.MaxInt64)
		case m.UserID == "smallest" && n < 4:
			return fmt.Errorf("wrapped: %w", sqlstreams.Delay(math.MinInt64))
		case m.UserID == "zero" && n < 4:
			return sqlstreams.Delay(0)
		}
		return nil
	})
	produceAll(t, stream, "largest", "smallest", "zero")
	pgtest.Eventually(t, 20*time.Second, "the small ones ran four times, the largest waits for a month", func() bool {
		return runs.count("smallest") == 4 && runs.count("zero") == 4 &&
			db.QueryInt(t, `select count(*) from sqlstreams.delivery where due_at between clock_timestamp() + interval '29 days' and clock_timestamp() + interval '30 days' and attempt = 0`) == 1
	})
	if runs.total() != 9 {
		t.Errorf("%d runs, not 9", runs.total())
	}
}

// Polling every millisecond does not spin: idle groups are looked at five times a second at the most. Polling every hour delivers at once all the same, by announcements.
func TestShortestAndLongestPollInterval(t *testing.T) {
	client, db, _ := open(t, &sqlstreams.ClientConfig{DisableManager: true})
	stream := register[WelcomeEmail](t, client, "s")
	var shortest, longest atomic.Int32
	consume(t, group(t, stream, "shortest", nil), &sqlstreams.ConsumeOptions{PollInterval: time.Millisecond}, func(context.Context, *WelcomeEmail) error {
		shortest.Add(1)
		return nil
	})
	distant, err := sqlstreams.NewClient(t.Context(), db.Pool(t), &sqlstreams.ClientConfig{Logger: quiet(), DisableManager: true})
	if err != nil {
		t.Fatal(err)
	}
	defer distant.Close(context.Background())
	r := consume(t, group(t, register[WelcomeEmail](t, distant, "s"), "longest", nil), &sqlstreams.ConsumeOptions{PollInterval: time.Hour}, func(context.Context, *WelcomeEmail) error {
		longest.Add(1)
		return nil
	})
	listening := func() bool {
		return db.QueryInt(t, `select count(*) from pg_stat_activity where datname = current_database() and query ilike '%listen%' and pid <> pg_backend_pid()`) == 2
	}
	pgtest.Eventually(t, 10*time.Second, "both clients listen", listening)
	for i := range 20 {
		produceAll(t, stream, fmt.Sprint(i))
		pgtest.Eventually(t, 5*time.Second, "both groups have it", func() bool { return shortest.Load() == int32(i+1) && longest.Load() == int32(i+1) })
	}
	began := time.Now()
	r.stop(t)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("with an interval of an hour it took %v to stop", took)
	}
}
