//go:build !unix

package cli

import "os/exec"

// ownGroup does nothing: there is no shell for --exec either.
func ownGroup(*exec.Cmd) {}
