package consume

import (
	"slices"
	"sync"
	"time"
)

// Gate lets one session of a client run a message while no other handler of the process runs. All sessions of a client share it.
//
// A session that wants to be alone asks. The gate closes: no session starts anything. When the last running handler has ended, the asker
// holds the gate. Starting a handler costs nothing here: each session knows under its own mutex whether the gate is closed.
//
// After it was closed the gate stays open for as long as it was closed, at most a second, so that solo runs and ordinary work each get
// their half of the time.
//
// Locks are taken in the order gate, session: no session calls the gate while it holds its own.
type Gate struct {
	mu      sync.Mutex
	members map[gated]bool // true: something of it still runs, while the gate is closed
	asked   []gated        // in order; the first has the gate when it is closed
	closed  bool
	held    bool
	since   time.Time // when it was closed
	open    time.Time // until when it stays open
}

// gated is what the gate needs of a session.
type gated interface {
	gateClosed() (running bool) // from now on nothing starts
	gateOpened()
	gateHeld()  // this one is alone now
	gateAgain() // this one is to ask again if it still wants to be alone
}

const maxGateOpen = time.Second

func (g *Gate) join(m gated) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.members == nil {
		g.members = make(map[gated]bool)
	}
	g.members[m] = false
	if g.closed {
		m.gateClosed() // it has just begun: nothing runs
	}
}

func (g *Gate) leave(m gated) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.members, m)
	g.withdraw(m)
	g.tryHold()
}

// ask says that m wants to be alone. If it is told a time to wait it asks again then, else it hears from the gate.
func (g *Gate) ask(m gated) (again time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Contains(g.asked, m) {
		g.asked = append(g.asked, m)
	}
	if g.closed || g.asked[0] != m {
		return 0
	}
	now := time.Now()
	if wait := g.open.Sub(now); wait > 0 {
		return wait
	}
	g.closed, g.held, g.since = true, false, now
	for member := range g.members {
		g.members[member] = member.gateClosed()
	}
	g.tryHold()
	return 0
}

// idle says that nothing of m runs any more.
func (g *Gate) idle(m gated) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.members[m]; ok && g.closed {
		// Asked again, as the gate may have been opened and closed since m found itself idle.
		g.members[m] = m.gateClosed()
	}
	g.tryHold()
}

// release says that m does not want to be alone any longer.
func (g *Gate) release(m gated) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.withdraw(m)
}

func (g *Gate) withdraw(m gated) {
	if g.closed && g.asked[0] == m {
		g.reopen()
		return
	}
	at := slices.Index(g.asked, m)
	if at < 0 {
		return
	}
	g.asked = slices.Delete(g.asked, at, at+1)
	m.gateAgain() // it may have asked anew while it withdrew
	if at == 0 && len(g.asked) > 0 {
		g.asked[0].gateAgain()
	}
}

func (g *Gate) tryHold() {
	if !g.closed || g.held {
		return
	}
	for _, running := range g.members {
		if running {
			return
		}
	}
	g.held = true
	g.asked[0].gateHeld()
}

func (g *Gate) reopen() {
	now := time.Now()
	g.closed, g.held = false, false
	g.open = now.Add(min(now.Sub(g.since), maxGateOpen))
	g.asked = g.asked[1:]
	for member := range g.members {
		member.gateOpened()
	}
	if len(g.asked) > 0 {
		g.asked[0].gateAgain()
	}
}
