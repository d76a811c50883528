package reference_test

import (
	"testing"

	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
