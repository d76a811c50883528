package pgserver

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
)

// account is the user that servers run as when this process is root's. A nil
// account stands for this process's own user.
type account struct {
	name     string
	uid, gid int
}

// serverAccount returns whom to run servers as.
func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{Superuser, "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.Atoi(u.Uid)
		gid, errGID := strconv.Atoi(u.Gid)
		if err := errors.Join(errUID, errGID); err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		return &account{name: name, uid: uid, gid: gid}, nil
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is neither a user postgres nor nobody to run it as")
}

// own gives a file or folder to the account.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Lchown(path, a.uid, a.gid)
}

// reach says whether the account can get to what is inside dir. It looks at
// the permission bits only, as that is what keeps a dropped root out.
func (a *account) reach(dir string) error {
	if a == nil {
		return nil
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for {
		info, err := os.Stat(dir)
		if err != nil {
			return err
		}
		need := os.FileMode(0o001)
		if uid, gid, ok := owner(info); ok {
			switch {
			case uid == a.uid:
				need = 0o100
			case gid == a.gid:
				need = 0o010
			}
		}
		if info.Mode()&need == 0 {
			return fmt.Errorf("%s is closed to user %s", dir, a.name)
		}
		up := filepath.Dir(dir)
		if up == dir {
			return nil
		}
		dir = up
	}
}
