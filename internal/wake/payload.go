package wake

import (
	"iter"
	"strconv"
	"strings"
)

// Kind is what an announcement says.
type Kind byte

// The kinds of announcements. The letter and the id are what travels.
const (
	// Appended: new ids of a stream are visible.
	Appended Kind = 'd'
	// Inboxed: rows wait in a stream's inbox, or will when the announcing transaction commits.
	Inboxed Kind = 'i'
	// Changed: a group was changed (resume, redrive, seek, retry now).
	Changed Kind = 'g'

	// greeting is a listener's question to itself: do announcements reach me? Its id is random. Others ignore it.
	greeting Kind = 'h'
)

// maxPayload keeps a payload below the 8,000 bytes that NOTIFY takes.
const maxPayload = 7900

// announcement is one thing that a payload says. The id is a stream's, or for Changed a group's.
type announcement struct {
	kind Kind
	id   int
}

func (a announcement) append(b []byte) []byte {
	return strconv.AppendInt(append(b, byte(a.kind)), int64(a.id), 10)
}

// parsePayload yields what a payload says. Several announcements are joined by commas. What it does not know it passes over: a newer
// program may say more, and anybody may NOTIFY.
func parsePayload(payload string) iter.Seq[announcement] {
	return func(yield func(announcement) bool) {
		for word := range strings.SplitSeq(payload, ",") {
			if len(word) < 2 || word[1] < '1' || word[1] > '9' { // Atoi would also take signs
				continue
			}
			kind := Kind(word[0])
			switch kind {
			case Appended, Inboxed, Changed, greeting:
			default:
				continue
			}
			id, err := strconv.Atoi(word[1:])
			if err != nil {
				continue
			}
			if !yield(announcement{kind: kind, id: id}) {
				return
			}
		}
	}
}
