package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sqlstreams/sqlstreams/bench/internal/measure"
	"github.com/sqlstreams/sqlstreams/bench/internal/payload"
	"github.com/sqlstreams/sqlstreams/bench/internal/plain"
	"github.com/sqlstreams/sqlstreams/bench/internal/rig"
)

func main() {
	ctx := context.Background()
	s, err := rig.Start(ctx, "512MB")
	if err != nil {
		panic(err)
	}
	defer s.Close()
	set, _ := payload.NewSet(1000, 1000)
	m := &rig.Meter{Server: s}
	for r := range 3 {
		for _, c := range []plain.Copy{{1000, "json", true, set}, {1000, "json", false, set}, {1000, "bytea", false, set}, {250, "json", true, set}, {250, "json", false, set}, {5000, "json", false, set}} {
			v, err := c.Run(ctx, m, "x", measure.Window{time.Second, 5 * time.Second})
			fmt.Println(r, c.Batch, c.Column, c.Encode, v, err)
		}
	}
}
