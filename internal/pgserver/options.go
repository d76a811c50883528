package pgserver

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Superuser is the role that every server starts with.
const Superuser = "postgres"

// Options are the choices for one server. The zero value is a quick server
// with the binaries that Find finds.
type Options struct {
	// Binaries to run. Zero: those that Find finds.
	Binaries Binaries
	// Port to listen on; if it is taken the start fails. Default: one that is
	// free.
	Port int
	// Settings are server settings by name, which win over the package's own.
	// port and unix_socket_directories are not to be set here. Default: none.
	Settings map[string]string
	// HBA lines come first in pg_hba.conf, before those that let everybody in
	// from loopback and the socket without a password. For a role with a
	// password: "host all app 127.0.0.1/32 scram-sha-256". Default: none.
	HBA []string
	// Files are put into the data folder before the first start, readable by
	// the server only: certificates, for example. By name. Default: none.
	Files map[string][]byte
	// Durable leaves fsync, full_page_writes and the rest at the server's own
	// defaults. Default: off, see the package comment.
	Durable bool
	// Parent is the folder in which the server's folder is made. Default:
	// /dev/shm, unless the server is Durable, TMPDIR is set or less than 4 GiB
	// are free there or in memory; then os.TempDir or, where that does not do
	// (a path too long for a socket, or not open to the user that the server
	// runs as), /tmp or /var/tmp.
	Parent string
	// Log gets what the server logs, as it comes, beside the file server.log
	// in the server's folder. A writer that blocks blocks the server.
	// Default: only the file.
	Log io.Writer
}

// baseSettings are the package's own, before Options.Settings.
func baseSettings(durable bool) map[string]string {
	s := map[string]string{
		"listen_addresses":          "127.0.0.1",
		"max_connections":           "200",
		"wal_level":                 "replica",
		"max_prepared_transactions": "20",
		"max_wal_senders":           "10",
		// A standby that was down for a while finds what it missed.
		"wal_keep_size": "128MB",
		// A test that only works in the zone of its author should fail.
		"timezone":        "UTC",
		"log_timezone":    "UTC",
		"log_line_prefix": "%m [%p] %q%a ",
		// The log is one file that this package follows.
		"logging_collector": "off",
		"log_destination":   "stderr",
	}
	if !durable {
		s["fsync"] = "off"
		s["full_page_writes"] = "off"
		// The folder may be in memory.
		s["max_wal_size"] = "256MB"
		// Inside the folder it goes away with it, also after kill -9, and needs
		// no /dev/shm, which containers keep small.
		s["dynamic_shared_memory_type"] = "mmap"
	}
	return s
}

// renderSettings writes settings as lines of postgresql.conf, sorted.
func renderSettings(settings map[string]string) (string, error) {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.") != "" {
			return "", fmt.Errorf("%q is not the name of a server setting", name)
		}
		fmt.Fprintf(&b, "%s = %s\n", name, quoteSetting(settings[name]))
	}
	return b.String(), nil
}

// quoteSetting quotes a value for postgresql.conf.
func quoteSetting(value string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", "''", "\n", `\n`).Replace(value) + "'"
}

// renderHBA writes pg_hba.conf.
func renderHBA(first []string) string {
	lines := append(slices.Clone(first),
		"local all         all              trust",
		"local replication all              trust",
		"host  all         all 127.0.0.1/32 trust",
		"host  replication all 127.0.0.1/32 trust",
		"host  all         all ::1/128      trust",
	)
	return strings.Join(lines, "\n") + "\n"
}

// writeConfig adds to the configuration that initdb or the primary left in the
// data folder. The later of two lines for one setting wins.
func writeConfig(data string, as *account, settings []map[string]string, opts Options, replaceHBA bool) error {
	var text strings.Builder
	for _, group := range settings {
		lines, err := renderSettings(group)
		if err != nil {
			return err
		}
		text.WriteString(lines)
	}
	if err := appendFile(filepath.Join(data, "postgresql.conf"), "\n"+text.String()); err != nil {
		return err
	}
	if replaceHBA {
		if err := writeFile(filepath.Join(data, "pg_hba.conf"), []byte(renderHBA(opts.HBA)), as); err != nil {
			return err
		}
	}
	for name, content := range opts.Files {
		if !filepath.IsLocal(name) {
			return fmt.Errorf("file %q is not inside the data folder", name)
		}
		if err := writeFile(filepath.Join(data, name), content, as); err != nil {
			return err
		}
	}
	return nil
}

func appendFile(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(text); err != nil {
		_ = f.Close() // the write's error says more
		return err
	}
	return f.Close()
}

// writeFile writes a file that only the server's user may read.
func writeFile(path string, content []byte, as *account) error {
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return err
	}
	return as.own(path)
}
