package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// Exit codes.
const (
	ExitDone   = 0 // done
	ExitFailed = 1 // it failed, was interrupted before its end, or what was asked for is absent
	ExitUsage  = 2 // the command line cannot be understood or is not allowed
)

// Env is what a run gets from outside.
type Env struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// Getenv reads the environment. (The PG* variables are read by the driver, from the process's own.)
	Getenv func(string) string
	// Terminal reports whether one of the three streams above is a terminal.
	Terminal func(stream any) bool
}

// OSEnv is the process's own environment.
func OSEnv() Env {
	return Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Terminal: isTerminal}
}

// isTerminal: a character device that is not the null device. Others, such as /dev/zero, are taken for a terminal, which harms nobody.
func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}

// Main runs one command line, without the program's name, and returns its exit code. An interrupt or SIGTERM ends the command in good order; a second one ends the
// process at once.
func Main(ctx context.Context, args []string, env Env) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	// From then on signals do again what they do by default.
	context.AfterFunc(ctx, stop)
	return run(ctx, args, env)
}

func newApp(env Env) *app {
	a := &app{env: env, outTerminal: env.Terminal(env.Stdout), errTerminal: env.Terminal(env.Stderr)}
	a.env.Stdout, a.env.Stderr = &lockedWriter{w: env.Stdout}, &lockedWriter{w: env.Stderr}
	return a
}

// lockedWriter lets handlers, the commands that they run, and the log write one after the other.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func run(ctx context.Context, args []string, env Env) int {
	a := newApp(env)
	root := newRoot(a)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	return a.finish(cmd, err)
}
