package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"path"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Change is one file that a commit changed.
type Change struct {
	ID      string `json:"id"` // of the change: what makes producing it again harmless
	Commit  string `json:"commit"`
	At      string `json:"at"`
	Author  string `json:"author"`
	Path    string `json:"path"`
	Folder  string `json:"folder"`
	Added   int    `json:"added"`
	Deleted int    `json:"deleted"`
	Binary  bool   `json:"binary,omitempty"`
}

// changes calls f for each change of the repository's history, the oldest first.
func changes(ctx context.Context, repository string, f func(*Change) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, "git", "-C", repository, "log", "--reverse", "--numstat", "--no-renames", "-z", "--format=%x01%H%x00%aI%x00%aN")
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	failed := parse(out, f)
	if failed != nil {
		cancel() // git would wait for a reader
	}
	if err := cmd.Wait(); failed == nil && err != nil {
		return fmt.Errorf("git log: %w: %s", err, bytes.TrimSpace(complaint.Bytes()))
	}
	return failed
}

// parse reads what git log writes: fields that end in NUL. Three begin a commit, the first marked by U+0001; the others are "added TAB deleted TAB path" each.
func parse(r io.Reader, f func(*Change) error) error {
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 0, 64<<10), 1<<20)
	in.Split(untilNUL)
	var commit, at, author string
	for in.Scan() {
		field := strings.TrimPrefix(in.Text(), "\n")
		if hash, ok := strings.CutPrefix(field, "\x01"); ok {
			commit, at, author = hash, "", ""
			for _, into := range []*string{&at, &author} {
				if !in.Scan() {
					return fmt.Errorf("commit %s ends early", hash)
				}
				*into = in.Text()
			}
			continue
		}
		parts := strings.SplitN(field, "\t", 3)
		if len(parts) != 3 {
			continue // an empty field between commits
		}
		name := printable(parts[2])
		c := &Change{ID: commit + " " + name, Commit: commit, At: at, Author: author, Path: name, Folder: printable(path.Dir(parts[2])), Binary: parts[0] == "-"}
		c.Added, _ = strconv.Atoi(parts[0]) // "-" for a binary file: no lines
		c.Deleted, _ = strconv.Atoi(parts[1])
		if err := f(c); err != nil {
			return err
		}
	}
	return in.Err()
}

// printable returns a path as it is, or, if it holds what a message key may not, quoted as git would show it.
func printable(path string) string {
	if !utf8.ValidString(path) || strings.ContainsFunc(path, unicode.IsControl) {
		return strconv.QuoteToASCII(path)
	}
	return path
}

func untilNUL(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

func list(ctx context.Context, repository string, w io.Writer) error {
	out := bufio.NewWriterSize(w, 1<<16)
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	if err := changes(ctx, repository, func(c *Change) error { return lines.Encode(c) }); err != nil {
		return err
	}
	return out.Flush()
}
