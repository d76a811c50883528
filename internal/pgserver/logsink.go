package pgserver

import (
	"errors"
	"io"
	"os"
	"strings"
	"time"
)

// logSink is where a server's output goes: a file, and a writer if there is
// one. The server writes to the file itself when it can; a pipe that exec.Cmd
// copies would keep its Wait from returning while any child lives.
type logSink struct {
	file   *os.File // the log
	output *os.File // what the server is given: file, or the pipe
	pipe   *os.File // our end of the pipe
	done   chan struct{}
	err    error // of the copying, once done is closed
}

func newLogSink(path string, also io.Writer) (*logSink, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	l := &logSink{file: file, output: file}
	if also == nil {
		return l, nil
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	l.output, l.pipe, l.done = write, read, make(chan struct{})
	go l.copy(also)
	return l, nil
}

func (l *logSink) copy(also io.Writer) {
	defer close(l.done)
	_, l.err = io.Copy(io.MultiWriter(l.file, also), l.pipe)
	if l.err != nil {
		// The server must not block on a writer that has failed.
		_, _ = io.Copy(io.Discard, l.pipe)
	}
}

// close waits for what is in the pipe; the server is down.
func (l *logSink) close() error {
	if l.pipe == nil {
		return l.file.Close()
	}
	err := l.output.Close()
	// A process that kept the pipe open must not keep us.
	err = errors.Join(err, l.pipe.SetReadDeadline(time.Now().Add(5*time.Second)))
	<-l.done
	return errors.Join(err, l.err, l.pipe.Close(), l.file.Close())
}

// tail returns the last lines of a log, for an error.
func tail(path string) string {
	const most = 4 << 10
	f, err := os.Open(path)
	if err != nil {
		return "(no log: " + err.Error() + ")"
	}
	defer f.Close() //nolint:errcheck // nothing was written
	info, err := f.Stat()
	if err != nil {
		return "(no log: " + err.Error() + ")"
	}
	start := max(0, info.Size()-most)
	text, err := io.ReadAll(io.NewSectionReader(f, start, most))
	if err != nil {
		return "(no log: " + err.Error() + ")"
	}
	s := string(text)
	if start > 0 {
		_, s, _ = strings.Cut(s, "\n") // the first line is cut
	}
	if s = strings.TrimSpace(s); s == "" {
		return "(the log is empty)"
	}
	return s
}

// LogTail returns the last lines of the server's log.
func (s *Server) LogTail() string { return tail(s.LogPath()) }
