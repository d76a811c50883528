package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/sqlstreams/sqlstreams"
)

// atLeast is how many messages the stream has before one of them is deleted.
const atLeast = 10

func (d *demo) pause(ctx context.Context) error {
	for _, name := range groups() {
		if err := d.group(name).Pause(ctx, &sqlstreams.OperateOptions{Actor: "demo"}); err != nil {
			return err
		}
	}
	return nil
}

// loseOne deletes a message from the stream's table, which no correct run could do and the score must find. The groups are paused meanwhile, so nobody
// can have claimed it.
func (d *demo) loseOne(ctx context.Context) error {
	stream, err := d.place.client.GetStream(ctx, streamName)
	if err != nil {
		return err
	}
	log := fmt.Sprintf("{schema}.log_%d", stream.ID)
	if err := d.until(ctx, "there are messages to lose", func(ctx context.Context) (bool, error) {
		var n int
		_, err := d.place.one(ctx, `select count(*) from `+log, nil, &n)
		return n >= atLeast, err
	}); err != nil {
		return err
	}
	var id, payment int64
	there, err := d.place.one(ctx, `delete from `+log+` where id = (select (min(id) + max(id)) / 2 from `+log+`) returning id, (payload ->> 'id')::bigint`, nil, &id, &payment)
	if err != nil {
		return err
	}
	if !there {
		return errors.New("sabotage: there was no message to delete")
	}
	d.story.tell(say(alarm, "sabotage", "message %d, payment %d, deleted from the stream's table behind the product's back", id, payment))
	for _, name := range groups() {
		if err := d.group(name).Resume(ctx, &sqlstreams.OperateOptions{Actor: "demo"}); err != nil {
			return err
		}
	}
	// Ranges with a hole would make the later chapters harder to tell.
	return d.until(ctx, "the groups are beyond what was deleted", func(ctx context.Context) (bool, error) {
		for _, name := range groups() {
			status, err := d.group(name).Status(ctx)
			if err != nil || status.Committed < id {
				return false, err
			}
		}
		return true, nil
	})
}
