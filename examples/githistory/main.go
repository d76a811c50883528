// The program githistory shows SQLStreams on real input: the history of any git repository, one message for each file that a commit changed, its key the file's path.
//
//	go run ./examples/githistory list REPOSITORY | sqlstreams produce git-history --create --key-field path --idempotency-key-field id
//	go run ./examples/githistory fold
//	go run ./examples/githistory check REPOSITORY
//
// list prints the messages as JSON Lines. fold is the consumer group lines-per-folder: it adds up lines per folder in a table of its own, each message once however often it is delivered. check adds the same up
// directly from git and compares. A second group, from the command line alone:
//
//	sqlstreams consume git-history --group big-changes --exec 'jq -r "select(.added > 1000) | .path" >> big.txt' --until caught-up
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "githistory:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "list":
		return list(ctx, args[1], os.Stdout)
	case len(args) == 1 && args[0] == "fold":
		return fold(ctx, os.Getenv("DATABASE_URL"))
	case len(args) == 2 && args[0] == "check":
		return check(ctx, os.Getenv("DATABASE_URL"), args[1])
	}
	return errors.New("usage: githistory list REPOSITORY | fold | check REPOSITORY")
}
