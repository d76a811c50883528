package product

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/jackc/pgx/v5"

	"github.com/sqlstreams/sqlstreams"
	"github.com/sqlstreams/sqlstreams/bench/internal/payload"
	"github.com/sqlstreams/sqlstreams/bench/internal/pickup"
	"github.com/sqlstreams/sqlstreams/bench/internal/worker"
)

// The roles of processes.
const (
	ProduceRole = "produce" // single Produce, one caller, as fast as it goes
	SendRole    = "send"    // one message now and then
	ReceiveRole = "receive"
	IdleRole    = "idle"
	ConsumeRole = "consume" // handlers that wait
)

// Roles returns what processes can be.
func Roles() map[string]worker.Role {
	return map[string]worker.Role{ProduceRole: runProduce, SendRole: runSend, ReceiveRole: runReceive, IdleRole: runIdle, ConsumeRole: runConsume}
}

// ProduceConfig is what a process in ProduceRole is told.
type ProduceConfig struct {
	DSN  string
	Size int
}

func runProduce(ctx context.Context, c *worker.Control) (any, error) {
	var config ProduceConfig
	if err := json.Unmarshal(c.Config, &config); err != nil {
		return nil, err
	}
	a, err := open(ctx, config.DSN, 1, sqlstreams.ClientConfig{})
	if err != nil {
		return nil, err
	}
	defer a.close(ctx)
	stream, err := sqlstreams.RegisterStream[payload.Order](ctx, a.client, streamName, nil)
	if err != nil {
		return nil, err
	}
	order, err := payload.New(1, config.Size)
	if err != nil {
		return nil, err
	}
	producer := stream.Producer(nil)
	c.Ready()
	for ctx.Err() == nil {
		if _, err := producer.Produce(ctx, order, nil); err != nil {
			if ctx.Err() != nil {
				break
			}
			return nil, err
		}
		c.Count.Add(1)
	}
	return nil, nil
}

// Ways to produce one message.
const (
	ByProduce = "Produce"
	ByInTx    = "InTx"
	ByTx      = "ProduceTx"
)

// PickupConfig is what processes in SendRole and ReceiveRole are told.
type PickupConfig struct {
	DSN        string
	By         string
	PollOnly   bool
	Rate, Size int
}

func runSend(ctx context.Context, c *worker.Control) (any, error) {
	var config PickupConfig
	if err := json.Unmarshal(c.Config, &config); err != nil {
		return nil, err
	}
	a, err := open(ctx, config.DSN, 2, sqlstreams.ClientConfig{PollOnly: config.PollOnly})
	if err != nil {
		return nil, err
	}
	defer a.close(ctx)
	stream, err := sqlstreams.RegisterStream[payload.Order](ctx, a.client, streamName, nil)
	if err != nil {
		return nil, err
	}
	producer := stream.Producer(nil)
	produce := func(order *payload.Order) error {
		switch config.By {
		case ByProduce:
			_, err := producer.Produce(ctx, order, nil)
			return err
		case ByInTx:
			return a.client.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
				_, err := producer.ProduceTx(ctx, tx, order, nil)
				return err
			})
		case ByTx:
			return pgx.BeginFunc(ctx, a.pool, func(tx pgx.Tx) error {
				_, err := producer.ProduceTx(ctx, tx, order, nil)
				return err
			})
		}
		return fmt.Errorf("there is no way %q to produce", config.By)
	}
	var sent pickup.Times
	c.Ready()
	err = pickup.Steadily(ctx, config.Rate, func(seq int64) error {
		order, err := payload.New(seq, config.Size)
		if err != nil {
			return err
		}
		if err := produce(order); err != nil {
			return err
		}
		sent.NoteAt(seq, time.Now())
		c.Count.Add(1)
		return nil
	})
	return sent.All(), err
}

func runReceive(ctx context.Context, c *worker.Control) (any, error) {
	var config PickupConfig
	if err := json.Unmarshal(c.Config, &config); err != nil {
		return nil, err
	}
	a, err := open(ctx, config.DSN, 2, sqlstreams.ClientConfig{PollOnly: config.PollOnly})
	if err != nil {
		return nil, err
	}
	defer a.close(ctx)
	stream, err := sqlstreams.RegisterStream[payload.Order](ctx, a.client, streamName, nil)
	if err != nil {
		return nil, err
	}
	consumer, err := stream.RegisterConsumer(ctx, "receivers", nil)
	if err != nil {
		return nil, err
	}
	var seen pickup.Times
	c.Ready()
	err = consumer.Consume(ctx, func(_ context.Context, order *payload.Order) error {
		seen.Note(order.Seq)
		c.Count.Add(1)
		return nil
	}, nil)
	return seen.All(), err
}

// IdleConfig is what a process in IdleRole is told.
type IdleConfig struct {
	DSN             string
	Streams, Groups int // groups of each stream
}

// runIdle runs consumers for which there is nothing to do.
func runIdle(ctx context.Context, c *worker.Control) (any, error) {
	var config IdleConfig
	if err := json.Unmarshal(c.Config, &config); err != nil {
		return nil, err
	}
	a, err := open(ctx, config.DSN, 2, sqlstreams.ClientConfig{})
	if err != nil {
		return nil, err
	}
	defer a.close(ctx)
	var g errgroup.Group
	for i := range config.Streams {
		stream, err := sqlstreams.RegisterStream[payload.Order](ctx, a.client, idleStream(i), nil)
		if err != nil {
			return nil, err
		}
		for j := range config.Groups {
			consumer, err := stream.RegisterConsumer(ctx, fmt.Sprintf("group-%d", j+1), nil)
			if err != nil {
				return nil, err
			}
			g.Go(func() error {
				return consumer.Consume(ctx, func(context.Context, *payload.Order) error { return nil }, nil)
			})
		}
	}
	c.Ready()
	return nil, g.Wait()
}

func idleStream(i int) string { return fmt.Sprintf("%s-idle-%d", streamName, i+1) }
