package wake

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// How listening goes.
const (
	defaultPing   = 5 * time.Second
	minPong       = time.Second
	listenTimeout = 10 * time.Second
	// hangUp is how long the end of a listening connection may take.
	hangUp = time.Second
	// maxHello is the longest pause between two hellos of a listener that hears nothing.
	maxHello = time.Minute
)

// listen is the listener.
func (h *Hub) listen(r *run) {
	failures := 0
	for r.ctx.Err() == nil {
		lasted, err := h.listenOnce(r)
		if r.ctx.Err() != nil {
			return
		}
		h.faults.fail(fault{what: whatListen}, "the listening connection is lost; polling until it is back", err)
		if lasted > maxBackoff {
			failures = 0 // only then: one that is refused right after LISTEN must not be made anew at full speed
		}
		failures++
		pause(r.ctx, backoff(failures), nil)
	}
}

// listenOnce listens on one connection until it fails, and says how long it lasted.
func (h *Hub) listenOnce(r *run) (lasted time.Duration, err error) {
	ctx, cancel := context.WithTimeout(r.ctx, listenTimeout)
	l, err := h.source.Listen(ctx)
	cancel()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	err = h.serve(r, l)
	h.mu.Lock()
	if h.run == r {
		h.setListening(false)
	}
	h.mu.Unlock()
	ctx, cancel = context.WithTimeout(context.WithoutCancel(r.ctx), hangUp)
	defer cancel()
	l.Close(ctx)
	return time.Since(began), err
}

// serve fans out what a connection hears. It returns when the connection has failed or the run has ended.
func (h *Hub) serve(r *run, l Listener) error {
	hello := announcement{kind: greeting, id: 1 + rand.IntN(1<<30)}
	h.connected(r, hello)
	nextHello, helloGap := time.Now().Add(h.ping), h.ping
	heard := false
	for {
		ctx, cancel := context.WithTimeout(r.ctx, h.ping)
		payload, err := l.Wait(ctx)
		quiet := ctx.Err() != nil
		cancel()
		switch {
		case err == nil:
			heard = true
			h.heard(r, payload)
			continue
		case r.ctx.Err() != nil:
			return nil
		case !quiet:
			return err
		}
		// The connection cannot be asked while it waits, so the wait ends after some quiet seconds, and it is asked then.
		ctx, cancel = context.WithTimeout(r.ctx, max(h.ping, minPong))
		err = l.Ping(ctx)
		cancel()
		if err != nil {
			return err
		}
		if now := time.Now(); !heard && !now.Before(nextHello) {
			h.faults.fail(fault{what: whatListen}, "listening, but announcements do not arrive; polling instead", &diag.Error{
				Code: diag.ListenerLost, Op: "listen", Retryable: true,
				Detail: "its own announcement has not come back; LISTEN needs a direct connection, as a pooler in transaction mode swallows what it would hear",
			})
			helloGap = min(2*helloGap, maxHello)
			nextHello = now.Add(helloGap)
			h.greet(hello)
		}
	}
}

// connected notes that LISTEN has succeeded. What was announced before it was missed, so all groups are probed at once.
func (h *Hub) connected(r *run, hello announcement) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.run != r {
		return
	}
	if r.connected {
		h.state.Reconnects++
	}
	r.connected = true
	h.probeAllBut(nil)
	kick(r.kick)
	h.enqueue(hello)
}

// greet sends a hello again.
func (h *Hub) greet(hello announcement) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.enqueue(hello)
	}
}

// heard fans out a payload. Whatever it says, announcements arrive.
func (h *Hub) heard(r *run, payload string) {
	h.mu.Lock()
	if h.run != r {
		h.mu.Unlock()
		return
	}
	h.setListening(true)
	now := time.Now()
	for a := range parsePayload(payload) {
		h.hear(a, a.kind == Inboxed && h.isEcho(a, now))
	}
	h.mu.Unlock()
	h.faults.ok(fault{what: whatListen})
}
