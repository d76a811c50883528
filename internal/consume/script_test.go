package consume

import (
	"bufio"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// conversation drives a machine by a script. Each line is something that happens; what the machine decides stands indented below it.
//
//	next                       what the loop is to do; it is done when the next line answers
//	reply [range L-H [keyed ORDER] [again] [stale N] [reclaims N] [done a,b] [lease D]] [deliveries a,b [attempt N] [order ORDER]] [woken N] [more] [paused] [epoch N] [floor N] [lost]
//	      [due D] [solodue D] [expiry D] [gone]
//	fail | fail unknown        the call failed
//	held [L-H D] [low N] | held nothing
//	read [all | a,b] [key a,b …]   the store answers a read; "x 1,2" gives messages 1 and 2 the key x
//	take                       a worker asks for work
//	end N [error | panic | delay D | terminal]     the handler of message N returns
//	late                       the watchdog looks
//	wait D                     both clocks go on; "asleep D": the monotonic one stands still; "wall D": the wall clock is set
//	woke, stop, gate closed|mine|open
type conversation struct {
	m      *machine
	now    instant
	last   action
	out    strings.Builder
	tokens byte
	slots  map[int64]start // running messages
}

func newConversation(o Options, p delivery.Policy) *conversation {
	c := &conversation{slots: make(map[int64]start), now: instant{wall: int64(24 * time.Hour)}}
	p = p.Or(delivery.DefaultPolicy())
	c.m = newMachine(o, names{groupID: 1, streamID: 1}, delivery.Limits{Default: p, Max: p}, 1, func() float64 { return 0.5 }, func() delivery.Token {
		c.tokens++
		return uuid.UUID{c.tokens}
	}, c.now)
	return c
}

func (c *conversation) say(format string, args ...any) {
	fmt.Fprintf(&c.out, "  "+format+"\n", args...)
}

// run plays a script and returns it with the machine's decisions as they are.
func (c *conversation) run(script string) string {
	lines := bufio.NewScanner(strings.NewReader(script))
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, " ") {
			continue // an expected decision
		}
		c.out.WriteString(line + "\n")
		if words := strings.Fields(line); len(words) > 0 && !strings.HasPrefix(line, "#") {
			c.step(words[0], words[1:])
			for _, e := range c.m.effects().events {
				c.event(e)
			}
		}
	}
	return c.out.String()
}

func (c *conversation) event(e Event) {
	switch e.Kind {
	case KindStale:
		c.say("! %s: message %d, range %d-%d, remaining %v, needed %v", e.Code, e.Message, e.Low+1, e.High, e.Remaining, e.Needed)
	case KindAttempt:
	default:
		text := fmt.Sprintf("! %s %s", e.Code, e.Kind)
		if e.Message != 0 {
			text += fmt.Sprintf(" message %d", e.Message)
		}
		if e.High != 0 {
			text += fmt.Sprintf(" range %d-%d", e.Low+1, e.High)
		}
		c.say("%s", text)
	}
}

func (c *conversation) step(verb string, args []string) {
	m := c.m
	switch verb {
	case "next":
		c.last = m.next(c.now)
		c.decided()
	case "reply", "fail":
		if c.last.call == nil {
			c.say("nothing was asked")
			return
		}
		if verb == "fail" {
			m.failed(c.last.call, &diag.Error{Code: diag.Unreachable, Retryable: true}, slices.Contains(args, "unknown"), c.now)
			return
		}
		m.applied(c.last.call, c.reply(args), c.now)
	case "held":
		held := &delivery.Held{}
		if args[0] != "nothing" {
			low, high := bounds(args[0])
			r := delivery.Range{Low: low, High: high, Lease: duration(args[1]), Ceiling: c.m.plain.Timeout}
			for _, t := range c.last.tokens {
				r.Token = t
				held.Ranges = append(held.Ranges, r)
			}
		}
		if c.last.kind == doSettle {
			m.settled(c.last.call, held, c.now, c.now)
		} else {
			m.verified(held, c.now, c.now)
		}
	case "read":
		if c.last.span == nil && c.last.parcel == nil {
			c.say("no read was asked for")
			return
		}
		c.read(args)
	case "take":
		c.take()
	case "end":
		id := number(args[0])
		s, ok := c.slots[id]
		if !ok {
			c.say("%d does not run", id)
			return
		}
		delete(c.slots, id)
		m.finish(s.slot, c.now, c.verdict(args[1:]))
	case "late":
		gone, _ := m.expire(c.now)
		for _, si := range gone {
			for id, s := range c.slots {
				if s.slot == si {
					c.say("abandoned %d", id)
					delete(c.slots, id)
				}
			}
		}
	case "wait":
		d := int64(duration(args[0]))
		c.now.mono, c.now.wall = c.now.mono+d, c.now.wall+d
	case "asleep", "wall":
		c.now.wall += int64(duration(args[0]))
	case "woke":
		m.woke(c.now)
	case "stop":
		m.halt(c.now)
	case "gate":
		m.gate.closed = args[0] != "open"
		m.gate.mine = args[0] == "mine"
	default:
		c.say("what is %q?", verb)
	}
}

func (c *conversation) decided() {
	switch a := c.last; a.kind {
	case doWait:
		if a.until == never {
			c.say("wait")
		} else {
			c.say("wait %v", time.Duration(a.until-c.now.mono))
		}
	case doWork:
		c.say("work%s", workText(a.call.req))
	case doSettle, doVerify:
		c.say("held? %d tokens", len(a.tokens))
	case doRead:
		c.say("read %d-%d", a.span.ref.Low+1, a.span.high)
	case doReadIDs:
		c.say("read %v", a.parcel.ids())
	case doBeat:
		c.m.calls.beatAt = never
		c.last = c.m.next(c.now)
		c.decided()
	case doAskGate:
		c.say("ask for the gate")
		c.m.gate.asked, c.m.gate.queued = true, true
	case doEnd:
		c.say("end")
	}
}

// workText shows what a request says, without what it always says.
func workText(req *delivery.WorkRequest) string {
	var b strings.Builder
	for _, r := range req.Results {
		fmt.Fprintf(&b, ", record %d-%s", r.Low+1, outcomesText(r.Outcomes))
	}
	for _, d := range req.Deliveries {
		fmt.Fprintf(&b, ", record%s", outcomesText([]delivery.Outcome{d.Outcome}))
	}
	for _, s := range req.Surrenders {
		fmt.Fprintf(&b, ", give back %d- finished to %d and %v%s", s.Low+1, s.Prefix, s.Done, outcomesText(s.Outcomes))
	}
	for _, p := range req.Partials {
		fmt.Fprintf(&b, ", record of %d- to %d and %v free %v%s", p.Low+1, p.Prefix, p.Done, p.Keys, outcomesText(p.Outcomes))
	}
	if len(req.Freed) > 0 {
		fmt.Fprintf(&b, ", freed %v", req.Freed)
	}
	for _, r := range req.Stale {
		fmt.Fprintf(&b, ", stale %d-", r.Low+1)
	}
	for _, r := range req.Release {
		fmt.Fprintf(&b, ", release %d", r.ID)
	}
	if req.RangeToken != (delivery.Token{}) {
		fmt.Fprintf(&b, ", claim %d", req.MaxMessages)
		if req.TakeOver {
			b.WriteString(" or take over")
			if req.Floor > 0 {
				fmt.Fprintf(&b, " from %d", req.Floor)
			}
		}
	}
	if req.DeliveryToken != (delivery.Token{}) {
		if req.Solo {
			b.WriteString(", claim a solo delivery")
		} else {
			fmt.Fprintf(&b, ", claim %d deliveries", req.Retries)
			if req.Followers > 0 {
				fmt.Fprintf(&b, " and %d behind", req.Followers)
			}
		}
	}
	return strings.TrimPrefix(b.String(), ",")
}

func outcomesText(list []delivery.Outcome) string {
	var b strings.Builder
	for _, o := range list {
		fmt.Fprintf(&b, " %d:%s", o.ID, o.Kind)
		if o.Attempt > 0 {
			fmt.Fprintf(&b, "/%d", o.Attempt)
		}
		if o.DueIn > 0 {
			fmt.Fprintf(&b, " in %v", o.DueIn)
		}
		if o.Solo {
			b.WriteString(" solo")
		}
	}
	return b.String()
}

func (c *conversation) reply(args []string) *delivery.WorkReply {
	req := c.last.call.req
	lease := req.Margins + c.m.plain.Timeout
	reply := &delivery.WorkReply{Epoch: 1, ConfigVersion: 1, NextDue: -1, NextSoloDue: -1, NextExpiry: -1}
	for i := 0; i < len(args); i++ {
		arg := func() string { i++; return args[i] }
		switch args[i] {
		case "range":
			low, high := bounds(arg())
			reply.Range = &delivery.Range{Low: low, High: high, Token: req.RangeToken, Lease: lease, Ceiling: c.m.plain.Timeout}
		case "keyed":
			reply.Range.Keyed, reply.Range.KeyOrder = true, delivery.KeyOrder(arg())
		case "order":
			order := delivery.KeyOrder(arg())
			for j := range reply.Deliveries {
				reply.Deliveries[j].Order = order
			}
		case "woken":
			reply.Woken = int(number(arg()))
		case "claimed":
			reply.Claimed = number(arg())
		case "again":
			reply.Range.Again = true
		case "stale":
			reply.Range.Stale = int(number(arg()))
		case "reclaims":
			reply.Range.Reclaims = int(number(arg()))
		case "done":
			reply.Range.Done = numbers(arg())
		case "lease":
			reply.Range.Lease = duration(arg())
		case "deliveries":
			for _, id := range numbers(arg()) {
				reply.Deliveries = append(reply.Deliveries, delivery.Claimed{ID: id, Token: req.DeliveryToken, Solo: req.Solo, Lease: lease, Ceiling: c.m.plain.Timeout, Attempt: 1})
			}
		case "attempt":
			n := int(number(arg()))
			for j := range reply.Deliveries {
				reply.Deliveries[j].Attempt = n
			}
		case "more":
			reply.More = true
		case "paused":
			reply.Paused = true
		case "gone":
			reply.Gone = true
		case "floor":
			reply.Floor = number(arg())
		case "epoch":
			reply.Epoch = number(arg())
		case "lost":
			for _, r := range req.Results {
				reply.LostRanges = append(reply.LostRanges, r.RangeRef)
			}
			for _, p := range req.Partials {
				reply.LostRanges = append(reply.LostRanges, p.RangeRef)
			}
			for _, d := range req.Deliveries {
				reply.LostDeliveries = append(reply.LostDeliveries, d.ID)
			}
		case "due":
			reply.NextDue = duration(arg())
		case "solodue":
			reply.NextSoloDue = duration(arg())
		case "expiry":
			reply.NextExpiry = duration(arg())
		default:
			c.say("what is %q?", args[i])
		}
	}
	return reply
}

func (c *conversation) read(args []string) {
	var ids []int64
	switch a := c.last; {
	case len(args) > 0 && args[0] == "failed":
		if a.kind == doRead {
			c.m.readFailed(a.span, c.now)
		} else {
			c.m.parcelReadFailed(a.parcel, c.now)
		}
		return
	case len(args) > 0 && args[0] != "all":
		ids = numbers(args[0])
	case a.kind == doRead:
		for id := a.span.ref.Low + 1; id <= a.span.high; id++ {
			ids = append(ids, id)
		}
	default:
		ids = a.parcel.ids()
	}
	msgs := make([]delivery.Message, len(ids))
	keys := map[int64]string{}
	for i := 1; i+1 < len(args); i += 2 {
		for _, id := range numbers(args[i+1]) {
			keys[id] = args[i]
		}
	}
	for i, id := range ids {
		msgs[i].ID, msgs[i].Key = id, keys[id]
	}
	if c.last.kind == doRead {
		c.m.readDone(c.last.span, msgs, c.now)
	} else {
		c.m.parcelRead(c.last.parcel, msgs, c.now)
	}
}

func (c *conversation) take() {
	for si := range c.m.slots {
		if c.m.slots[si].busy {
			continue
		}
		var s start
		if !c.m.take(si, c.now, &s) {
			c.say("nothing")
			return
		}
		c.slots[s.message.ID] = s
		c.say("start %d, attempt %d, %v left", s.message.ID, s.attempt, time.Duration(s.leaseEnds-c.now.wall))
		return
	}
	c.say("no slot")
}

func (c *conversation) verdict(args []string) *verdict {
	if len(args) == 0 {
		return nil
	}
	switch args[0] {
	case "delay":
		return judge(Delay(duration(args[1])))
	case "terminal":
		return judge(Terminal(errors.New("no")))
	case "panic":
		return judgePanic("ouch")
	case "interrupted":
		v := judge(errors.New("no"))
		v.interrupted = true
		return v
	}
	return judge(errors.New("no"))
}

func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return -1
	}
	return n
}

func numbers(s string) []int64 {
	var list []int64
	for part := range strings.SplitSeq(s, ",") {
		list = append(list, number(part))
	}
	return list
}

func duration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		return -1
	}
	return d
}

// bounds reads "1-4", the ids of a range, as its bounds.
func bounds(s string) (low, high int64) {
	a, b, _ := strings.Cut(s, "-")
	return number(a) - 1, number(b)
}

func converse(t *testing.T, o Options, p delivery.Policy, script string) {
	t.Helper()
	script = strings.TrimPrefix(script, "\n")
	got := newConversation(o, p).run(script)
	if diff := cmp.Diff(strings.Split(script, "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("the machine decided otherwise (-expected +decided):\n%s", diff)
	}
}
