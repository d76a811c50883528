package store

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// NoVersion stands for the newest id of a key that has none.
const NoVersion = -1

// VersionConflict says which message expected what of its key, and what was there.
type VersionConflict struct {
	Message  int   // its place in the batch, from 0
	Expected int64 // NoVersion: none
	Actual   int64 // the id of the key's newest message; NoVersion: none
}

func (c *VersionConflict) Error() string {
	return fmt.Sprintf("message %d expected %s, and the newest version is %s", c.Message, versionText(c.Expected), versionText(c.Actual))
}

func versionText(id int64) string {
	if id == NoVersion {
		return "none"
	}
	return strconv.FormatInt(id, 10)
}

// Conflicts are all conflicts of one batch, of which nothing was stored.
type Conflicts []*VersionConflict

func (c Conflicts) Error() string {
	if len(c) == 0 {
		return "no conflict"
	}
	return c[0].Error()
}

// Unwrap lets the first one be found by errors.As.
func (c Conflicts) Unwrap() error {
	if len(c) == 0 {
		return nil
	}
	return c[0]
}

// Expecting says whether a message of the batch expects a version.
func Expecting(batch []Outgoing) bool {
	for i := range batch {
		if batch[i].ExpectedVersion != 0 {
			return true
		}
	}
	return false
}

func (o *Outgoing) expected() []byte {
	if o.ExpectedVersion == 0 {
		return nil
	}
	return strconv.AppendInt(nil, o.ExpectedVersion, 10)
}

// conflict reads what check_expected returns, "n=id,…", into the call's error.
func conflict(op, object string, batch []Outgoing, found string) error {
	var all Conflicts
	for part := range strings.SplitSeq(found, ",") {
		place, id, _ := strings.Cut(part, "=")
		n, err := strconv.Atoi(place)
		actual, err2 := strconv.ParseInt(id, 10, 64)
		if err = errors.Join(err, err2); err != nil || n < 0 || n >= len(batch) {
			return &diag.Error{Code: diag.DatabaseError, Op: op, Object: object, Detail: "a conflict has another shape than expected", Err: err}
		}
		all = append(all, &VersionConflict{Message: n, Expected: batch[n].ExpectedVersion, Actual: actual})
	}
	return &diag.Error{Code: diag.VersionConflict, Op: op, Object: object, Err: all}
}
