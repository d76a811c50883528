package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/sqlstreams/sqlstreams/internal/delivery"
	"github.com/sqlstreams/sqlstreams/internal/diag"
)

// The request and the reply of the procedure work, as they travel.
type (
	wireOutcome struct {
		ID      int64             `json:"id"`
		Token   *delivery.Token   `json:"token,omitempty"`
		Kind    delivery.Kind     `json:"kind"`
		Attempt int               `json:"attempt"`
		DueMS   float64           `json:"due_ms"`
		Reason  delivery.Reason   `json:"reason,omitempty"`
		Error   *string           `json:"error,omitempty"`
		Key     string            `json:"key,omitempty"`
		Order   delivery.KeyOrder `json:"key_order,omitempty"`
		Parks   bool              `json:"parks,omitempty"`
		Solo    bool              `json:"solo,omitempty"`
	}
	wireRange struct {
		Low      int64          `json:"low"`
		Token    delivery.Token `json:"token"`
		Prefix   int64          `json:"prefix"` // 0 is a prefix like another
		Done     []int64        `json:"done,omitempty"`
		Outcomes []wireOutcome  `json:"outcomes,omitempty"`
		Keys     []string       `json:"keys,omitempty"`
	}
	wireRelease struct {
		ID    int64          `json:"id"`
		Token delivery.Token `json:"token"`
	}
	wireRequest struct {
		Group         int              `json:"group_id"`
		Stream        int              `json:"stream_id"`
		Instance      uuid.UUID        `json:"instance"`
		ConfigVersion int              `json:"config_version"`
		Durable       bool             `json:"durable"`
		Results       []wireRange      `json:"results,omitempty"`
		Deliveries    []wireOutcome    `json:"deliveries,omitempty"`
		Surrenders    []wireRange      `json:"surrenders,omitempty"`
		Partials      []wireRange      `json:"partials,omitempty"`
		Freed         []string         `json:"freed,omitempty"`
		Stale         []wireRange      `json:"stale,omitempty"`
		Release       []wireRelease    `json:"release,omitempty"`
		RangeToken    *delivery.Token  `json:"range_token,omitempty"`
		MaxMessages   int              `json:"max_messages"`
		MaxBytes      int64            `json:"max_bytes"`
		TakeOver      bool             `json:"take_over"`
		Floor         int64            `json:"floor"`
		RestToken     *delivery.Token  `json:"rest_token,omitempty"`
		PartMax       int              `json:"part_max"`
		DeliveryToken *delivery.Token  `json:"delivery_token,omitempty"`
		Retries       int              `json:"retries"`
		Solo          bool             `json:"solo"`
		Holds         []delivery.Token `json:"holds,omitempty"`
		Followers     int              `json:"followers"`
		LookExpired   bool             `json:"look_expired"`
		MarginsMS     int64            `json:"margins_ms"`
		Free          int              `json:"free"`
	}
	wireClaimed struct {
		ID         int64             `json:"id"`
		Attempt    int               `json:"attempt"`
		Solo       bool              `json:"solo"`
		Order      delivery.KeyOrder `json:"key_order"`
		OutOfOrder bool              `json:"out_of_order"`
	}
	wireReply struct {
		Gone           bool            `json:"gone"`
		Paused         bool            `json:"paused"`
		Epoch          int64           `json:"epoch"`
		ConfigVersion  int             `json:"config_version"`
		Config         json.RawMessage `json:"config"`
		CeilingMS      int64           `json:"ceiling_ms"`
		Lost           []wireRange     `json:"lost"`
		LostDeliveries []int64         `json:"lost_deliveries"`
		Range          *struct {
			Low      int64             `json:"low"`
			High     int64             `json:"high"`
			Reclaims int               `json:"reclaims"`
			Stale    int               `json:"stale"`
			Again    bool              `json:"again"`
			Done     []int64           `json:"done"`
			Keyed    bool              `json:"keyed"`
			KeyOrder delivery.KeyOrder `json:"key_order"`
		} `json:"range"`
		Deliveries    []wireClaimed `json:"deliveries"`
		Lines         []wireClaimed `json:"lines"` // those with a key
		Woken         int           `json:"woken"`
		BrokenUp      int           `json:"broken_up"`
		Floor         *int64        `json:"floor"`
		More          bool          `json:"more"`
		Claimed       *int64        `json:"claimed"`
		LostFrom      *int64        `json:"lost_from"`
		LostTo        *int64        `json:"lost_to"`
		Passed        int64         `json:"passed"`
		LimitedMS     *float64      `json:"limited_ms"`
		NextDueMS     *float64      `json:"next_due_ms"`
		NextSoloDueMS *float64      `json:"next_solo_due_ms"`
		NextExpiryMS  *float64      `json:"next_expiry_ms"`
	}
)

func wireOutcomes(outcomes []delivery.Outcome) (wire []wireOutcome, dead bool) {
	for i := range outcomes {
		o := &outcomes[i]
		wire = append(wire, wireOf(o))
		dead = dead || o.Kind == delivery.Dead
	}
	return wire, dead
}

func wireOf(o *delivery.Outcome) wireOutcome {
	w := wireOutcome{ID: o.ID, Kind: o.Kind, Attempt: o.Attempt, DueMS: float64(o.DueIn) / float64(time.Millisecond), Reason: o.Reason, Key: o.Key, Order: o.Order, Parks: o.Parks, Solo: o.Solo}
	if o.Error != "" {
		w.Error = &o.Error
	}
	return w
}

func some(t delivery.Token) *delivery.Token {
	if t == uuid.Nil {
		return nil
	}
	return &t
}

// Work records and hands out, in one transaction under the group's lock. It commits without waiting for the disk unless a dead letter is written or a key is touched.
func (s *Store) Work(ctx context.Context, req *delivery.WorkRequest) (*delivery.WorkReply, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	object := "group " + strconv.Itoa(req.Group)
	wire := wireRequest{
		Group: req.Group, Stream: req.Stream, Instance: req.Instance, ConfigVersion: req.ConfigVersion,
		RangeToken: some(req.RangeToken), MaxMessages: req.MaxMessages, MaxBytes: req.MaxBytes,
		TakeOver: req.TakeOver, Floor: req.Floor, RestToken: some(req.RestToken), PartMax: req.PartMax,
		DeliveryToken: some(req.DeliveryToken), Retries: req.Retries, Solo: req.Solo, Followers: req.Followers, Freed: req.Freed, Holds: req.Holds, LookExpired: req.LookExpired,
		MarginsMS: req.Margins.Milliseconds(), Free: req.Free,
	}
	for i := range req.Results {
		r := &req.Results[i]
		outcomes, dead := wireOutcomes(r.Outcomes)
		wire.Durable = wire.Durable || dead
		wire.Results = append(wire.Results, wireRange{Low: r.Low, Token: r.Token, Outcomes: outcomes})
	}
	for i := range req.Deliveries {
		d := &req.Deliveries[i]
		w := wireOf(&d.Outcome)
		w.Token = &d.Token
		wire.Durable = wire.Durable || d.Kind == delivery.Dead
		wire.Deliveries = append(wire.Deliveries, w)
	}
	for i := range req.Surrenders {
		r := &req.Surrenders[i]
		outcomes, dead := wireOutcomes(r.Outcomes)
		wire.Durable = wire.Durable || dead
		wire.Surrenders = append(wire.Surrenders, wireRange{Low: r.Low, Token: r.Token, Prefix: r.Prefix, Done: r.Done, Outcomes: outcomes})
	}
	for i := range req.Partials {
		r := &req.Partials[i]
		outcomes, dead := wireOutcomes(r.Outcomes)
		wire.Durable = wire.Durable || dead
		wire.Partials = append(wire.Partials, wireRange{Low: r.Low, Token: r.Token, Prefix: r.Prefix, Done: r.Done, Outcomes: outcomes, Keys: r.Keys})
	}
	for _, r := range req.Stale {
		wire.Stale = append(wire.Stale, wireRange{Low: r.Low, Token: r.Token})
	}
	for _, r := range req.Release {
		wire.Release = append(wire.Release, wireRelease{ID: r.ID, Token: r.Token})
	}
	text, err := json.Marshal(&wire)
	if err != nil {
		return nil, &diag.Error{Code: diag.DatabaseError, Op: "work for", Object: object, Err: err}
	}
	conn, err := s.control.Acquire(ctx)
	if err != nil {
		return nil, ClassifyNoEffect("work for", object, err)
	}
	defer conn.Release()
	var answer []byte
	if err := conn.QueryRow(ctx, s.text["work"], string(text)).Scan(&answer); err != nil {
		return nil, Classify("work for", object, err)
	}
	var got wireReply
	if err := json.Unmarshal(answer, &got); err != nil {
		// It committed; what it answered is asked for again under the tokens that were sent.
		return nil, &diag.Error{Code: diag.DatabaseError, Op: "work for", Object: object, Err: err, Retryable: true, OutcomeUnknown: true}
	}
	return replyOf(req, &got), nil
}

func replyOf(req *delivery.WorkRequest, got *wireReply) *delivery.WorkReply {
	ceiling := time.Duration(got.CeilingMS) * time.Millisecond
	reply := &delivery.WorkReply{
		Gone: got.Gone, Paused: got.Paused, Epoch: got.Epoch, ConfigVersion: got.ConfigVersion, LostDeliveries: got.LostDeliveries,
		BrokenUp: got.BrokenUp, Floor: req.Floor, More: got.More, Woken: got.Woken,
		NextDue: wait(got.NextDueMS), NextSoloDue: wait(got.NextSoloDueMS), NextExpiry: wait(got.NextExpiryMS),
	}
	reply.Passed = got.Passed
	if got.LimitedMS != nil {
		reply.Limited = wait(got.LimitedMS)
	}
	if len(got.Config) > 0 && string(got.Config) != "null" {
		reply.Config = got.Config
	}
	if got.Floor != nil {
		reply.Floor = *got.Floor
	}
	if got.Claimed != nil {
		reply.Claimed = *got.Claimed
	}
	if got.LostFrom != nil && got.LostTo != nil {
		reply.LostFrom, reply.LostTo = *got.LostFrom, *got.LostTo
	}
	for _, r := range got.Lost {
		reply.LostRanges = append(reply.LostRanges, delivery.RangeRef{Low: r.Low, Token: r.Token})
	}
	if r := got.Range; r != nil {
		reply.Range = &delivery.Range{Low: r.Low, High: r.High, Token: req.RangeToken, Reclaims: r.Reclaims, Stale: r.Stale, Again: r.Again, Done: r.Done,
			Lease: req.Margins + ceiling, Ceiling: ceiling, Keyed: r.Keyed}
		if r.Keyed {
			reply.Range.KeyOrder = r.KeyOrder
		}
	}
	for _, d := range append(got.Deliveries, got.Lines...) {
		reply.Deliveries = append(reply.Deliveries, delivery.Claimed{ID: d.ID, Token: req.DeliveryToken, Attempt: d.Attempt, Solo: d.Solo,
			Lease: req.Margins + ceiling, Ceiling: ceiling, Order: d.Order, OutOfOrder: d.OutOfOrder})
	}
	slices.SortFunc(reply.Deliveries, func(a, b delivery.Claimed) int { return cmp.Compare(a.ID, b.ID) })
	return reply
}

// wait turns the database's milliseconds into a duration: negative if there is nothing to wait for, 0 if it is due.
func wait(ms *float64) time.Duration {
	if ms == nil {
		return -1
	}
	return time.Duration(min(max(*ms, 0), 1e12) * float64(time.Millisecond))
}

// Held returns what the group still holds open under these tokens.
func (s *Store) Held(ctx context.Context, group int, tokens []delivery.Token) (*delivery.Held, error) {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	object := fmt.Sprintf("group %d", group)
	held := &delivery.Held{}
	texts := make([]string, len(tokens))
	for i, t := range tokens {
		texts[i] = t.String()
	}
	rows, err := s.control.Query(ctx, s.text["held_ranges"], group, texts)
	if err != nil {
		return nil, ClassifyNoEffect("look at leases of", object, err)
	}
	for rows.Next() {
		var r delivery.Range
		var ceiling int64
		var left float64
		if err := rows.Scan(&r.Low, &r.High, &r.Token, &r.Reclaims, &r.Stale, &ceiling, &left, &r.Done, &r.Keyed, &r.KeyOrder); err != nil {
			rows.Close()
			return nil, ClassifyNoEffect("look at leases of", object, err)
		}
		r.Ceiling, r.Lease = time.Duration(ceiling)*time.Millisecond, time.Duration(left*float64(time.Second))
		r.Again = r.Reclaims > 0 || r.Stale > 0 || len(r.Done) > 0
		held.Ranges = append(held.Ranges, r)
	}
	if err := rows.Err(); err != nil {
		return nil, ClassifyNoEffect("look at leases of", object, err)
	}
	rows, err = s.control.Query(ctx, s.text["held_deliveries"], group, texts)
	if err != nil {
		return nil, ClassifyNoEffect("look at leases of", object, err)
	}
	for rows.Next() {
		var c delivery.Claimed
		var ceiling int64
		var left float64
		if err := rows.Scan(&c.ID, &c.Token, &c.Attempt, &c.Solo, &ceiling, &left, &c.Order, &c.OutOfOrder); err != nil {
			rows.Close()
			return nil, ClassifyNoEffect("look at leases of", object, err)
		}
		c.Ceiling, c.Lease = time.Duration(ceiling)*time.Millisecond, time.Duration(left*float64(time.Second))
		held.Deliveries = append(held.Deliveries, c)
	}
	return held, ClassifyNoEffect("look at leases of", object, rows.Err())
}

// Beat says that an instance lives.
func (s *Store) Beat(ctx context.Context, group int, instance uuid.UUID) error {
	return s.BeatAll(ctx, []uuid.UUID{instance}, []int{group})
}

// BeatAll says that instances of this process live, each in its group.
func (s *Store) BeatAll(ctx context.Context, instances []uuid.UUID, groups []int) error {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	ids := make([]string, len(instances))
	for i, id := range instances {
		ids[i] = id.String()
	}
	_, err = s.control.Exec(ctx, s.text["beat"], ids, groups, host, os.Getpid())
	return ClassifyNoEffect("report instances of", "this process", err)
}

// Leave says that an instance has stopped.
func (s *Store) Leave(ctx context.Context, group int, instance uuid.UUID) error {
	ctx, cancel := s.deadline(ctx)
	defer cancel()
	_, err := s.control.Exec(ctx, s.text["leave"], instance)
	return ClassifyNoEffect("sign off instance of", "group "+strconv.Itoa(group), err)
}
