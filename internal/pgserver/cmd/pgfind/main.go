// Command pgfind prints the folder of PostgreSQL's server programs that the
// tests will use, or says on standard error where it looked and exits with 1.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/sqlstreams/sqlstreams/internal/pgserver"
)

func main() {
	b, err := pgserver.Find(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, "pgfind:", err)
		os.Exit(1)
	}
	fmt.Println(b.Dir)
}
