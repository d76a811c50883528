package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// produceOptions are the flags of produce.
type produceOptions struct {
	file             string
	rawLines         bool
	key, routingKey  string
	keyField         string
	idempotencyField string
	headers          []string
	create           bool
	batch            int
	skip             int64
}

func newProduce(a *app) *cobra.Command {
	var o produceOptions
	cmd := &cobra.Command{
		Use:   "produce STREAM [PAYLOAD...]",
		Short: "Append messages to a stream.",
		Long: `Append messages to a stream, in their order: each PAYLOAD is one, or else each line of --file, or of standard input. Lines are JSON (JSON Lines; empty
lines are passed over). --raw-lines takes each line as text, for streams of bytes.

Input is sent in batches while it is read, so its length does not matter, and what comes slowly is sent at once. A line that cannot be stored ends the command: nothing
behind it is sent. When the command ends early it says how many messages are surely stored, and with which --skip it goes on.

--key-field and --idempotency-key-field take a field of each line (user.id: inside user) as the message's key, or as the key that makes it be stored once,
however often the command runs.`,
		Example: `  sqlstreams produce orders '{"id": 1, "total": 99}' --key customer-7
  sqlstreams produce orders --file orders.jsonl --key-field customer.id --idempotency-key-field id
  tail -f app.log | sqlstreams produce logs --raw-lines
  sqlstreams produce orders --file orders.jsonl --skip 42000`,
		Args:              args("STREAM", "PAYLOAD..."),
		ValidArgsFunction: a.completeStream,
		RunE: func(cmd *cobra.Command, given []string) error {
			if err := a.changes(cmd); err != nil {
				return err
			}
			return a.produce(cmd, given[0], given[1:], &o)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&o.file, "file", "f", "", "read payloads from the lines of a file; -: standard input")
	flags.BoolVar(&o.rawLines, "raw-lines", false, "lines are text, not JSON (streams of bytes)")
	flags.StringVar(&o.key, "key", "", "key of the messages")
	flags.StringVar(&o.keyField, "key-field", "", "take each message's key from this field")
	flags.StringVar(&o.idempotencyField, "idempotency-key-field", "", "take what identifies each message from this field: it is stored once")
	flags.StringVar(&o.routingKey, "routing-key", "", "routing key of the messages")
	flags.StringArrayVar(&o.headers, "header", nil, "header of the messages, as name=value; may be repeated")
	flags.BoolVar(&o.create, "create", false, "create the stream if it does not exist (and the schema)")
	flags.IntVar(&o.batch, "batch", 1000, "most messages of one transaction")
	flags.Int64Var(&o.skip, "skip", 0, "leave out so many lines of the input")
	return cmd
}

// shape turns the flags into what a line becomes; what depends on the stream is added later.
func (o *produceOptions) shape(payloads []string) (*shape, error) {
	s := &shape{key: o.key, routingKey: o.routingKey, raw: o.rawLines}
	switch {
	case o.batch < 1 || o.batch > 10_000:
		return nil, usagef("--batch is %d; it is 1 to 10000", o.batch)
	case o.skip < 0:
		return nil, usagef("--skip is %d; it is 0 or more", o.skip)
	case len(payloads) > 0 && o.file != "":
		return nil, usagef("payloads as arguments and --file exclude each other")
	case len(payloads) > 0 && o.skip > 0:
		return nil, usagef("--skip leaves out lines of an input, but payloads are given as arguments")
	case o.key != "" && o.keyField != "":
		return nil, usagef("--key and --key-field exclude each other")
	case o.rawLines && (o.keyField != "" || o.idempotencyField != ""):
		return nil, usagef("--raw-lines are text, which has no fields for --key-field or --idempotency-key-field")
	}
	var err error
	if s.keyField, err = parsePath("key-field", o.keyField); err != nil {
		return nil, err
	}
	if s.idempotencyField, err = parsePath("idempotency-key-field", o.idempotencyField); err != nil {
		return nil, err
	}
	for _, h := range o.headers {
		name, value, found := strings.Cut(h, "=")
		if !found || name == "" {
			return nil, usagef("--header is %q; it is name=value", h)
		}
		if s.headers == nil {
			s.headers = map[string]string{}
		}
		s.headers[name] = value
	}
	return s, nil
}

func (a *app) produce(cmd *cobra.Command, stream string, payloads []string, o *produceOptions) error {
	s, err := o.shape(payloads)
	if err != nil {
		return err
	}
	var input io.Reader
	if len(payloads) == 0 {
		var closeInput func()
		if input, closeInput, err = a.openInput(o.file); err != nil {
			return err
		}
		defer closeInput()
	}
	ctx, cancel := a.once(cmd)
	defer cancel()
	conn, err := a.connect(ctx, openOptions{migrate: o.create, strict: true})
	if err != nil {
		return err
	}
	defer conn.close()
	if err := conn.prepareStream(ctx, stream, o.create, s); err != nil {
		return err
	}
	p := &producing{app: a, conn: conn, stream: conn.Stream(stream), name: stream, batch: o.batch, in: newIntake(), what: "line", skip: o.skip}
	if input == nil {
		p.what = "payload"
		go p.in.putArguments(payloads, s, o.batch)
	} else {
		p.total = inputSize(input)
		// It may hang in a read that nothing can interrupt, so the end of the process ends it.
		go p.in.readLines(input, s, o.skip, o.batch)
	}
	return p.run(cmd.Context())
}

// openInput opens what payloads are read from.
func (a *app) openInput(file string) (io.Reader, func(), error) {
	nothing := func() {}
	switch {
	case file == "-":
		return a.env.Stdin, nothing, nil
	case file != "":
		f, err := os.Open(file)
		if err != nil {
			return nil, nil, failf("--file: %w", err)
		}
		return f, func() { _ = f.Close() }, nil // it was only read
	case a.env.Terminal(a.env.Stdin):
		return nil, nil, usagef("nothing to produce: give payloads as arguments, --file, or lines on standard input (--file - to type them)")
	}
	return a.env.Stdin, nothing, nil
}

// inputSize is the size of a regular file; 0: unknown.
func inputSize(input io.Reader) int64 {
	file, ok := input.(*os.File)
	if !ok {
		return 0
	}
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return 0
	}
	return info.Size()
}

// prepareStream looks at the stream, or creates it, and fits the shape of messages to it.
func (c *connection) prepareStream(ctx context.Context, name string, create bool, s *shape) error {
	info, err := c.GetStream(ctx, name)
	if create && diag.CodeOf(err) == diag.StreamNotFound {
		config := (*sqlstreams.StreamConfig)(nil)
		if s.raw {
			config = &sqlstreams.StreamConfig{Codec: sqlstreams.Raw{}}
		}
		if _, err = register(ctx, c.Client, name, config); err != nil {
			return err
		}
		info, err = c.GetStream(ctx, name)
	}
	if diag.CodeOf(err) == diag.StreamNotFound {
		return &failure{err: err, hint: fmt.Sprintf("sqlstreams stream create %s   (or produce with --create)", shellQuote(name))}
	} else if err != nil {
		return err
	}
	if info.Kind == "json" && s.raw {
		return usagef("stream %q holds JSON, and --raw-lines are text", name)
	}
	s.maxPayload, err = c.maxPayload(ctx, name)
	return err
}
