package pgserver

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"
)

// The tests run their own binary again to have processes that they can kill.
const (
	envRole = "SQLSTREAMS_PGSERVER_TEST_ROLE"
	envDir  = "SQLSTREAMS_PGSERVER_TEST_DIR"
)

func TestMain(m *testing.M) {
	switch role := os.Getenv(envRole); role {
	case "":
		os.Exit(m.Run())
	case "owner", "owner without watchdog":
		exit(ownServer(role == "owner"))
	case "template":
		exit(unpackTemplate())
	default:
		exit(fmt.Errorf("no such role: %s", role))
	}
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// ownServer starts a server, says where it is, and waits to be killed.
func ownServer(guarded bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := Start(ctx, Options{Parent: os.Getenv(envDir)})
	if err != nil {
		return err
	}
	if !guarded {
		if err := s.dog.cmd.Process.Kill(); err != nil {
			return err
		}
		if _, err := s.dog.cmd.Process.Wait(); err != nil {
			return err
		}
	}
	fmt.Printf("%d %s\n", s.PID(), s.Dir())
	<-ctx.Done() // the test kills us long before
	return ctx.Err()
}

// unpackTemplate does what eight test binaries do when they start at once on a
// machine that has no template yet.
func unpackTemplate() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	b, err := Find(ctx)
	if err != nil {
		return err
	}
	as, err := serverAccount()
	if err != nil {
		return err
	}
	f, err := newFolder(ctx, []string{os.Getenv(envDir)}, as)
	if err != nil {
		return err
	}
	if err := initData(ctx, b, f.path+"/data", as); err != nil {
		return err
	}
	if _, err := os.Stat(f.path + "/data/PG_VERSION"); err != nil {
		return err
	}
	return f.remove()
}
