package cli

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sqlstreams/sqlstreams"
)

// messageView is a message in JSON. The payload stands in it as JSON if it is JSON, else as a string in base64; payload_encoding says which.
type messageView struct {
	ID              int64             `json:"id"`
	Key             string            `json:"key"`
	RoutingKey      string            `json:"routing_key"`
	Headers         map[string]string `json:"headers"`
	SchemaVersion   int               `json:"schema_version"`
	ProducedAt      *time.Time        `json:"produced_at"`
	AppendedAt      *time.Time        `json:"appended_at"`
	ScheduledAt     *time.Time        `json:"scheduled_at"`
	Redacted        bool              `json:"redacted"`
	Attempt         int               `json:"attempt,omitempty"` // of a group's handler; absent without a group
	PayloadEncoding string            `json:"payload_encoding"`  // json, base64, none
	Payload         json.RawMessage   `json:"payload"`
}

func viewMessage(m *sqlstreams.Message) messageView {
	v := messageView{ID: m.ID, Key: m.Key, RoutingKey: m.RoutingKey, Headers: m.Headers, SchemaVersion: m.SchemaVersion, ProducedAt: at(m.ProducedAt), AppendedAt: at(m.AppendedAt),
		ScheduledAt: at(m.ScheduledAt), Redacted: m.Redacted}
	if v.Headers == nil {
		v.Headers = map[string]string{}
	}
	v.PayloadEncoding, v.Payload = viewPayload(m.Payload)
	return v
}

func viewPayload(payload []byte) (encoding string, value json.RawMessage) {
	switch {
	case payload == nil:
		return "none", json.RawMessage("null")
	case utf8.Valid(payload) && json.Valid(payload):
		return "json", payload
	}
	return "base64", json.RawMessage(`"` + base64.StdEncoding.EncodeToString(payload) + `"`)
}

// payloadText is a payload on one line of a terminal.
func payloadText(payload []byte) string {
	if payload == nil {
		return "(none)"
	}
	var compact bytes.Buffer
	if utf8.Valid(payload) && json.Compact(&compact, payload) == nil {
		payload = compact.Bytes()
	}
	return printable(string(payload))
}

// writeMessage writes one message in the chosen form: for people "id time key payload", so that columns of one stream's messages mostly stand below each other.
func (a *app) writeMessage(w io.Writer, m *sqlstreams.Message, attempt int) error {
	if a.json() {
		v := viewMessage(m)
		v.Attempt = attempt
		return a.line(w, v)
	}
	out := a.env.Stdout
	key := printable(m.Key)
	if key == "" {
		key = "-"
	}
	line := fmt.Sprintf("%s  %s  %s  ", a.styled(out, bold, fmt.Sprintf("%6d", m.ID)), a.styled(out, dim, stamp(m.AppendedAt)), key)
	if a.wide() {
		line += a.styled(out, dim, strings.Join(details(m, attempt), " ")+"  ")
	}
	text := payloadText(m.Payload)
	if m.Redacted {
		text = "(redacted)"
	} else if m.Payload == nil {
		text = "(tombstone)"
	}
	_, err := fmt.Fprintln(w, line+text)
	return err
}

// details are what only the wide form shows.
func details(m *sqlstreams.Message, attempt int) []string {
	all := []string{"produced=" + stamp(m.ProducedAt), "version=" + number(m.SchemaVersion)}
	if attempt > 0 {
		all = append(all, "attempt="+number(attempt))
	}
	if m.RoutingKey != "" {
		all = append(all, "routing="+printable(m.RoutingKey))
	}
	for _, k := range slices.Sorted(maps.Keys(m.Headers)) {
		all = append(all, printable(k)+"="+printable(m.Headers[k]))
	}
	return all
}
