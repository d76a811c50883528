// Command sourcefiles is the demo of SQLStreams: a consumer is killed with SIGKILL in the middle of its work, and nothing is lost.
//
// Every source file of the Go installation becomes one message. Two consumer groups read them: count-lines, shared by two processes, and
// count-imports in a third. When count-lines has handled two fifths of the files one of its processes is killed; the other takes its work over
// once the lease has ended. Then the files are counted again without any stream, and both counts must agree file by file.
//
//	go run ./examples/sourcefiles                     ends with "lost 0" and status 0
//	go run ./examples/sourcefiles -sabotage lose-one  a message is deleted behind the product's back: "lost 1" and status 1
//
// It uses the database that DATABASE_URL names, in schemas of its own that it drops at the end, else a throw-away server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

const (
	exitLost        = 1 // also for what failed
	exitUsage       = 2
	exitInterrupted = 130
)

// settings are what the command line says.
type settings struct {
	files    int // 0: all
	sabotage string
}

const loseOne = "lose-one"

// fewest is how many files make a demo: with fewer the consumers are through before one of them can be killed.
const fewest = 100

func main() {
	if len(os.Args) > 1 && os.Args[1] == childCommand {
		os.Exit(childMain(os.Args[2:]))
	}
	os.Exit(parentMain(os.Args[1:]))
}

func parentMain(args []string) int {
	set, usage, err := parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Print(usage)
		return 0
	case err != nil:
		fmt.Fprintf(os.Stderr, "sourcefiles: %v\n%s", err, usage)
		return exitUsage
	}
	// A closed terminal is a reason to clean up as much as Ctrl-C is.
	ctx, restore := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer restore()
	// The second Ctrl-C ends the program at once; the children and the server notice and go as well.
	context.AfterFunc(ctx, restore)

	tale := newStory(os.Stdout)
	lost, err := run(ctx, tale, set)
	tale.clear()
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "interrupted; consumers, tables and server are removed")
		if err != nil && !errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, err)
		}
		return exitInterrupted
	case err != nil:
		fmt.Fprintln(os.Stderr, "sourcefiles:", err)
		return exitLost
	case lost:
		return exitLost
	}
	return 0
}

// parse reads the command line; usage is the text that explains it.
func parse(args []string) (set settings, usage string, err error) {
	var help strings.Builder
	flags := flag.NewFlagSet("sourcefiles", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.IntVar(&set.files, "files", 0, fmt.Sprintf("how many files, spread evenly over all there are; at least %d (default all)", fewest))
	flags.StringVar(&set.sabotage, "sabotage", "", "what to break, to see that it is noticed: "+loseOne+" deletes one message from the stream's table")
	err = flags.Parse(args)
	switch {
	case err != nil:
	case flags.NArg() > 0:
		err = fmt.Errorf("unknown argument %q", flags.Arg(0))
	case set.sabotage != "" && set.sabotage != loseOne:
		err = fmt.Errorf("unknown sabotage %q", set.sabotage)
	case set.files != 0 && set.files < fewest:
		err = fmt.Errorf("-files must be at least %d", fewest)
	}
	help.WriteString("usage: sourcefiles [flags]\n")
	flags.SetOutput(&help)
	flags.PrintDefaults()
	return set, help.String(), err
}

// run tells the whole story; true: something is not as it should be.
func run(ctx context.Context, tale *story, set settings) (lost bool, err error) {
	tale.title("One message for each source file of the Go installation, two groups that count, one SIGKILL.")
	files, err := findFiles(ctx, set.files)
	if err != nil {
		return false, err
	}
	tale.say("files", "%s, %s, from the Go installation in %s", count(len(files.list)), megabytes(files.bytes()), files.root)

	place, err := openPlace(ctx, tale)
	if err != nil {
		return false, err
	}
	// Even an interrupted demo leaves nothing behind.
	defer func() { err = errors.Join(err, place.close()) }()

	if err := produceFiles(ctx, tale, place, files); err != nil {
		return false, err
	}
	if set.sabotage == loseOne {
		if err := sabotage(ctx, tale, place); err != nil {
			return false, err
		}
	}
	if err := consumeFiles(ctx, tale, place, files); err != nil {
		return false, err
	}
	return compare(ctx, tale, place, files)
}
