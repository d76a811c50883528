package store

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// cause stands between an Error and what the driver returned. errors.Is and errors.As reach the original; its text, which may hold
// passwords, connection strings and payload, is replaced by one made here.
type cause struct {
	text     string
	err      error
	deadline bool
}

func (c *cause) Error() string { return c.text }
func (c *cause) Unwrap() error { return c.err }

// Is lets every time-out match context.DeadlineExceeded, also one that the server or the kernel noticed first.
func (c *cause) Is(target error) bool { return c.deadline && target == context.DeadlineExceeded }

// serverText is what may be told of a server's error: its own message for the classes whose messages name objects and conditions only. The
// message of a data exception quotes the data, that of a function's own error says whatever its author liked.
func serverText(pg *pgconn.PgError) string {
	if len(pg.Code) == 5 && slices.Contains(quotesNothing(), pg.Code[:2]) {
		return pg.Message + " (SQLSTATE " + pg.Code + ")"
	}
	return stateText(pg)
}

func quotesNothing() []string {
	return []string{"08", "0A", "23", "25", "26", "3F", "40", "42", "53", "54", "55", "57", "58", "XX"}
}

// stateText names a SQLSTATE without the server's words.
func stateText(pg *pgconn.PgError) string {
	state := pg.Code
	if !sqlState.MatchString(state) {
		state = "unknown"
	}
	if name := stateName(state); name != "" {
		return name + " (SQLSTATE " + state + ")"
	}
	return "SQLSTATE " + state
}

var sqlState = regexp.MustCompile(`^[0-9A-Z]{5}$`)

// stateName names the states that are met without their message: those of connecting, and of data.
func stateName(state string) string {
	switch state {
	case "28P01":
		return "password authentication failed"
	case "28000":
		return "not allowed to connect"
	case "3D000":
		return "no such database"
	case "42501":
		return "no right to connect"
	case "53300":
		return "too many connections"
	case "53400":
		return "configuration limit exceeded"
	case "57P01":
		return "the server is shutting down"
	case "57P02":
		return "the server crashed"
	case "57P03":
		return "the server is not accepting connections yet"
	case "22001":
		return "value too long"
	case "22003":
		return "number out of range"
	case "22007", "22008":
		return "invalid date or time"
	case "22021":
		return "invalid byte sequence"
	case "22P02":
		return "invalid text for the type"
	case "22P03":
		return "invalid binary data for the type"
	case "22P05":
		return "character without equivalent"
	case "P0001":
		return "raised by a function"
	}
	return ""
}

// whereTo names the servers of a connection attempt, the database and the user. If any of them does not look like a name, none is told: in a
// connection string that was put together wrongly, parts of the password end up in these fields.
func whereTo(config *pgconn.Config) string {
	if config == nil {
		return "a server"
	}
	fields := []string{config.Host, config.Database, config.User}
	hosts := []string{config.Host + ":" + strconv.Itoa(int(config.Port))}
	for _, f := range config.Fallbacks {
		fields = append(fields, f.Host)
		// The same server is tried with and without TLS.
		if host := f.Host + ":" + strconv.Itoa(int(f.Port)); !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	if slices.ContainsFunc(fields, func(field string) bool { return field != "" && !isName(field) }) {
		return "a server whose name is withheld"
	}
	return strings.Join(hosts, ", ") + ", database " + config.Database + ", user " + config.User
}

var plainName = regexp.MustCompile(`^[\pL\pN._:/\\%-]+$`)

// isName reports whether a text looks like the name of a host, a socket's folder, a database, a user or a column.
func isName(s string) bool {
	return len(s) <= 255 && plainName.MatchString(s) && !strings.Contains(s, "://")
}

// reason says in words that hold no value why the network, or the way to a session, failed.
func reason(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return stateText(pg)
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		if dns.IsNotFound {
			return "no such host"
		}
		return "the host's name could not be looked up"
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "its certificate cannot be verified"
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	for _, known := range []error{context.Canceled, context.DeadlineExceeded, pgconn.ErrReadOnlyConnection, pgconn.ErrStandbyConnection} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	switch {
	case pgconn.Timeout(err):
		return "timed out"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), errors.Is(err, pgconn.ErrConnClosed):
		return "the connection was closed"
	case strings.Contains(err.Error(), "server refused TLS connection"):
		return "the server does not offer TLS"
	case strings.Contains(err.Error(), "tls error"):
		return "TLS could not be agreed on"
	}
	return "for a reason whose text is withheld"
}
