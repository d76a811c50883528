package produce

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/store"
)

// log is an Appender in memory: a log with the rule that one (producer, batch) is stored once. A script can make sendings fail before or after they took effect.
type log struct {
	mu      sync.Mutex
	rows    []string
	batches map[string]int64
	sizes   []int
	waits   []time.Duration
	forgot  [][2]int64
	takes   time.Duration
	script  func(n int, req *store.AppendRequest) (before, after error)
	calls   int

	keyed     []uuid.UUID // batches sent
	keyedErrs []error     // for one sending each
}

func (l *log) Append(ctx context.Context, req *store.AppendRequest) (store.AppendReply, error) {
	select {
	case <-time.NewTimer(l.takes).C:
	case <-ctx.Done():
		return store.AppendReply{}, &diag.Error{Code: diag.StatementTimeout, OutcomeUnknown: true, Err: ctx.Err()}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	var before, after error
	if l.script != nil {
		before, after = l.script(l.calls, req)
	}
	if before != nil {
		return store.AppendReply{}, before
	}
	key := fmt.Sprint(req.Producer, req.Batch)
	if first, ok := l.batches[key]; ok {
		return store.AppendReply{First: first, Repeated: true}, after
	}
	if l.batches == nil {
		l.batches = map[string]int64{}
	}
	first := int64(len(l.rows) + 1)
	for _, m := range req.Messages {
		l.rows = append(l.rows, string(m.Payload))
	}
	l.batches[key] = first
	l.sizes = append(l.sizes, len(req.Messages))
	l.waits = append(l.waits, req.Wait)
	return store.AppendReply{First: first}, after
}

// ProduceKeyed stores what it has not stored under the batch, like Append.
func (l *log) ProduceKeyed(ctx context.Context, req *store.KeyedRequest) ([]store.KeyedResult, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keyed = append(l.keyed, req.Batch)
	if len(l.keyedErrs) > 0 {
		err := l.keyedErrs[0]
		l.keyedErrs = l.keyedErrs[1:]
		if err != nil {
			return nil, err
		}
	}
	return make([]store.KeyedResult, len(req.Messages)), nil
}

func (l *log) ForgetBatches(_ context.Context, _ uuid.UUID, from, to int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgot = append(l.forgot, [2]int64{from, to})
	return nil
}

func one(payload string) []store.Outgoing { return []store.Outgoing{{Payload: []byte(payload)}} }

func many(n, size int) []store.Outgoing {
	out := make([]store.Outgoing, n)
	for i := range out {
		out[i].Payload = []byte(strings.Repeat("x", size))
	}
	return out
}

func errLost() error {
	return &diag.Error{Code: diag.Unreachable, Retryable: true, OutcomeUnknown: true}
}

func errDown() error { return &diag.Error{Code: diag.Unreachable, Retryable: true} }

func errRefused() error { return &diag.Error{Code: diag.DatabaseError} }

func TestCallsThatArriveMeanwhileShareABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{takes: 10 * time.Millisecond}
		b := New(l, nil)
		var wg sync.WaitGroup
		ids := make([]int64, 65)
		for i := range ids {
			wg.Go(func() {
				stored, err := b.Produce(t.Context(), 1, "json", "s", one(fmt.Sprint(i)))
				if err != nil {
					t.Error(err)
				}
				ids[i] = stored.First
			})
			if i == 0 {
				synctest.Wait() // the first is on its way before the others come
			}
		}
		wg.Wait()
		b.Close(t.Context())
		if len(l.sizes) != 2 || l.sizes[0] != 1 || l.sizes[1] != 64 {
			t.Errorf("batches of %v, want 1 and 64", l.sizes)
		}
		for i, id := range ids {
			if l.rows[id-1] != fmt.Sprint(i) {
				t.Errorf("call %d was told id %d, where %s is stored", i, id, l.rows[id-1])
			}
		}
	})
}

func TestBatchesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{takes: time.Millisecond}
		b := New(l, nil)
		var wg sync.WaitGroup
		for i, batch := range [][]store.Outgoing{many(1, 1), many(600, 1), many(600, 1), many(10, 300<<10), many(10, 300<<10), many(20000, 1), many(1, 17<<20)} {
			wg.Go(func() {
				if _, err := b.Produce(t.Context(), 1, "json", "s", batch); err != nil {
					t.Error(i, err)
				}
			})
			synctest.Wait() // keeps their order
		}
		wg.Wait()
		b.Close(t.Context())
		if got := fmt.Sprint(l.sizes); got != "[1 600 610 10 20000 1]" && got != "[1 600 600 10 10 20000 1]" {
			t.Errorf("batches of %v", got)
		}
		for i, n := range l.sizes {
			large := n > directMessages || i == len(l.sizes)-1
			if large != (l.waits[i] < 0) {
				t.Errorf("batch of %d messages: wait %v", n, l.waits[i])
			}
			if !large && (n >= waitMessages) != (l.waits[i] == lockWait) {
				t.Errorf("batch of %d messages: wait %v", n, l.waits[i])
			}
		}
	})
}

// The confirmation is lost after the batch was stored, three times over: it is stored once and its id told.
func TestLostConfirmationStoresOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{script: func(n int, _ *store.AppendRequest) (error, error) {
			if n <= 3 {
				return nil, errLost()
			}
			return nil, nil
		}}
		b := New(l, nil)
		stored, err := b.Produce(t.Context(), 1, "json", "s", one("m"))
		b.Close(t.Context())
		if err != nil || stored.First != 1 || len(l.rows) != 1 || l.calls != 4 {
			t.Errorf("%+v, %v; %d rows after %d sendings", stored, err, len(l.rows), l.calls)
		}
	})
}

// What can never be confirmed is told as unknown, also when the last word was a definite refusal of the repetition.
func TestUnknownStaysUnknown(t *testing.T) {
	for name, last := range map[string]error{"still lost": errLost(), "then down": errDown(), "then refused": errRefused()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &log{script: func(n int, _ *store.AppendRequest) (error, error) {
					if n == 1 {
						return nil, errLost()
					}
					return last, nil
				}}
				b := New(l, nil)
				began := time.Now()
				_, err := b.Produce(t.Context(), 1, "json", "s", one("m"))
				b.Close(t.Context())
				if !errors.Is(err, diag.ErrOutcomeUnknown) {
					t.Errorf("got %v", err)
				}
				if took := time.Since(began); took > settleFor+5*time.Second {
					t.Errorf("told after %v", took)
				}
			})
		})
	}
}

func TestServerThatIsDownIsToldSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{script: func(int, *store.AppendRequest) (error, error) { return errDown(), nil }}
		b := New(l, nil)
		began := time.Now()
		_, err := b.Produce(t.Context(), 1, "json", "s", one("m"))
		b.Close(t.Context())
		if !errors.Is(err, diag.ErrUnreachable) || diag.Unknown(err) || !diag.Retryable(err) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took < tryFor/2 || took > tryFor+2*time.Second || l.calls < 3 {
			t.Errorf("told after %v and %d sendings", took, l.calls)
		}
	})
}

func TestOneBadUnitFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{takes: time.Millisecond, script: func(_ int, req *store.AppendRequest) (error, error) {
			for _, m := range req.Messages {
				if string(m.Payload) == "bad" {
					return errRefused(), nil
				}
			}
			return nil, nil
		}}
		b := New(l, nil)
		var wg sync.WaitGroup
		for _, name := range []string{"first", "a", "bad", "b"} {
			wg.Go(func() {
				_, err := b.Produce(t.Context(), 1, "json", "s", one(name))
				if (err != nil) != (name == "bad") {
					t.Errorf("%s: %v", name, err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		b.Close(t.Context())
		if len(l.rows) != 3 {
			t.Errorf("stored %v", l.rows)
		}
	})
}

func TestContextThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{takes: time.Second}
		b := New(l, nil)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := b.Produce(ended, 1, "json", "s", one("never")); !errors.Is(err, context.Canceled) || diag.Unknown(err) {
			t.Errorf("ended before: %v", err)
		}
		short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := b.Produce(short, 1, "json", "s", one("on its way")); !errors.Is(err, diag.ErrOutcomeUnknown) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("on its way: %v", err)
			}
		})
		synctest.Wait()
		wg.Go(func() {
			if _, err := b.Produce(short, 1, "json", "s", one("waiting")); diag.Unknown(err) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("waiting: %v", err)
			}
		})
		wg.Wait()
		b.Close(t.Context())
		if got := fmt.Sprint(l.rows); got != "[on its way]" {
			t.Errorf("stored %v", got)
		}
	})
}

func TestConfirmedBatchesAreForgottenButNotRepeatedOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{script: func(n int, _ *store.AppendRequest) (error, error) {
			if n == 300 {
				return nil, errLost()
			}
			return nil, nil
		}}
		b := New(l, nil)
		for range 3 * forgetEvery {
			if _, err := b.Produce(t.Context(), 1, "json", "s", one("m")); err != nil {
				t.Fatal(err)
			}
		}
		b.Close(t.Context())
		if got, want := fmt.Sprint(l.forgot), fmt.Sprint([][2]int64{{1, 257}, {513, 769}}); got != want {
			t.Errorf("forgot %v, want %v: the run with the repeated batch stays", got, want)
		}
	})
}

func TestCloseSendsWhatIsOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{takes: time.Second}
		b := New(l, nil)
		var wg sync.WaitGroup
		for i := range 3 {
			wg.Go(func() {
				if _, err := b.Produce(t.Context(), 1, "json", "s", one(fmt.Sprint(i))); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		b.Close(t.Context())
		wg.Wait()
		if len(l.rows) != 3 {
			t.Errorf("stored %v", l.rows)
		}
		if _, err := b.Produce(t.Context(), 1, "json", "s", one("late")); !errors.Is(err, diag.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestCloseGivesUpWhenItsContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{takes: time.Hour}
		b := New(l, nil)
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := b.Produce(t.Context(), 1, "json", "s", one("m")); !errors.Is(err, diag.ErrOutcomeUnknown) {
				t.Error(err)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		b.Close(ctx)
		wg.Wait()
	})
}
