package consume_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/consume"
	"github.com/sqlstreams/sqlstreams/internal/delivery"
)

// Case 7 at its full length: the head of an ordered key fails and is due again in five seconds. Its three successors, produced before and after, run right behind it and not before, over two instances; other keys are done at once.
func TestTheHeadOfAKeyWaitsFiveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, delivery.Policy{BaseDelay: 5 * time.Second, MaxDelay: 5 * time.Second})
		ordered := delivery.EncodeRequest(delivery.Policy{KeyOrder: delivery.Ordered})
		produce := func(keys ...string) {
			for _, key := range keys {
				m := delivery.Message{Payload: []byte(`{}`), Key: key, Options: ordered}
				r.store.Append(r.stream, m)
			}
		}
		produce("slow", "a", "slow", "b", "slow", "a", "b", "a")
		var slow []string
		var others time.Duration
		d := r.diary()
		h := func(ctx context.Context, m *delivery.Message, a consume.Attempt) error {
			d.note("%s/%d", m.Key, m.ID)
			if err := sleep(ctx, 10*time.Millisecond); err != nil {
				return err
			}
			if m.ID == 1 && a.Attempt == 1 {
				return errors.New("not yet")
			}
			return nil
		}
		i, j := r.start(consume.Options{Handlers: 2}, h), r.start(consume.Options{Handlers: 2}, h)
		time.Sleep(time.Second)
		produce("b", "slow", "a")
		time.Sleep(20 * time.Second)
		for _, e := range d.all() {
			at, what, _ := strings.Cut(e, " ")
			began, err := time.ParseDuration(at)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(what, "slow") {
				others = max(others, began)
				continue
			}
			slow = append(slow, what)
			if len(slow) > 1 && (began < 4500*time.Millisecond || began > 6*time.Second) {
				t.Errorf("%s started after %v", what, began)
			}
		}
		if want := []string{"slow/1", "slow/1", "slow/3", "slow/5", "slow/10"}; !slices.Equal(slow, want) {
			t.Errorf("of the key ran %v, want %v", slow, want)
		}
		if others > 1100*time.Millisecond {
			t.Errorf("the last message of another key started after %v", others)
		}
		if st := fmt.Sprint(r.store.State(r.group).Deliveries); st != "[]" {
			t.Errorf("left are %s", st)
		}
		i.stop(t)
		j.stop(t)
	})
}
