package sqlstreams

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/store"
)

// DeliveryFilter means some of a group's dead letters, or of its deliveries that wait. What is given must all hold; nil and the zero value mean all of them.
type DeliveryFilter struct {
	// IDs are messages' ids. Nil: any; empty: none.
	IDs []int64
	// Reason is why a dead letter died: exhausted, terminal, undecodable, version. For dead letters only.
	Reason string
	// Error is an error's text, compared with numbers left out: "card 17 refused" means "card 4 refused" too, and so does the "card # refused" of DeadGroups. The first 500 characters count.
	Error string
	// Contains is a part of an error's text, compared as it stands.
	Contains string
	// Key is a message key.
	Key string
	// Before and After bound when a dead letter died, or when a delivery first failed: at or after After, before Before. Zero: no bound.
	Before, After time.Time
}

func (f *DeliveryFilter) filter(dead bool, object string) (*store.Filter, error) {
	if f == nil {
		return nil, nil
	}
	if f.Reason != "" && !dead {
		return nil, invalid(diag.InvalidOption, "filter", object, "deliveries that wait have no Reason")
	}
	if known := []string{"", "exhausted", "terminal", "undecodable", "version"}; !slices.Contains(known, f.Reason) {
		return nil, invalid(diag.InvalidOption, "filter", object, fmt.Sprintf("Reason is %q; there are %v", f.Reason, known[1:]))
	}
	if len(f.IDs) > maxIDs {
		return nil, invalid(diag.InvalidOption, "filter", object, fmt.Sprintf("%d IDs were given, at most %d are taken", len(f.IDs), maxIDs))
	}
	for _, text := range []struct{ name, value string }{{"Error", f.Error}, {"Contains", f.Contains}, {"Key", f.Key}} {
		if !utf8.ValidString(text.value) || strings.ContainsRune(text.value, 0) || len(text.value) > 10_000 {
			return nil, invalid(diag.InvalidOption, "filter", object, text.name+" is not valid UTF-8 without NUL of at most 10,000 bytes")
		}
	}
	if f.IDs != nil && len(f.IDs) == 0 {
		return &store.Filter{IDs: []int64{0}}, nil // no message has it
	}
	out := &store.Filter{IDs: f.IDs, Reason: f.Reason, Error: f.Error, Contains: f.Contains, Key: f.Key}
	if !f.Before.IsZero() {
		out.Before = &f.Before
	}
	if !f.After.IsZero() {
		out.After = &f.After
	}
	return out, nil
}

// maxIDs bounds one filter.
const maxIDs = 100_000

// DeadLetter is a message whose automatic attempts ended in a group. It has a copy of the message, whatever became of the stream's.
type DeadLetter struct {
	Message
	Reason   string // exhausted, terminal, undecodable, version
	Error    string // what the last attempt ended with
	Attempts int
	DiedAt   time.Time
}

// Attempt is one attempt that did not succeed.
type Attempt struct {
	Number   int    // 1 is the first
	Kind     string // retry: it failed and was to run again; dead: it was the last
	Error    string
	Instance string
	EndedAt  time.Time
}

// DeadGroup is how many dead letters of a group died of the same: one reason, and one error but for the numbers in it.
type DeadGroup struct {
	Error           string // with # for each number
	Reason          string
	Count           int64
	FirstID, LastID int64
	First, Last     time.Time // when the first and the last of them died
	Example         int64     // the id of the last one
}

// PendingDelivery is a message that waits in a group for its next attempt, or for its key.
type PendingDelivery struct {
	ID      int64
	State   string // pending, waiting
	DueAt   time.Time
	Attempt int  // failures so far
	Solo    bool // it will run alone, because it was at hand when an instance died
	Key     string
	Error   string // of the last failure
}

// DeadLetters returns a page of the group's dead letters that f means: ids above after, ascending, at most limit (1 to MaxRead) and about 8 MiB, but one at least.
func (g *GroupHandle) DeadLetters(ctx context.Context, f *DeliveryFilter, after int64, limit int) ([]DeadLetter, error) {
	filter, group, err := g.look(ctx, f, true, limit)
	if err != nil {
		return nil, err
	}
	rows, err := g.client.store.DeadLetters(ctx, group, filter, after, limit)
	if err != nil {
		return nil, renamed(err, g.object)
	}
	all := make([]DeadLetter, 0, len(rows))
	for i := range rows {
		all = append(all, DeadLetter{Message: message(&rows[i].Message), Reason: rows[i].Reason, Error: rows[i].Error, Attempts: rows[i].Attempts, DiedAt: rows[i].DiedAt})
	}
	return all, nil
}

// DeadGroups counts the group's dead letters that f means by what they died of, the most frequent first, at most 1,000 kinds.
func (g *GroupHandle) DeadGroups(ctx context.Context, f *DeliveryFilter) ([]DeadGroup, error) {
	filter, group, err := g.look(ctx, f, true, 1)
	if err != nil {
		return nil, err
	}
	rows, err := g.client.store.DeadGroups(ctx, group, filter)
	if err != nil {
		return nil, renamed(err, g.object)
	}
	all := make([]DeadGroup, 0, len(rows))
	for _, r := range rows {
		all = append(all, DeadGroup{Error: r.Error, Reason: r.Reason, Count: r.Count, FirstID: r.FirstID, LastID: r.LastID, First: r.First, Last: r.Last, Example: r.Latest})
	}
	return all, nil
}

// GetDeadLetter returns one dead letter with the attempts that are still on record (seven days), or nil if the group has none of that id.
func (g *GroupHandle) GetDeadLetter(ctx context.Context, id int64) (*DeadLetter, []Attempt, error) {
	found, err := g.DeadLetters(ctx, &DeliveryFilter{IDs: []int64{id}}, id-1, 1)
	if err != nil || len(found) == 0 {
		return nil, nil, err
	}
	attempts, err := g.Attempts(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	return &found[0], attempts, nil
}

// Attempts returns the attempts of a message in the group that did not succeed and are still on record (seven days), the oldest first, at most the latest 1,000.
func (g *GroupHandle) Attempts(ctx context.Context, id int64) ([]Attempt, error) {
	_, group, err := g.find(ctx, "look at")
	if err != nil {
		return nil, err
	}
	rows, err := g.client.store.Attempts(ctx, group, id)
	if err != nil {
		return nil, renamed(err, g.object)
	}
	all := make([]Attempt, 0, len(rows))
	for _, r := range rows {
		all = append(all, Attempt(r))
	}
	return all, nil
}

// Deliveries returns a page of what waits in the group and f means: ids above after, ascending, at most limit (1 to MaxRead).
func (g *GroupHandle) Deliveries(ctx context.Context, f *DeliveryFilter, after int64, limit int) ([]PendingDelivery, error) {
	filter, group, err := g.look(ctx, f, false, limit)
	if err != nil {
		return nil, err
	}
	rows, err := g.client.store.Waiting(ctx, group, filter, after, limit)
	if err != nil {
		return nil, renamed(err, g.object)
	}
	all := make([]PendingDelivery, 0, len(rows))
	for _, r := range rows {
		all = append(all, PendingDelivery(r))
	}
	return all, nil
}

func (g *GroupHandle) look(ctx context.Context, f *DeliveryFilter, dead bool, limit int) (*store.Filter, int, error) {
	if limit < 1 || limit > MaxRead {
		return nil, 0, invalid(diag.InvalidOption, "list", g.object, fmt.Sprintf("limit is %d, allowed are 1 to %d", limit, MaxRead))
	}
	filter, err := f.filter(dead, g.object)
	if err != nil {
		return nil, 0, err
	}
	_, group, err := g.find(ctx, "list")
	return filter, group, err
}
