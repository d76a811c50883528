package store

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/sqlstreams/sqlstreams/internal/diag"
)

const password = "s3cr3t+word"

// dialled makes a configuration whose connections lead to serve: in memory, so that no test depends on a network.
func dialled(t *testing.T, dsn string, serve func(net.Conn)) *pgconn.Config {
	t.Helper()
	config, err := pgconn.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	config.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }
	first := true
	config.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		if !first { // the driver's attempt to cancel
			return nil, errors.New("refused by the test")
		}
		first = false
		client, server := net.Pipe()
		go func() {
			defer server.Close()
			serve(server)
		}()
		return client, nil
	}
	return config
}

const plainDSN = "postgres://app:s3cr3t%2Bword@db.example:5432/shop?sslmode=disable"

// refuse answers the start of a session with an error.
func refuse(state, message string) func(net.Conn) {
	return func(conn net.Conn) {
		backend := pgproto3.NewBackend(conn, conn)
		if _, err := backend.ReceiveStartupMessage(); err != nil {
			return
		}
		backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: state, Message: message})
		_ = backend.Flush()
	}
}

func TestFailedAttemptsToConnect(t *testing.T) {
	tests := []struct {
		name, dsn string
		change    func(*pgconn.Config)
		serve     func(net.Conn)
		want
		says string
	}{
		{name: "wrong password", serve: refuse("28P01", "no: "+password), want: want{code: diag.AuthFailed}, says: "password authentication failed (SQLSTATE 28P01)"},
		{name: "no rule for the host", serve: refuse("28000", "no: "+password), want: want{code: diag.AuthFailed}, says: "SQLSTATE 28000"},
		{name: "no such database", serve: refuse("3D000", "no: "+password), want: want{code: diag.Unreachable}, says: "the database does not exist"},
		{name: "no right to connect", serve: refuse("42501", "no: "+password), want: want{code: diag.PermissionDenied}, says: "SQLSTATE 42501"},
		{name: "starting up", serve: refuse("57P03", "no: "+password), want: want{code: diag.Unreachable, retryable: true}, says: "not accepting connections yet"},
		{name: "too many", serve: refuse("53300", "no: "+password), want: want{code: diag.Unreachable, retryable: true}, says: "too many connections"},
		{name: "closes at once", serve: func(c net.Conn) { _, _ = pgproto3.NewBackend(c, c).ReceiveStartupMessage() }, want: want{code: diag.Unreachable, retryable: true}, says: "the connection was closed"},
		{name: "says nothing", serve: func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, change: func(c *pgconn.Config) { c.ConnectTimeout = time.Minute },
			want: want{code: diag.Unreachable, retryable: true}, says: "context deadline exceeded"},
		{name: "host unknown", change: func(c *pgconn.Config) {
			c.LookupFunc = func(_ context.Context, host string) ([]string, error) {
				return nil, &net.DNSError{Err: "no such host " + password, Name: host + password, IsNotFound: true}
			}
		}, want: want{code: diag.Unreachable, retryable: true}, says: "no such host"},
		{name: "name service down", change: func(c *pgconn.Config) {
			c.LookupFunc = func(_ context.Context, host string) ([]string, error) {
				return nil, &net.DNSError{Err: "server misbehaving " + password, Name: host, IsTemporary: true}
			}
		}, want: want{code: diag.Unreachable, retryable: true}, says: "could not be looked up"},
		{name: "standby", change: func(c *pgconn.Config) {
			c.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, pgconn.ErrStandbyConnection }
		}, want: want{code: diag.ReadOnlyServer, retryable: true}, says: "server is in standby mode"},
		{name: "certificate", change: func(c *pgconn.Config) {
			c.DialFunc = func(context.Context, string, string) (net.Conn, error) {
				return nil, &tls.CertificateVerificationError{Err: errors.New("x509: " + password)}
			}
		}, want: want{code: diag.Unreachable}, says: "certificate cannot be verified"},
		{name: "no TLS", dsn: strings.Replace(plainDSN, "disable", "require", 1), serve: func(c net.Conn) {
			_, _ = io.ReadFull(c, make([]byte, 8))
			_, _ = c.Write([]byte("N"))
		}, want: want{code: diag.Unreachable, retryable: true}, says: "does not offer TLS"},
		{name: "a hook that talks", change: func(c *pgconn.Config) {
			c.DialFunc = func(context.Context, string, string) (net.Conn, error) {
				return nil, errors.New("dsn " + plainDSN + " " + password)
			}
		}, want: want{code: diag.Unreachable, retryable: true}, says: "text is withheld"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dsn := test.dsn
				if dsn == "" {
					dsn = plainDSN
				}
				config := dialled(t, dsn, test.serve)
				if test.change != nil {
					test.change(config)
				}
				_, err := pgconn.ConnectConfig(t.Context(), config)
				if err == nil {
					t.Fatal("connected")
				}
				text := check(t, err, test.want).Error()
				if !strings.Contains(text, test.says) {
					t.Errorf("%q does not say %q", text, test.says)
				}
				if !strings.Contains(text, "db.example:5432, database shop, user app") {
					t.Errorf("%q does not say where to", text)
				}
				for _, secret := range []string{password, "s3cr3t", "postgres://", "sslmode"} {
					if strings.Contains(text, secret) {
						t.Errorf("%q gives %q away", text, secret)
					}
				}
			})
		})
	}
}

// A password with an unescaped character cuts a connection string in the wrong places: its rest is taken for the host or the database.
func TestConnectionStringsThatWerePutTogetherWronglyAreNotTold(t *testing.T) {
	for _, dsn := range []string{
		"postgres://app:s3cr3t@s3cr3t@db.example/shop?sslmode=disable",
		"postgres://app:123/s3cr3t@db.example/shop?sslmode=disable",
		"host=db.example dbname=postgres://app:s3cr3t/shop sslmode=disable user=app",
		"host=db.example dbname='shop password=s3cr3t' sslmode=disable user=app",
	} {
		config, err := pgconn.ParseConfig(dsn)
		if err == nil {
			config.LookupFunc = func(_ context.Context, host string) ([]string, error) {
				return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
			}
			_, err = pgconn.ConnectConfig(t.Context(), config)
		}
		text := Classify("connect", "", err).Error()
		if strings.Contains(text, "s3cr3t") || strings.Contains(text, "123") || !strings.Contains(text, "withheld") {
			t.Errorf("%s\nbecame %s", dsn, text)
		}
	}
	// What the driver cannot even parse it quotes; that is withheld whole.
	_, err := pgconn.ParseConfig("postgres://app:s3/cr3t@db.example/shop")
	if text := Classify("connect", "", err).Error(); err == nil || strings.Contains(text, "s3") || strings.Contains(text, "cr3t") {
		t.Error(text)
	}
}

func TestClosedPort(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = pgconn.Connect(t.Context(), "postgres://app:s3cr3t%2Bword@"+address+"/shop?sslmode=disable")
	e := check(t, err, want{code: diag.Unreachable, retryable: true})
	if text := e.Error(); !strings.Contains(text, "refused") || !strings.Contains(text, address) || strings.Contains(text, "s3cr3t") {
		t.Error(text)
	}
}

func TestEndedContextWhileConnecting(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	config := dialled(t, plainDSN, nil)
	config.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) { return nil, ctx.Err() }
	_, err := pgconn.ConnectConfig(ctx, config)
	if e := check(t, err, want{code: diag.StatementTimeout}); !errors.Is(e, context.Canceled) {
		t.Errorf("%v does not match context.Canceled", e)
	}
}

// session accepts a connection and one statement, then does what the test says.
func session(after func(*pgproto3.Backend)) func(net.Conn) {
	return func(conn net.Conn) {
		backend := pgproto3.NewBackend(conn, conn)
		if _, err := backend.ReceiveStartupMessage(); err != nil {
			return
		}
		backend.Send(&pgproto3.AuthenticationOk{})
		backend.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{0, 0, 0, 1}})
		backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if backend.Flush() != nil {
			return
		}
		if _, err := backend.Receive(); err != nil {
			return
		}
		after(backend)
	}
}

func TestWhetherAStatementThatFailedMayHaveCommitted(t *testing.T) {
	answer := func(messages ...pgproto3.BackendMessage) func(*pgproto3.Backend) {
		return func(b *pgproto3.Backend) {
			for _, m := range messages {
				b.Send(m)
			}
			_ = b.Flush()
		}
	}
	ready := &pgproto3.ReadyForQuery{TxStatus: 'I'}
	done := &pgproto3.CommandComplete{CommandTag: []byte("CALL")}
	refusal := func(severity, state string) pgproto3.BackendMessage {
		return &pgproto3.ErrorResponse{Severity: severity, SeverityUnlocalized: severity, Code: state, Message: "no"}
	}
	silent := func(b *pgproto3.Backend) { _, _ = b.Receive() }
	tests := []struct {
		name  string
		after func(*pgproto3.Backend)
		ctx   func(context.Context) (context.Context, context.CancelFunc)
		want
		is error
	}{
		{name: "cut after it was sent", after: answer(), want: want{diag.Unreachable, true, true}},
		{name: "cut in the middle of the answer", after: answer(done), want: want{diag.Unreachable, true, true}},
		{name: "terminated", after: answer(refusal("FATAL", "57P01")), want: want{diag.Unreachable, true, true}},
		{name: "terminated after it was done", after: answer(done, refusal("FATAL", "57P01")), want: want{diag.Unreachable, true, true}},
		{name: "refused", after: answer(refusal("ERROR", "23505"), ready), want: want{diag.DatabaseError, false, false}},
		{name: "rolled back by the server", after: answer(refusal("ERROR", "40001"), ready), want: want{diag.DatabaseError, true, false}},
		{name: "no answer before the deadline", after: silent, want: want{diag.StatementTimeout, true, true}, is: context.DeadlineExceeded,
			ctx: func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, time.Minute)
			}},
		{name: "no answer before it was cancelled", after: silent, want: want{diag.StatementTimeout, false, true}, is: context.Canceled,
			ctx: func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(time.Minute, cancel)
				return ctx, cancel
			}},
		{name: "the deadline had passed before it was sent", after: silent, want: want{diag.StatementTimeout, true, false}, is: context.DeadlineExceeded,
			ctx: func(ctx context.Context) (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, -1) }},
		{name: "cancelled before it was sent", after: silent, want: want{diag.StatementTimeout, false, false}, is: context.Canceled,
			ctx: func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				cancel()
				return ctx, cancel
			}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn, err := pgconn.ConnectConfig(t.Context(), dialled(t, plainDSN, session(test.after)))
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				if test.ctx != nil {
					ctx, cancel = test.ctx(t.Context())
				}
				defer cancel()
				_, err = conn.Exec(ctx, "call x()").ReadAll()
				e := check(t, err, test.want)
				if test.is != nil && !errors.Is(e, test.is) {
					t.Errorf("%v does not match %v", e, test.is)
				}
				if test.unknown != errors.Is(e, diag.ErrOutcomeUnknown) {
					t.Errorf("%v and ErrOutcomeUnknown", e)
				}
				closing, stop := context.WithTimeout(t.Context(), time.Second)
				defer stop()
				_ = conn.Close(closing)
				<-conn.CleanupDone()

				// On the closed connection nothing more is sent.
				_, err = conn.Exec(t.Context(), "call x()").ReadAll()
				check(t, err, want{diag.Unreachable, true, false})
			})
		})
	}
}
