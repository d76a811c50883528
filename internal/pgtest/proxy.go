package pgtest

import (
	"bytes"
	"context"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Proxy forwards TCP connections to a server and misbehaves on request. It
// sees bytes, so what it looks for must not be encrypted.
type Proxy struct {
	Addr string // host:port to connect to

	target   string
	listener net.Listener
	ctx      context.Context // ends with the proxy
	end      context.CancelFunc
	wg       sync.WaitGroup // every goroutine of the proxy

	mu      sync.Mutex
	links   map[*link]struct{}
	open    chan struct{} // closed unless frozen
	delay   time.Duration
	trigger *trigger // nil: none
}

// trigger cuts a connection over something that the client says.
type trigger struct {
	substring []byte // in lower case
	forward   bool   // the server gets it first
	fired     chan struct{}
}

// NewProxy starts a proxy on loopback, ended with all its connections at the
// test's end. Target is host:port or the URL of a database.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	if strings.Contains(target, "://") {
		u, err := url.Parse(target)
		if err != nil {
			t.Fatalf("pgtest: %v", err)
		}
		target = u.Host
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	p := &Proxy{
		Addr:     listener.Addr().String(),
		target:   target,
		listener: listener,
		links:    make(map[*link]struct{}),
		open:     make(chan struct{}),
	}
	close(p.open)
	p.ctx, p.end = context.WithCancel(context.Background())
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// DSN returns the URL of a database with the proxy in place of its server.
func (p *Proxy) DSN(t testing.TB, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	u.Host = p.Addr
	return u.String()
}

// Freeze makes all connections half open: nobody's bytes arrive, neither side
// is told, and new connections are accepted but reach nobody. As on a network
// that has parted, small writes succeed and the bytes are delivered late, by
// Thaw; CutAll loses them.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
		p.open = make(chan struct{})
	default: // frozen already
	}
}

// Thaw ends Freeze.
func (p *Proxy) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open: // not frozen
	default:
		close(p.open)
	}
}

// Delay makes every byte that is read from now on arrive d later, in both
// directions, at the same throughput. 0 ends it.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// CutWhenSeen cuts the first connection whose client sends the substring, in
// upper or lower case: the server gets it and acts on it, and no answer comes
// back. The channel closes when the connection is cut; the server may still be
// acting then. Where the substring arrives in pieces the last one triggers.
func (p *Proxy) CutWhenSeen(t testing.TB, substring string) <-chan struct{} {
	t.Helper()
	return p.arm(t, substring, true)
}

// CutBefore is CutWhenSeen, but the server does not get the message.
func (p *Proxy) CutBefore(t testing.TB, substring string) <-chan struct{} {
	t.Helper()
	return p.arm(t, substring, false)
}

func (p *Proxy) arm(t testing.TB, substring string, forward bool) <-chan struct{} {
	t.Helper()
	if substring == "" || len(substring) > tailSize {
		t.Fatalf("pgtest: a proxy looks for 1 to %d bytes, not for %q", tailSize, substring)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trigger = &trigger{substring: []byte(strings.ToLower(substring)), forward: forward, fired: make(chan struct{})}
	return p.trigger.fired
}

// CutAll resets all connections. New ones are accepted.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// Links returns how many connections are open.
func (p *Proxy) Links() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

func (p *Proxy) close() {
	p.end()
	_ = p.listener.Close() // nothing is lost
	p.CutAll()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.wg.Go(func() { p.serve(client) })
	}
}

// serve runs one connection until both sides have ended or it is cut.
func (p *Proxy) serve(client net.Conn) {
	l := newLink(p, client)
	p.mu.Lock()
	p.links[l] = struct{}{}
	closing := p.ctx.Err() != nil // then CutAll may have missed this link
	p.mu.Unlock()
	defer func() {
		l.cut()
		p.mu.Lock()
		delete(p.links, l)
		p.mu.Unlock()
	}()
	if closing || !l.passGate() {
		return
	}
	d := net.Dialer{Timeout: 10 * time.Second}
	server, err := d.DialContext(l.ctx, "tcp", p.target)
	if err != nil {
		return // the client sees a connection that ends, as with any proxy
	}
	l.run(server)
}

// gate returns a channel that is closed while bytes may pass.
func (p *Proxy) gate() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

func (p *Proxy) due() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Now().Add(p.delay)
}

// seen returns the trigger if what a client says now, after what it said
// before, fires it. A trigger fires once.
func (p *Proxy) seen(before, now []byte) *trigger {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.trigger
	if t == nil {
		return nil
	}
	// Only as much of before as cannot hold the substring alone.
	before = before[max(0, len(before)-len(t.substring)+1):]
	if !bytes.Contains(bytes.ToLower(slices.Concat(before, now)), t.substring) {
		return nil
	}
	p.trigger = nil
	return t
}
