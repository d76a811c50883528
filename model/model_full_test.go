//go:build full

package model

import (
	"os"
	"os/exec"
	"testing"
)

// The models hold, and each variant that must fail does. Needs spin and a C compiler.
func TestModels(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sh", "run.sh")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
}
