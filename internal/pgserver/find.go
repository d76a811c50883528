package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// The major versions of PostgreSQL that SQLStreams supports.
const (
	MinMajor = 14
	MaxMajor = 18
)

// The environment variables that say where binaries are.
const (
	// EnvBin names one folder; nothing else is looked at when it is set.
	EnvBin = "SQLSTREAMS_PG_BIN"
	// EnvVersions names several, separated by colons, for tests that run on each.
	EnvVersions = "SQLSTREAMS_PG_VERSIONS"
)

// ErrNotFound is in the chain of Find's error when no binaries were found.
var ErrNotFound = errors.New("no usable PostgreSQL found")

// Binaries is one installation of PostgreSQL's server programs.
type Binaries struct {
	Dir     string // the folder that holds postgres, initdb and pg_ctl
	Major   int    // 14 to 18
	Version string // in full, as "15.13 (Debian 15.13-0+deb12u1)"
}

func (b Binaries) path(program string) string { return filepath.Join(b.Dir, program) }

// programs are those that a folder must hold to count. What clients use
// (psql, pg_basebackup) is often packed apart and not needed here.
func programs() []string { return []string{"postgres", "initdb", "pg_ctl"} }

// usualFolders are where packages put the server's programs without adding
// them to PATH. Among the matches of one pattern the newest wins.
func usualFolders() []string {
	return []string{
		"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
		"/usr/pgsql-*/bin",          // Fedora and RHEL, PostgreSQL's own packages
		"/usr/libexec/postgresql*",  // Alpine
		"/usr/bin",                  // Fedora and RHEL
		"/opt/homebrew/opt/postgresql*/bin",
		"/usr/local/opt/postgresql*/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
	}
}

// Find looks for PostgreSQL's server programs: the folder that SQLSTREAMS_PG_BIN
// names, else PATH, else what pg_config reports, else the usual folders. Its
// error lists what was looked at and why it did not do.
func Find(ctx context.Context) (Binaries, error) { return find(ctx, usualFolders()) }

func find(ctx context.Context, patterns []string) (Binaries, error) {
	if dir := os.Getenv(EnvBin); dir != "" {
		b, err := FromDir(ctx, dir)
		if err != nil {
			return Binaries{}, fmt.Errorf("%s: %w", EnvBin, err)
		}
		return b, nil
	}
	looked := []string{EnvBin + ": not set"}

	b, why := findInPath(ctx)
	if why == "" {
		return b, nil
	}
	looked = append(looked, "PATH: "+why)

	b, why = findByConfig(ctx)
	if why == "" {
		return b, nil
	}
	looked = append(looked, "pg_config --bindir: "+why)

	for _, pattern := range patterns {
		b, why = findByPattern(ctx, pattern)
		if why == "" {
			return b, nil
		}
		looked = append(looked, pattern+": "+why)
	}
	return Binaries{}, fmt.Errorf("%w; looked at:\n  %s\ninstall PostgreSQL %d to %d with its server programs (make test does that), or set %s to the folder that holds %s",
		ErrNotFound, strings.Join(looked, "\n  "), MinMajor, MaxMajor, EnvBin, strings.Join(programs(), ", "))
}

// findInPath returns the first folder of PATH that will do, or why none does.
func findInPath(ctx context.Context) (Binaries, string) {
	var reasons []string
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if dir == "" || missing(dir) != "" {
			continue
		}
		// A folder of links into the real one lacks the programs beside them.
		if real, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres")); err == nil && missing(filepath.Dir(real)) == "" {
			dir = filepath.Dir(real)
		}
		b, err := FromDir(ctx, dir)
		if err == nil {
			return b, ""
		}
		reasons = append(reasons, err.Error())
	}
	if len(reasons) == 0 {
		return Binaries{}, "no folder in it holds " + strings.Join(programs(), ", ")
	}
	return Binaries{}, strings.Join(reasons, "; ")
}

func findByConfig(ctx context.Context) (Binaries, string) {
	config, err := exec.LookPath("pg_config")
	if err != nil {
		return Binaries{}, "no pg_config in PATH"
	}
	out, err := run(ctx, config, "--bindir")
	if err != nil {
		return Binaries{}, err.Error()
	}
	b, err := FromDir(ctx, strings.TrimSpace(out))
	if err != nil {
		return Binaries{}, err.Error()
	}
	return b, ""
}

func findByPattern(ctx context.Context, pattern string) (Binaries, string) {
	dirs, err := filepath.Glob(pattern)
	if err != nil {
		return Binaries{}, err.Error()
	}
	if len(dirs) == 0 {
		return Binaries{}, "no such folder"
	}
	var best Binaries
	var reasons []string
	for _, dir := range dirs {
		b, err := FromDir(ctx, dir)
		switch {
		case err != nil:
			reasons = append(reasons, err.Error())
		case b.Major > best.Major:
			best = b
		}
	}
	if best.Major == 0 {
		return Binaries{}, strings.Join(reasons, "; ")
	}
	return best, ""
}

// FromDir takes the binaries in dir, after a look at their version.
func FromDir(ctx context.Context, dir string) (Binaries, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return Binaries{}, fmt.Errorf("folder of binaries: %w", err)
	}
	if name := missing(dir); name != "" {
		return Binaries{}, fmt.Errorf("%s holds no program %s", dir, name)
	}
	out, err := run(ctx, filepath.Join(dir, "postgres"), "--version")
	if err != nil {
		return Binaries{}, err
	}
	major, version, err := parseVersion(out)
	if err != nil {
		return Binaries{}, fmt.Errorf("%s: %w", dir, err)
	}
	return Binaries{Dir: dir, Major: major, Version: version}, nil
}

// Versions returns the installations that SQLSTREAMS_PG_VERSIONS lists, for
// tests that run on each; where it is not set, the one that Find finds.
func Versions(ctx context.Context) ([]Binaries, error) {
	list := filepath.SplitList(os.Getenv(EnvVersions))
	if len(list) == 0 {
		b, err := Find(ctx)
		if err != nil {
			return nil, err
		}
		return []Binaries{b}, nil
	}
	var all []Binaries
	for _, dir := range list {
		b, err := FromDir(ctx, dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", EnvVersions, err)
		}
		all = append(all, b)
	}
	return all, nil
}

// missing names the first program that dir does not hold, "" if none.
func missing(dir string) string {
	for _, name := range programs() {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			return name
		}
	}
	return ""
}

// parseVersion reads what postgres --version prints:
// "postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)", "… 19beta1".
func parseVersion(out string) (major int, version string, err error) {
	_, version, ok := strings.Cut(strings.TrimSpace(out), "(PostgreSQL) ")
	if !ok {
		return 0, "", fmt.Errorf("%q is not what postgres --version prints", out)
	}
	digits := version
	if i := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		digits = version[:i]
	}
	major, err = strconv.Atoi(digits)
	if err != nil {
		return 0, "", fmt.Errorf("version %q does not start with a number", version)
	}
	if major < MinMajor || major > MaxMajor {
		return 0, "", fmt.Errorf("version %s is not supported (%d to %d are)", version, MinMajor, MaxMajor)
	}
	return major, version, nil
}

// run runs a program that only reports something.
func run(ctx context.Context, program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
	}
	return string(out), nil
}
