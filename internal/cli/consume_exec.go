package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/sqlstreams/sqlstreams"
)

// exitDataError is EX_DATAERR of sysexits.h: the message is wrong, and will be next time.
const exitDataError = 65

// maxReason bounds what is kept of a command's standard error.
const maxReason = 500

// pipeDelay is how long output of a command that has ended is awaited, if something it started holds the pipe.
const pipeDelay = 50 * time.Millisecond

// execute lets a command handle a message. What it returns is the attempt's error, which is stored with the message.
func (c *consuming) execute(ctx context.Context, meta *sqlstreams.Meta, payload []byte) error {
	cmd := exec.CommandContext(ctx, "sh", "-c", c.options.exec)
	ownGroup(cmd)
	cmd.WaitDelay = pipeDelay
	cmd.Stdin = bytes.NewReader(payload)
	cmd.Env = append(os.Environ(), "SQLSTREAMS_ID="+number(meta.ID), "SQLSTREAMS_KEY="+meta.Key, "SQLSTREAMS_STREAM="+meta.Stream, "SQLSTREAMS_GROUP="+meta.Group,
		"SQLSTREAMS_ATTEMPT="+number(meta.Attempt))
	stderr := &tailWriter{}
	cmd.Stdout = c.app.env.Stdout
	cmd.Stderr = io.MultiWriter(stderr, c.app.env.Stderr)
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it succeeded; something that it left behind still holds its output
	}
	if err == nil {
		return nil
	}
	err = reason(ctx, err, stderr.lastLine())
	c.app.complain(fmt.Sprintf("message %d, attempt %d: %s", meta.ID, meta.Attempt, c.app.oneLine(err)))
	return err
}

// reason turns the end of a command into the error of an attempt.
func reason(ctx context.Context, err error, said string) error {
	exit, exited := errors.AsType[*exec.ExitError](err)
	if ctx.Err() != nil {
		if cause := context.Cause(ctx); errors.Is(cause, sqlstreams.ErrStopping) {
			return fmt.Errorf("the command was killed: %w", cause)
		}
		return errors.New(clip("the command was killed at its timeout" + after(said)))
	}
	if !exited {
		return fmt.Errorf("the command cannot be run: %w", err)
	}
	failed := errors.New(clip(exit.ProcessState.String() + after(said)))
	if exit.ExitCode() == exitDataError {
		return sqlstreams.Terminal(failed)
	}
	return failed
}

func after(said string) string {
	if said == "" {
		return ""
	}
	return ": " + said
}

// clip cuts a text at the bound, between characters.
func clip(s string) string {
	if len(s) <= maxReason {
		return strings.ToValidUTF8(s, "?")
	}
	return strings.ToValidUTF8(s[:maxReason], "")
}

// tailWriter keeps the end of what is written.
type tailWriter struct{ end []byte }

// Write keeps enough for a last line and the end of the one before.
func (t *tailWriter) Write(p []byte) (int, error) {
	t.end = append(t.end, p...)
	if keep := 4 * maxReason; len(t.end) > keep {
		t.end = append([]byte(nil), t.end[len(t.end)-keep:]...)
	}
	return len(p), nil
}

func (t *tailWriter) lastLine() string {
	text := strings.TrimSpace(string(t.end))
	if i := strings.LastIndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	return printable(strings.TrimSpace(text))
}
