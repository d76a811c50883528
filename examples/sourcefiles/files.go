package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// sourceFile is a file of the Go installation.
type sourceFile struct {
	path string // below the installation's root, with slashes
	size int64
}

// fileSet is what the demo is about.
type fileSet struct {
	root string
	list []sourceFile // sorted by path
}

func (f *fileSet) bytes() (n int64) {
	for _, file := range f.list {
		n += file.size
	}
	return n
}

// findFiles lists the Go and assembler files below src and test of the Go installation; with a limit that many, spread evenly, so that few files
// still are of many packages.
func findFiles(ctx context.Context, limit int) (*fileSet, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("ask go for its GOROOT: %w", err)
	}
	files := &fileSet{root: strings.TrimSpace(string(out))}
	for _, below := range []string{"src", "test"} {
		err := filepath.WalkDir(filepath.Join(files.root, below), func(name string, entry fs.DirEntry, err error) error {
			// A packaged Go may come without its tests.
			if errors.Is(err, fs.ErrNotExist) && below == "test" {
				return nil
			}
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			if ext := filepath.Ext(name); ext != ".go" && ext != ".s" {
				return nil
			}
			info, err := entry.Info()
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(files.root, name)
			if err != nil {
				return err
			}
			files.list = append(files.list, sourceFile{path: filepath.ToSlash(rel), size: info.Size()})
			return ctx.Err()
		})
		if err != nil {
			return nil, fmt.Errorf("list the source files: %w", err)
		}
	}
	if all := files.list; limit > 0 && limit < len(all) {
		files.list = make([]sourceFile, 0, limit)
		for i := range limit {
			files.list = append(files.list, all[i*len(all)/limit])
		}
	}
	if len(files.list) < fewest {
		return nil, fmt.Errorf("only %d source files in %s", len(files.list), files.root)
	}
	return files, nil
}

// readSource reads a file by its path below the root.
func readSource(root, file string) ([]byte, error) {
	if !filepath.IsLocal(filepath.FromSlash(file)) {
		return nil, fmt.Errorf("%q is not inside the Go installation", file)
	}
	return os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
}

// folderOf is the top-level package folder: net for src/net/http/server.go, test for everything below test.
func folderOf(file string) string {
	parts := strings.SplitN(path.Dir(file), "/", 3)
	if len(parts) > 1 && parts[0] == "src" {
		return parts[1]
	}
	return parts[0]
}

func countLines(content []byte) int64 {
	n := int64(bytes.Count(content, []byte("\n")))
	if len(content) > 0 && content[len(content)-1] != '\n' {
		n++
	}
	return n
}

// importsOf lists what a Go file imports. Some files of the Go installation are wrong on purpose: of those it is what stands before the mistake.
func importsOf(file string, content []byte) []string {
	imports := []string{}
	if path.Ext(file) != ".go" {
		return imports
	}
	syntax, _ := parser.ParseFile(token.NewFileSet(), file, content, parser.ImportsOnly|parser.SkipObjectResolution)
	if syntax == nil {
		return imports
	}
	for _, spec := range syntax.Imports {
		// Some of what is wrong there are names that are no text, which Postgres would refuse; quoted they are.
		if name, err := strconv.Unquote(spec.Path.Value); err == nil {
			imports = append(imports, strings.Trim(strconv.QuoteToASCII(name), `"`))
		}
	}
	return imports
}
