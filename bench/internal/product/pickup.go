package product

import (
	"context"
	"errors"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/bench/internal/measure"
	"github.com/sqlstreams/sqlstreams/bench/internal/payload"
	"github.com/sqlstreams/sqlstreams/bench/internal/pickup"
	"github.com/sqlstreams/sqlstreams/bench/internal/rig"
)

// Pickup is the time from commit to the start of the handler, with one process each side.
type Pickup struct {
	By         string
	PollOnly   bool
	Rate, Size int
}

// Run does it for a window.
func (c *Pickup) Run(ctx context.Context, m *rig.Meter, w measure.Window) (values measure.Values, err error) {
	a, err := open(ctx, m.Server.DSN(), 1, sqlstreams.ClientConfig{})
	if err != nil {
		return nil, err
	}
	defer a.close(ctx)
	if _, err := sqlstreams.RegisterStream[payload.Order](ctx, a.client, streamName, nil); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, forget(ctx, m.Server, a)) }()
	if err := m.Server.Calm(ctx); err != nil {
		return nil, err
	}
	config := PickupConfig{DSN: m.Server.DSN(), By: c.By, PollOnly: c.PollOnly, Rate: c.Rate, Size: c.Size}
	return pickup.Measure(ctx, w, ReceiveRole, config, SendRole, config)
}
