package pgtest

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// tailSize is how much of what a client said is remembered to find a substring
// that arrives in pieces.
const tailSize = 256

// link is one connection through a proxy.
type link struct {
	proxy  *Proxy
	client net.Conn
	ctx    context.Context // ends when the link is cut
	end    context.CancelFunc

	mu     sync.Mutex
	server net.Conn // nil until dialled

	muted atomic.Bool // answers are thrown away
}

// chunk is what one read gave.
type chunk struct {
	data []byte
	due  time.Time
	last bool // the sender has ended its side
}

func newLink(p *Proxy, client net.Conn) *link {
	l := &link{proxy: p, client: client}
	l.ctx, l.end = context.WithCancel(context.Background())
	return l
}

// cut resets both sides.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end()
	reset(l.client)
	if l.server != nil {
		reset(l.server)
	}
}

// reset closes a connection so that the other side gets an error, not an end.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // fails when it is closed already
	}
	_ = c.Close()
}

// run forwards both ways until both have ended or the link is cut.
func (l *link) run(server net.Conn) {
	l.mu.Lock()
	l.server = server
	if l.ctx.Err() != nil { // cut while dialling
		reset(server)
	}
	l.mu.Unlock()

	var wg sync.WaitGroup
	up, down := make(chan chunk, 64), make(chan chunk, 64)
	wg.Go(func() { l.read(l.client, up) })
	wg.Go(func() { l.read(server, down) })
	wg.Go(func() { l.sendUp(server, up) })
	wg.Go(func() { l.sendDown(down) })
	wg.Wait()
}

// read reads one side. Reading goes on while what was read waits, so that a
// delay is no throttle and an end is noticed.
func (l *link) read(from net.Conn, to chan<- chunk) {
	defer close(to)
	for {
		buf := make([]byte, 16<<10)
		n, err := from.Read(buf)
		if err != nil && !errors.Is(err, io.EOF) {
			if !l.muted.Load() || from != l.client { // else it was fire that closed it
				l.cut() // the other side gets a reset for a reset
			}
			return
		}
		select {
		case to <- chunk{data: buf[:n], due: l.proxy.due(), last: err != nil}:
		case <-l.ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// pass waits until a chunk is due and the proxy not frozen; false when the
// link was cut instead.
func (l *link) pass(c chunk) bool {
	if wait := time.Until(c.due); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.ctx.Done():
			return false
		}
	}
	return l.passGate()
}

func (l *link) passGate() bool {
	select {
	case <-l.proxy.gate():
		return l.ctx.Err() == nil
	case <-l.ctx.Done():
		return false
	}
}

// sendUp gives the server what the client says, and watches for the trigger.
func (l *link) sendUp(server net.Conn, from <-chan chunk) {
	var tail []byte
	for c := range from {
		if !l.pass(c) {
			return
		}
		if t := l.proxy.seen(tail, c.data); t != nil {
			l.fire(t, server, c.data)
			return
		}
		tail = append(tail, c.data...)
		tail = tail[max(0, len(tail)-tailSize):]
		if !l.write(server, c) {
			return
		}
	}
}

// sendDown gives the client the server's answers.
func (l *link) sendDown(from <-chan chunk) {
	for c := range from {
		if l.muted.Load() {
			continue
		}
		if !l.pass(c) {
			return
		}
		if !l.muted.Load() && !l.write(l.client, c) {
			return
		}
	}
}

func (l *link) write(to net.Conn, c chunk) bool {
	if _, err := to.Write(c.data); err != nil {
		l.cut()
		return false
	}
	if c.last {
		if tcp, ok := to.(*net.TCPConn); ok {
			_ = tcp.CloseWrite() // the other side may have ended before
		}
	}
	return true
}

// fire cuts the link over what the client said last.
func (l *link) fire(t *trigger, server net.Conn, data []byte) {
	defer close(t.fired)
	if !t.forward {
		l.cut()
		return
	}
	// First no answer passes, then the server gets the message.
	l.muted.Store(true)
	_, err := server.Write(data)
	reset(l.client)
	if err != nil {
		l.cut()
		return
	}
	// A reset could overtake the message in the server's own buffer; an end in
	// the stream cannot. What it answers is read and thrown away until it ends.
	if tcp, ok := server.(*net.TCPConn); ok {
		_ = tcp.CloseWrite() // fails only when the server has reset the connection
		_ = tcp.SetReadDeadline(time.Now().Add(30 * time.Second))
	}
}
