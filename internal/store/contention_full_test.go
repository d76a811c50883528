//go:build full

package store

import "testing"

// As TestNoDeadlockSurfaces, for about a minute.
func TestNoDeadlockSurfacesForLong(t *testing.T) { contend(t, 4000) }
