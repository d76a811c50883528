// Command sqlstreams looks after streams, consumer groups and the schema from a terminal or a script.
package main

import (
	"context"
	"os"

	"github.com/sqlstreams/sqlstreams/internal/cli"
)

func main() {
	os.Exit(cli.Main(context.Background(), os.Args[1:], cli.OSEnv()))
}
