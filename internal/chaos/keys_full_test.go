//go:build full

package chaos

import (
	"testing"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/ledger"
)

// The run of ten processes and 10,000 keys, for a fifth of its time.
func TestTenThousandKeysUnderKills(t *testing.T) {
	result := runOnce(t, Config{Mode: ModeKeys, Duration: 25 * time.Second, Messages: 8000})
	if r := result.Report; result.Verdict() != ledger.Pass || r.Faults[ledger.Kill] != 25 || r.Faults[ledger.Stop] != 5 || r.RunAgain() == 0 {
		t.Errorf("the verdict is %s", result.Verdict())
	}
	if e := result.Effects; e == nil || e.Count == 0 || e.wrong() != 0 {
		t.Errorf("%s", e)
	}
}

// Effects of handlers whose message was taken over are counted if they are committed all the same.
func TestEffectsThatAreCommittedByWhoeverComesAreFoundTwice(t *testing.T) {
	result := runOnce(t, Config{Mode: ModeKeys, Duration: 15 * time.Second, Messages: 5000, Keys: 1000, Sabotage: SabotageTx})
	if e := result.Effects; result.Verdict() != ledger.Fail || e == nil || e.Twice == 0 {
		t.Errorf("the verdict is %s, and %v", result.Verdict(), e)
	}
}
