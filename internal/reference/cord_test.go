package reference_test

import (
	"context"
	"errors"
	"net"
	"sync"
)

// cord is an instance's network: once it is cut, its connections are reset and no new one comes about.
type cord struct {
	mu    sync.Mutex
	gone  bool
	conns []net.Conn
}

func (c *cord) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if c.isCut() {
		return nil, errors.New("the cord is cut")
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns = append(c.conns, conn)
	if c.gone { // while it was dialled
		reset(conn)
	}
	return conn, nil
}

func (c *cord) isCut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gone
}

func (c *cord) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	for _, conn := range c.conns {
		reset(conn)
	}
}

// reset closes a connection without a word, as the end of a machine does.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // fails when it is closed already
	}
	_ = conn.Close()
}
