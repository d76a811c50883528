// Command gendocs writes the page of all diagnostics to the file that it is given.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/sqlstreams/sqlstreams/internal/diag"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gendocs FILE")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "gendocs:", err)
		os.Exit(1)
	}
}

func write(file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(diag.Document()), 0o644)
}
