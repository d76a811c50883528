package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/sqlstreams/sqlstreams"
)

// record is one message to produce, and where it stood in the input.
type record struct {
	line    int64
	payload []byte
	options *sqlstreams.ProduceOptions
}

// lineError is a line that cannot be produced. No line after it is sent.
type lineError struct {
	what string // line, payload
	line int64
	err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("%s %d: %s", e.what, e.line, e.err) }
func (e *lineError) Unwrap() error { return e.err }

// shape says how a line of input becomes a message.
type shape struct {
	raw              bool // payloads are taken as they are; else they must be JSON
	maxPayload       int
	key, routingKey  string
	headers          map[string]string
	keyField         []string
	idempotencyField []string
}

// record makes a message of a payload, or says why it cannot be one.
func (s *shape) record(line int64, payload []byte) (record, error) {
	r := record{line: line, payload: payload}
	if len(payload) > s.maxPayload {
		return r, s.tooLong()
	}
	if !s.raw {
		if err := checkJSON(payload); err != nil {
			return r, err
		}
	}
	if s.key == "" && s.routingKey == "" && len(s.headers) == 0 && s.keyField == nil && s.idempotencyField == nil {
		return r, nil
	}
	r.options = &sqlstreams.ProduceOptions{Key: s.key, RoutingKey: s.routingKey, Headers: s.headers}
	var err error
	if s.keyField != nil {
		if r.options.Key, err = field(payload, s.keyField); err != nil {
			return r, err
		}
	}
	if s.idempotencyField != nil {
		if r.options.IdempotencyKey, err = field(payload, s.idempotencyField); err != nil {
			return r, err
		}
	}
	return r, nil
}

func (s *shape) tooLong() error {
	return fmt.Errorf("the payload has more than %d bytes, which is the stream's limit", s.maxPayload)
}

func checkJSON(payload []byte) error {
	if !utf8.Valid(payload) {
		return errors.New("it is not valid UTF-8")
	}
	if json.Valid(payload) {
		return nil
	}
	var ignored json.RawMessage
	err := json.Unmarshal(payload, &ignored)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return fmt.Errorf("it is not JSON: %s at byte %d", syntax, syntax.Offset)
	}
	return fmt.Errorf("it is not JSON: %w", err)
}

// field reads what stands at a path of names in a JSON object, as text: a string's content, a number or a boolean as written.
func field(payload []byte, path []string) (string, error) {
	value := json.RawMessage(payload)
	for i, name := range path {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(value, &object); err != nil || object == nil {
			return "", fmt.Errorf("there is no field %s: what should hold %q is no object", strings.Join(path, "."), name)
		}
		var found bool
		if value, found = object[name]; !found {
			return "", fmt.Errorf("there is no field %s", strings.Join(path[:i+1], "."))
		}
	}
	switch value[0] {
	case '"':
		var text string
		if err := json.Unmarshal(value, &text); err != nil {
			return "", fmt.Errorf("field %s cannot be read: %w", strings.Join(path, "."), err)
		}
		if text == "" {
			return "", fmt.Errorf("field %s is empty", strings.Join(path, "."))
		}
		return text, nil
	case '{', '[', 'n':
		return "", fmt.Errorf("field %s is no text, number or boolean", strings.Join(path, "."))
	}
	return string(value), nil
}

func parsePath(flag, path string) ([]string, error) {
	if path == "" {
		return nil, nil
	}
	parts := strings.Split(path, ".")
	for _, p := range parts {
		if p == "" {
			return nil, usagef("--%s is %q; it is the name of a field, or names with dots between", flag, path)
		}
	}
	return parts, nil
}

// intake reads lines ahead of the one who sends them, at most one batch of them, so that reading and sending overlap and memory stays flat however long the input is.
// What was read is handed over as soon as it is asked for: a full batch while input is plenty, single lines while it trickles.
type intake struct {
	mu      sync.Mutex
	changed *sync.Cond
	pending []record
	bytes   int
	reading bool // the next byte is not there yet: waiting for more may take for ever
	ended   bool
	err     error // why it ended, nil at the end of the input
	stopped bool

	read int64 // bytes, for the progress bar
}

// batchBytes bounds a batch beside its number of messages; a larger single message goes alone.
const batchBytes = 4 << 20

func newIntake() *intake {
	in := &intake{}
	in.changed = sync.NewCond(&in.mu)
	return in
}

// markedReader marks the time in which the input has nothing to give.
type markedReader struct {
	in     *intake
	reader io.Reader
}

func (m markedReader) Read(p []byte) (int, error) {
	m.in.mark(true, 0)
	n, err := m.reader.Read(p)
	m.in.mark(false, n)
	return n, err
}

func (in *intake) mark(reading bool, n int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.reading = reading
	in.read += int64(n)
	in.changed.Broadcast()
}

func (in *intake) progress() int64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.read
}

// put waits for room and reports whether reading is to go on.
func (in *intake) put(r record, batch int) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	for !in.stopped && len(in.pending) > 0 && (len(in.pending) >= batch || in.bytes+len(r.payload) > batchBytes) {
		in.changed.Wait()
	}
	if in.stopped {
		return false
	}
	in.pending = append(in.pending, r)
	in.bytes += len(r.payload)
	if len(in.pending) >= batch || in.bytes >= batchBytes {
		in.changed.Broadcast()
	}
	return true
}

func (in *intake) end(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.ended, in.err = true, err
	in.changed.Broadcast()
}

// take returns the next batch. None: the input has ended (err says how) or ctx has.
func (in *intake) take(ctx context.Context, batch int) ([]record, error) {
	unlink := context.AfterFunc(ctx, func() {
		in.mu.Lock()
		defer in.mu.Unlock()
		in.stopped = true
		in.changed.Broadcast()
	})
	defer unlink()
	in.mu.Lock()
	defer in.mu.Unlock()
	for !in.stopped && !in.ended && len(in.pending) < batch && in.bytes < batchBytes && (len(in.pending) == 0 || !in.reading) {
		in.changed.Wait()
	}
	if in.stopped {
		return nil, ctx.Err()
	}
	taken := in.pending
	in.pending, in.bytes = nil, 0
	in.changed.Broadcast()
	if len(taken) == 0 {
		return nil, in.err
	}
	return taken, nil
}

// readLines reads the input to its end or to the first bad line. skip leaves out so many lines.
func (in *intake) readLines(input io.Reader, s *shape, skip int64, batch int) {
	r := bufio.NewReaderSize(markedReader{in, input}, 256<<10)
	for number := int64(1); ; number++ {
		line, err := readLine(r, s, number <= skip)
		if number == 1 {
			line = bytes.TrimPrefix(line, []byte("\ufeff"))
		}
		switch {
		case err == io.EOF:
			in.end(nil)
			return
		case err != nil:
			in.end(&lineError{"line", number, err})
			return
		case number <= skip:
			continue
		}
		if !s.raw {
			if line = bytes.TrimSpace(line); len(line) == 0 {
				continue
			}
		}
		rec, err := s.record(number, line)
		if err != nil {
			in.end(&lineError{"line", number, err})
			return
		}
		if !in.put(rec, batch) {
			return
		}
	}
}

// lineSlack is what a line may have beyond its payload: white space around it, and the end of the line.
const lineSlack = 4 << 10

// readLine returns a line of its own without its end; io.EOF: there is none any more. A line that is longer than any payload ends with an error before it fills the memory.
func readLine(r *bufio.Reader, s *shape, skipped bool) ([]byte, error) {
	var line []byte
	some := false
	for {
		part, err := r.ReadSlice('\n')
		some = some || len(part) > 0
		if !skipped {
			if line = append(line, part...); len(line) > s.maxPayload+lineSlack {
				return nil, s.tooLong()
			}
		}
		switch {
		case err == bufio.ErrBufferFull:
		case err == io.EOF && !some:
			return nil, io.EOF
		case err == nil || err == io.EOF:
			line = bytes.TrimSuffix(line, []byte("\n"))
			return bytes.TrimSuffix(line, []byte("\r")), nil
		default:
			return nil, fmt.Errorf("read the input: %w", err)
		}
	}
}

// putArguments takes payloads from the command line.
func (in *intake) putArguments(payloads []string, s *shape, batch int) {
	for i, p := range payloads {
		number := int64(i + 1)
		rec, err := s.record(number, []byte(p))
		if err != nil {
			if !s.raw && !json.Valid([]byte(p)) {
				err = fmt.Errorf("%w (a text needs quotes of its own: %s)", err, shellQuote(strconv.Quote(p)))
			}
			in.end(&lineError{"payload", number, err})
			return
		}
		if !in.put(rec, batch) {
			return
		}
	}
	in.end(nil)
}
