package pgserver

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestVersionIsRead(t *testing.T) {
	for _, tc := range []struct {
		out     string
		major   int
		version string
		err     string
	}{
		{out: "postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)\n", major: 15, version: "15.13 (Debian 15.13-0+deb12u1)"},
		{out: "postgres (PostgreSQL) 18.0\n", major: 18, version: "18.0"},
		{out: "postgres (PostgreSQL) 18beta2", major: 18, version: "18beta2"},
		{out: "postgres (PostgreSQL) 13.4", err: "not supported"},
		{out: "postgres (PostgreSQL) 19devel", err: "not supported"},
		{out: "postgres (PostgreSQL) next", err: "does not start with a number"},
		{out: "postgres (Postgre", err: "is not what postgres --version prints"},
	} {
		major, version, err := parseVersion(tc.out)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("parseVersion(%q): error %v, want one with %q", tc.out, err, tc.err)
			}
			continue
		}
		if err != nil || major != tc.major || version != tc.version {
			t.Errorf("parseVersion(%q) = %d, %q, %v", tc.out, major, version, err)
		}
	}
}

// fakeBinaries makes programs that say they are of a version.
func fakeBinaries(t *testing.T, dir, version string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range programs() {
		script := "#!/bin/sh\necho '" + name + " (PostgreSQL) " + version + "'\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestNamedFolderIsTheOnlyOneLookedAt(t *testing.T) {
	dir := fakeBinaries(t, filepath.Join(t.TempDir(), "bin"), "16.2")
	t.Setenv(EnvBin, dir)
	b, err := Find(t.Context())
	if err != nil || b != (Binaries{Dir: dir, Major: 16, Version: "16.2"}) {
		t.Errorf("Find = %+v, %v", b, err)
	}

	t.Setenv(EnvBin, t.TempDir())
	if b, err := Find(t.Context()); err == nil || !strings.Contains(err.Error(), EnvBin) {
		t.Errorf("Find with an empty folder = %+v, %v", b, err)
	}
}

func TestPathOfLinksLeadsToTheRealFolder(t *testing.T) {
	root := t.TempDir()
	dir, err := filepath.EvalSymlinks(fakeBinaries(t, filepath.Join(root, "real"), "14.1"))
	if err != nil {
		t.Fatal(err)
	}
	links := filepath.Join(root, "links")
	if err := os.Mkdir(links, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range programs() {
		if err := os.Symlink(filepath.Join(dir, name), filepath.Join(links, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(EnvBin, "")
	t.Setenv("PATH", filepath.Join(root, "nowhere")+":"+links)
	b, err := find(t.Context(), nil)
	if err != nil || b.Dir != dir {
		t.Errorf("find = %+v, %v, want folder %s", b, err, dir)
	}
}

func TestFolderOfPgConfigIsUsed(t *testing.T) {
	root := t.TempDir()
	dir := fakeBinaries(t, filepath.Join(root, "bin"), "17.5")
	config := filepath.Join(root, "pg_config")
	if err := os.WriteFile(config, []byte("#!/bin/sh\necho "+dir+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv(EnvBin, "")
	t.Setenv("PATH", root)
	b, err := find(t.Context(), nil)
	if err != nil || b.Dir != dir || b.Major != 17 {
		t.Errorf("find = %+v, %v, want folder %s", b, err, dir)
	}
}

func TestNewestOfAPatternWins(t *testing.T) {
	root := t.TempDir()
	for _, version := range []string{"9", "14", "18", "15", "21"} {
		fakeBinaries(t, filepath.Join(root, version, "bin"), version+".3")
	}
	t.Setenv(EnvBin, "")
	t.Setenv("PATH", "")
	b, err := find(t.Context(), []string{filepath.Join(root, "none", "*"), filepath.Join(root, "*", "bin")})
	if err != nil || b.Major != 18 {
		t.Errorf("find = %+v, %v, want version 18", b, err)
	}
}

func TestNothingFoundSaysWhereItLooked(t *testing.T) {
	root := t.TempDir()
	fakeBinaries(t, filepath.Join(root, "13", "bin"), "13.3")
	t.Setenv(EnvBin, "")
	t.Setenv("PATH", root)
	_, err := find(t.Context(), []string{filepath.Join(root, "*", "bin"), "/no/such/*"})
	if !errors.Is(err, ErrNotFound) {
		t.Fatalf("error %v, want ErrNotFound", err)
	}
	for _, part := range []string{EnvBin + ": not set", "PATH: no folder", "no pg_config in PATH", "13.3 is not supported", "/no/such/*: no such folder", "install PostgreSQL"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q:\n%v", part, err)
		}
	}
}

func TestVersionsAreThoseListed(t *testing.T) {
	root := t.TempDir()
	a, b := fakeBinaries(t, filepath.Join(root, "a"), "14.1"), fakeBinaries(t, filepath.Join(root, "b"), "18.1")
	t.Setenv(EnvVersions, a+":"+b)
	all, err := Versions(t.Context())
	if err != nil || len(all) != 2 || all[0].Major != 14 || all[1].Major != 18 {
		t.Errorf("Versions = %+v, %v", all, err)
	}
	t.Setenv(EnvVersions, a+":"+root)
	if all, err := Versions(t.Context()); err == nil {
		t.Errorf("Versions with a folder that holds none = %+v", all)
	}
}
