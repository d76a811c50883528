package produce

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// A call that must be sent again is sent as the same batch, so that it is told from a duplicate; two calls are two batches.
func TestKeyedCallIsRepeatedAsItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{keyedErrs: []error{errLost(), errDown(), nil}}
		announced := 0
		b := New(l, func(_ int, direct bool) {
			if !direct {
				announced++
			}
		})
		for range 2 {
			if _, err := b.ProduceKeyed(t.Context(), 1, "json", "s", 0, one("m")); err != nil {
				t.Fatal(err)
			}
		}
		b.Close(t.Context())
		if len(l.keyed) != 4 || l.keyed[0] != l.keyed[1] || l.keyed[1] != l.keyed[2] || l.keyed[2] == l.keyed[3] || announced != 2 {
			t.Errorf("batches %v, announced %d", l.keyed, announced)
		}
		if _, err := b.ProduceKeyed(t.Context(), 1, "json", "s", 0, one("m")); diag.CodeOf(err) != diag.Closed {
			t.Errorf("after Close: %v", err)
		}
	})
}

func TestKeyedCallThatStaysUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{}
		for range 1000 {
			l.keyedErrs = append(l.keyedErrs, errLost())
		}
		b := New(l, nil)
		defer b.Close(t.Context())
		if _, err := b.ProduceKeyed(t.Context(), 1, "json", "s", 0, one("m")); !diag.Unknown(err) {
			t.Errorf("%v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := b.ProduceKeyed(ctx, 1, "json", "s", 0, one("m")); !diag.Unknown(err) {
			t.Errorf("%v", err)
		}
	})
}
