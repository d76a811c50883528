package sqlstreams_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// keyBook is what ran of each key, in the order of the starts, and what overlapped.
type keyBook struct {
	mu      sync.Mutex
	running map[string]string
	ran     map[string][]string
	flagged []string // those that were said to be out of order
	odd     []string
}

// handle notes a run around the work. A message of key k0 is named "k0/…".
func (b *keyBook) handle(work func(name string, meta sqlstreams.Meta) error) func(context.Context, *WelcomeEmail) error {
	return func(ctx context.Context, m *WelcomeEmail) error {
		meta, _ := sqlstreams.MetaFromContext(ctx)
		b.begin(m.UserID, meta)
		defer b.end(meta.Key)
		return work(m.UserID, meta)
	}
}

func (b *keyBook) begin(name string, meta sqlstreams.Meta) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running == nil {
		b.running, b.ran = map[string]string{}, map[string][]string{}
	}
	if other := b.running[meta.Key]; other != "" {
		b.odd = append(b.odd, fmt.Sprintf("%s started while %s ran", name, other))
	}
	b.running[meta.Key] = name
	b.ran[meta.Key] = append(b.ran[meta.Key], name)
	if meta.OutOfOrder {
		b.flagged = append(b.flagged, name)
	}
}

func (b *keyBook) end(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.running, key)
}

// of is what has been started of a key.
func (b *keyBook) of(key string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.ran[key], " ")
}

// check wants these runs of a key, none beside another, and these flagged.
func (b *keyBook) check(t testing.TB, key, want string, flagged ...string) {
	t.Helper()
	if got := b.of(key); got != want {
		t.Errorf("of %s ran %s\nwant %s", key, got, want)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.flagged, flagged) {
		t.Errorf("out of order were %v, want %v", b.flagged, flagged)
	}
	for _, o := range b.odd {
		t.Error(o)
	}
}

// produceKeyed produces messages named "key/rest" in one batch, each ordered by its key.
func produceKeyed(t testing.TB, stream *sqlstreams.Stream[WelcomeEmail], names ...string) {
	t.Helper()
	batch := make([]sqlstreams.Outgoing[WelcomeEmail], len(names))
	for i, name := range names {
		key, _, _ := strings.Cut(name, "/")
		batch[i] = sqlstreams.Outgoing[WelcomeEmail]{Payload: &WelcomeEmail{UserID: name}, Options: &sqlstreams.ProduceOptions{Key: key, KeyOrder: sqlstreams.Ordered}}
	}
	if _, err := stream.Producer(nil).ProduceBatch(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
}

// idle waits until the group has nothing left to do.
func idle(t testing.TB, client *sqlstreams.Client) {
	t.Helper()
	var last *sqlstreams.GroupStatus
	defer func() {
		if t.Failed() {
			t.Logf("the group: %+v", last)
		}
	}()
	pgtest.Eventually(t, 30*time.Second, "nothing is left to do", func() bool {
		status, err := client.Group("s", "g").Status(t.Context())
		last = status
		return err == nil && status.Idle()
	})
}

// Case 6: an instance holds 500 unfinished messages of ten keys, another joins, 500 more arrive, the first goes on: each key's messages run in order, and never two at once.
func TestKeysKeepTheirOrderWhenAnInstanceJoins(t *testing.T) {
	first, db, pool := open(t, nil)
	second := openOn(t, pool, nil)
	stream := register[WelcomeEmail](t, first, "s")
	names := make([]string, 1000)
	want := map[string]string{}
	for i := range names {
		key := fmt.Sprintf("k%d", i*7%10)
		names[i] = fmt.Sprintf("%s/%d", key, i)
		want[key] = strings.TrimSpace(want[key] + " " + names[i])
	}
	produceKeyed(t, stream, names[:500]...)
	goOn := make(chan struct{})
	var book keyBook
	work := book.handle(func(name string, _ sqlstreams.Meta) error {
		<-goOn
		return nil
	})
	opts := &sqlstreams.ConsumeOptions{BatchLimit: 500, BatchMin: 500}
	consume(t, group(t, stream, "g", nil), opts, work)
	claimed := func(n int64) func() bool {
		return func() bool { return db.QueryInt(t, `select max(claimed) from sqlstreams.cursor`) >= n }
	}
	pgtest.Eventually(t, 20*time.Second, "the first instance holds 500", claimed(500))
	consume(t, group(t, register[WelcomeEmail](t, second, "s"), "g", nil), opts, work)
	produceKeyed(t, stream, names[500:]...)
	pgtest.Eventually(t, 20*time.Second, "the second instance has come to the others", claimed(510))
	close(goOn)
	idle(t, first)
	for key, runs := range want {
		book.check(t, key, runs)
	}
}

// Case 7: the head of a key fails and has to wait, then asks for a delay: none of its three successors runs before it has succeeded, and other keys are not slowed.
func TestTheHeadOfAKeyHoldsItsSuccessorsAndNobodyElse(t *testing.T) {
	client, _, _ := open(t, nil)
	stream := register[WelcomeEmail](t, client, "s")
	const wait = 700 * time.Millisecond
	var book keyBook
	failed := make(chan struct{})
	var others sync.WaitGroup
	others.Add(40)
	work := book.handle(func(name string, meta sqlstreams.Meta) error {
		switch {
		case name != "slow/0":
			if strings.HasPrefix(name, "quick") {
				others.Done()
			}
			return nil
		case meta.Attempt == 1:
			close(failed)
			return errors.New("not yet")
		case strings.Count(book.of("slow"), "slow/0") == 2:
			return sqlstreams.Delay(20 * time.Millisecond)
		}
		return nil
	})
	consume(t, group(t, stream, "g", &sqlstreams.ConsumerConfig{Message: &sqlstreams.MessageOptions{BaseDelay: wait}}), nil, work)
	names := []string{"slow/0", "slow/1", "slow/2", "slow/3"}
	for i := range 40 {
		names = append(names, fmt.Sprintf("quick%d/%d", i%4, i))
	}
	produceKeyed(t, stream, names[:24]...)
	<-failed
	produceKeyed(t, stream, names[24:]...)
	others.Wait()
	if got := book.of("slow"); got != "slow/0" {
		t.Errorf("when the other keys were done, %s had run", got)
	}
	idle(t, client)
	book.check(t, "slow", "slow/0 slow/0 slow/0 slow/1 slow/2 slow/3")
	for k := range 4 {
		var want []string
		for i := k; i < 40; i += 4 {
			want = append(want, fmt.Sprintf("quick%d/%d", k, i))
		}
		book.check(t, fmt.Sprintf("quick%d", k), strings.Join(want, " "))
	}
}
