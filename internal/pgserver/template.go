package pgserver

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// templateLayout changes when what is in a template does.
const templateLayout = 1

// initdbArgs makes UTF8 databases that sort by bytes, whatever the machine's
// locale is.
func initdbArgs(data string) []string {
	return []string{"-D", data, "-U", Superuser, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"}
}

// initData fills the data folder as initdb would, from the template.
func initData(ctx context.Context, b Binaries, data string, as *account) error {
	cache, err := cacheFolder()
	if err != nil {
		return err
	}
	name, err := templateName(b)
	if err != nil {
		return err
	}
	path := filepath.Join(cache, name)
	if err := ensureTemplate(ctx, b, path, as, filepath.Dir(data)); err != nil {
		return fmt.Errorf("make a template of the data folder: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	if err := unpack(f, data, as); err != nil {
		return fmt.Errorf("unpack %s: %w", path, err)
	}
	return nil
}

// cacheFolder returns the folder that holds the templates. Only this user may
// be able to write to it, as a server is run from what it holds.
func cacheFolder() (string, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("sqlstreams-templates-%d", os.Geteuid()))
	if user, err := os.UserCacheDir(); err == nil && filepath.IsAbs(user) {
		own := filepath.Join(user, "sqlstreams", "templates")
		if os.MkdirAll(own, 0o700) == nil {
			dir = own
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	uid, _, known := owner(info)
	if !info.IsDir() || !known || uid != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return "", fmt.Errorf("%s is not a folder that only this user can write to", dir)
	}
	return dir, nil
}

// templateName tells builds apart, an upgrade in place included.
func templateName(b Binaries) (string, error) {
	info, err := os.Stat(b.path("postgres"))
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s|%s|%d|%d", b.Dir, b.Version, info.Size(), info.ModTime().UnixNano()))
	return fmt.Sprintf("initdb-%d-%d-%x.tar", templateLayout, b.Major, sum[:8]), nil
}

// ensureTemplate makes the template unless it is there. Of many processes one
// makes it and the others wait; it gets its name when it is complete.
func ensureTemplate(ctx context.Context, b Binaries, path string, as *account, work string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	lock, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // closing gives the lock back
	if err := poll(ctx, func() (bool, error) { return tryLock(lock) }); err != nil {
		return fmt.Errorf("wait for the process that makes it: %w", err)
	}
	if _, err := os.Stat(path); err == nil {
		return nil
	}

	data := filepath.Join(work, "template")
	cmd := exec.CommandContext(ctx, b.path("initdb"), initdbArgs(data)...)
	cmd.Dir = work
	cmd.Env = environment(work)
	cmd.SysProcAttr = sysProcAttr(as)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	half := path + ".new"
	if err := packTo(half, data); err != nil {
		return errors.Join(err, os.Remove(half))
	}
	if err := os.Rename(half, path); err != nil {
		return err
	}
	return os.RemoveAll(data)
}

// packTo writes a folder as a tar file, on disk when it returns.
func packTo(path, dir string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	w := tar.NewWriter(f)
	err = w.AddFS(os.DirFS(dir))
	if err == nil {
		err = w.Close()
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// unpack makes dir from a tar stream of plain files and folders, and gives all
// of it to the account.
func unpack(r io.Reader, dir string, as *account) error {
	if err := makeDir(dir, as); err != nil {
		return err
	}
	in := tar.NewReader(r)
	for {
		h, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		name := filepath.Clean(h.Name)
		if name == "." {
			continue
		}
		if !filepath.IsLocal(name) {
			return fmt.Errorf("%q is outside the folder", h.Name)
		}
		path := filepath.Join(dir, name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = makeDir(path, as)
		case tar.TypeReg:
			err = unpackFile(in, path, as)
		default:
			err = fmt.Errorf("%q is neither a file nor a folder", h.Name)
		}
		if err != nil {
			return err
		}
	}
}

func makeDir(path string, as *account) error {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return as.own(path)
}

func unpackFile(r io.Reader, path string, as *account) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return as.own(path)
}

// environment is what the server's programs see: this process's own, less what
// would steer them.
func environment(home string) []string {
	env := slices.DeleteFunc(os.Environ(), func(e string) bool {
		return strings.HasPrefix(e, "PG") || strings.HasPrefix(e, "LC_") ||
			strings.HasPrefix(e, "LANG") || strings.HasPrefix(e, "HOME=")
	})
	return append(env, "LC_ALL=C", "HOME="+home)
}
