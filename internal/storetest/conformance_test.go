package storetest_test

import (
	"testing"

	"github.com/sqlstreams/sqlstreams/internal/storetest"
)

func TestMemoryConforms(t *testing.T) {
	storetest.Conformance(t, func(*testing.T) storetest.Harness { return storetest.NewMemoryHarness() })
}
