package wake

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"

	"github.com/sqlstreams/sqlstreams/internal/diag"
	"github.com/sqlstreams/sqlstreams/internal/store"
)

// pgxListener listens on a connection of its own.
type pgxListener struct {
	conn *pgx.Conn
	// network is the connection under conn, to be closed at once when conn has failed.
	network net.Conn
}

// errSealed is what dialling gives once the connection is made.
var errSealed = errors.New("no cancel request for a listening connection")

// ListenPGX connects, refuses a standby (with several hosts it goes on to the next one), and listens on the channel. The configuration is not
// changed. It must lead to the server directly or through a pooler in session mode.
func ListenPGX(ctx context.Context, config *pgx.ConnConfig, channel string) (Listener, error) {
	cfg := config.Copy()
	cfg.OnNotification = nil // notifications are for Wait

	// A wait that ends with its context must leave the connection alone. This handler, pgx's default, only sets a deadline on reads; one that
	// sends a cancel request could hit the ping that follows.
	cfg.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.DeadlineContextWatcherHandler{Conn: c.Conn()}
	}

	// When a connection fails pgx sends a cancel request from a goroutine, over a connection that it dials. Nothing of ours is worth that, and on
	// a network that has parted the goroutine would stay for 15 s.
	var sealed atomic.Bool
	dial := cfg.DialFunc
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if sealed.Load() {
			return nil, errSealed
		}
		return dial(ctx, network, addr)
	}

	validate := cfg.ValidateConnect
	cfg.ValidateConnect = func(ctx context.Context, c *pgconn.PgConn) error {
		// First, as pgx overlooks a NotPreferredError of the other when it finds no better server.
		if err := refuseStandby(ctx, c); err != nil || validate == nil {
			return err
		}
		return validate(ctx, c)
	}

	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, listenError(channel, err)
	}
	sealed.Store(true)
	l := &pgxListener{conn: conn, network: conn.PgConn().Conn()}
	// The simple protocol, as LISTEN needs no preparation and its text no plan.
	if err := conn.PgConn().Exec(ctx, "listen "+pgx.Identifier{channel}.Sanitize()).Close(); err != nil {
		l.Close(ctx)
		return nil, listenError(channel, err)
	}
	return l, nil
}

// refuseStandby returns a coded error on a standby. It is tried at each host, so that the primary is found behind it.
func refuseStandby(ctx context.Context, c *pgconn.PgConn) error {
	results, err := c.Exec(ctx, "select pg_is_in_recovery()").ReadAll()
	if err != nil {
		return err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) != 1 {
		return errors.New("pg_is_in_recovery() gave no row")
	}
	if string(results[0].Rows[0][0]) != "f" {
		return &diag.Error{
			Code: diag.ReadOnlyServer, Op: "connect", Detail: "the server is a standby, where nothing is announced", Retryable: true,
		}
	}
	return nil
}

// listenError gives a failure its code and a text that can be told.
func listenError(channel string, err error) error {
	object := fmt.Sprintf("%q", channel)
	if coded, ok := errors.AsType[*diag.Error](err); ok {
		return &diag.Error{Code: coded.Code, Op: "listen on channel", Object: object, Detail: coded.Detail, Retryable: coded.Retryable}
	}
	return store.ClassifyNoEffect("listen on channel", object, err)
}

func (l *pgxListener) Wait(ctx context.Context) (string, error) {
	n, err := l.conn.WaitForNotification(ctx)
	if n != nil {
		return n.Payload, nil
	}
	return "", err
}

func (l *pgxListener) Ping(ctx context.Context) error { return l.conn.Ping(ctx) }

func (l *pgxListener) Close(ctx context.Context) {
	_ = l.conn.Close(ctx) // it is of no use any more
	// Does nothing after a clean close. After a failure pgx says goodbye in a goroutine, for up to 15 s if the other side is silent.
	_ = l.network.Close()
	select {
	case <-l.conn.PgConn().CleanupDone():
	case <-ctx.Done():
	}
}
