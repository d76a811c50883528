package cli

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sqlstreams/sqlstreams/internal/pgtest"
)

// envMain makes the test binary the program, for tests that need a process to send a signal to.
const envMain = "SQLSTREAMS_TEST_IS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(envMain) != "" {
		os.Exit(Main(context.Background(), os.Args[1:], OSEnv()))
	}
	pgtest.Main(m)
}

// Each script has an empty database under DATABASE_URL. In scripts:
//
//	sqlstreams ARGS...   runs a command line, which must end with exit code 0
//	fails ARGS...        1
//	usage ARGS...        2
//	input FILE           is the standard input of the next command line
//	sql STATEMENT        runs on the database (sql FILE too: several statements)
//
// TTY=1 in the environment makes all three streams terminals.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("DATABASE_URL", pgtest.NewDatabase(t).DSN)
			env.Setenv("ADDR", pgtest.SharedServer(t).Addr())
			env.Setenv("TZ", "UTC")
			env.Values[inputKey{}] = &input{}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"sqlstreams": expecting(ExitDone),
			"fails":      expecting(ExitFailed),
			"usage":      expecting(ExitUsage),
			"input":      func(ts *testscript.TestScript, _ bool, args []string) { nextInput(ts).text = ts.ReadFile(args[0]) },
			"sql":        runSQL,
		},
		RequireUniqueNames: true,
	})
}

type inputKey struct{}

type input struct{ text string }

func nextInput(ts *testscript.TestScript) *input { return ts.Value(inputKey{}).(*input) }

// expecting runs a command line in this process.
func expecting(code int) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		if neg {
			ts.Fatalf("write fails or usage instead of !")
		}
		in := nextInput(ts)
		stdin := in.text
		in.text = ""
		for i := range args {
			if strings.HasPrefix(args[i], "@") {
				args[i] = ts.MkAbs(args[i][1:])
			}
		}
		// A command must not wait for ever: then the script's log says more than the end of all tests.
		ctx, cancel := context.WithTimeout(context.Background(), scriptTimeout)
		defer cancel()
		got := run(ctx, args, Env{Stdin: strings.NewReader(stdin), Stdout: ts.Stdout(), Stderr: ts.Stderr(), Getenv: ts.Getenv, Terminal: func(any) bool { return ts.Getenv("TTY") != "" }})
		if got != code {
			ts.Fatalf("exit code %d, want %d", got, code)
		}
	}
}

func runSQL(ts *testscript.TestScript, _ bool, args []string) {
	statement := args[0]
	if strings.HasSuffix(statement, ".sql") || statement == "stdout" {
		statement = ts.ReadFile(statement)
	}
	ctx, cancel := context.WithTimeout(context.Background(), scriptTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, ts.Getenv("DATABASE_URL"))
	ts.Check(err)
	defer conn.Close(ctx) //nolint:errcheck // what was asked of it is known by then
	_, err = conn.PgConn().Exec(ctx, statement).ReadAll()
	ts.Check(err)
}

// process is the program running by itself.
type process struct {
	*exec.Cmd
	in     io.WriteCloser
	out    io.Reader
	stderr bytes.Buffer
}

func start(t *testing.T, db *pgtest.Database, args ...string) *process {
	t.Helper()
	return startWith(t, []string{"DATABASE_URL=" + db.DSN}, args...)
}

func startWith(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.CommandContext(t.Context(), self, args...)}
	p.Env = append(append(os.Environ(), envMain+"=1"), env...)
	p.Stderr = &p.stderr
	if p.in, err = p.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if p.out, err = p.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// interrupt sends what Ctrl-C sends, and awaits the end.
func (p *process) interrupt(t *testing.T, want int) string {
	t.Helper()
	if err := p.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = p.Wait() // the exit code says it
	if got := p.ProcessState.ExitCode(); got != want {
		t.Errorf("exit code %d, want %d; standard error:\n%s", got, want, p.stderr.String())
	}
	return p.stderr.String()
}

// cli runs a command line that must succeed, and returns its output.
func cli(t *testing.T, db *pgtest.Database, args ...string) string {
	t.Helper()
	var out, stderr bytes.Buffer
	getenv := func(name string) string {
		if name == "DATABASE_URL" {
			return db.DSN
		}
		return ""
	}
	if code := run(t.Context(), args, Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &stderr, Getenv: getenv, Terminal: func(any) bool { return false }}); code != 0 {
		t.Fatalf("%q: exit code %d\n%s", args, code, stderr.String())
	}
	return out.String()
}
