package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// counted is what is known of one file.
type counted struct {
	lines   int64
	imports []string
}

// totals sums files up.
type totals struct {
	lines, imports int64
	folders        map[string]int64 // lines
	imported       map[string]int64 // how often
}

func newTotals() *totals { return &totals{folders: map[string]int64{}, imported: map[string]int64{}} }

func (t *totals) addLines(path string, lines int64) {
	t.lines += lines
	t.folders[folderOf(path)] += lines
}

func (t *totals) addImports(imports []string) {
	t.imports += int64(len(imports))
	for _, name := range imports {
		t.imported[name]++
	}
}

// handledLines and handledImports are rows of the application's tables.
type handledLines struct {
	Path    string
	Lines   int64
	Handled int
}

type handledImports struct {
	Path    string
	Imports []string
	Handled int
}

// score is what came of the run.
type score struct {
	lines, imports int // files handled by each group
	again          int
	lost           int // files that at least one group has not handled
	wrong          int // files that were counted wrongly, or that nobody produced
}

// compare counts every file again, without any stream, and holds the application's tables against that.
func compare(ctx context.Context, tale *story, p *place, files *fileSet) (bad bool, err error) {
	began := time.Now()
	direct, directly, err := countDirectly(ctx, files)
	if err != nil {
		return false, err
	}
	tale.say("recount", "the same files once more, straight from the disk, in %s", seconds(time.Since(began)))

	app := quote(p.app)
	lines, err := rowsOf[handledLines](ctx, p, `select path, lines, handled from `+app+`.file_lines`)
	if err != nil {
		return false, err
	}
	imports, err := rowsOf[handledImports](ctx, p, `select path, imports, handled from `+app+`.file_imports`)
	if err != nil {
		return false, err
	}
	through := newTotals()
	var s score
	byLines, byImports := map[string]handledLines{}, map[string]handledImports{}
	for _, row := range lines {
		byLines[row.Path] = row
		through.addLines(row.Path, row.Lines)
		s.lines++
		s.again += row.Handled - 1
	}
	for _, row := range imports {
		byImports[row.Path] = row
		through.addImports(row.Imports)
		s.imports++
		s.again += row.Handled - 1
	}
	for _, file := range files.list {
		l, hasLines := byLines[file.path]
		i, hasImports := byImports[file.path]
		switch want := direct[file.path]; {
		case !hasLines || !hasImports:
			s.lost++
			tale.alarm("lost", "%s: %s", file.path, missingIn(hasLines, hasImports))
		case l.Lines != want.lines || !slices.Equal(i.Imports, want.imports):
			s.wrong++
			tale.alarm("wrong", "%s: %d lines and %d imports, counted directly %d and %d", file.path, l.Lines, len(i.Imports), want.lines, len(want.imports))
		}
		delete(byLines, file.path)
		delete(byImports, file.path)
	}
	for path := range byLines {
		s.wrong++
		tale.alarm("wrong", "%s: handled by %s, but nobody produced it", path, countLine)
	}
	for path := range byImports {
		s.wrong++
		tale.alarm("wrong", "%s: handled by %s, but nobody produced it", path, countImport)
	}
	tale.table("lines", "folders", directly.folders, through.folders)
	tale.table("imports", "packages", directly.imported, through.imported)
	tale.finish(len(files.list), s, directly, through)
	same := maps.Equal(directly.folders, through.folders) && maps.Equal(directly.imported, through.imported)
	return s.lost > 0 || s.wrong > 0 || !same, nil
}

func countDirectly(ctx context.Context, files *fileSet) (map[string]counted, *totals, error) {
	all, sums := make(map[string]counted, len(files.list)), newTotals()
	for _, file := range files.list {
		content, err := readSource(files.root, file.path)
		if err != nil {
			return nil, nil, err
		}
		one := counted{lines: countLines(content), imports: importsOf(file.path, content)}
		all[file.path] = one
		sums.addLines(file.path, one.lines)
		sums.addImports(one.imports)
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
	}
	return all, sums, nil
}

func rowsOf[T any](ctx context.Context, p *place, sql string) ([]T, error) {
	rows, err := p.pool.Query(ctx, sql)
	if err != nil {
		return nil, fmt.Errorf("read the application's tables: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	if err != nil {
		return nil, fmt.Errorf("read the application's tables: %w", err)
	}
	return all, nil
}

func missingIn(hasLines, hasImports bool) string {
	switch {
	case hasImports:
		return "not handled by " + countLine
	case hasLines:
		return "not handled by " + countImport
	default:
		return "handled by no group"
	}
}

// table shows the largest sums side by side, and every one that differs.
func (s *story) table(what, of string, direct, through map[string]int64) {
	const shown = 6
	names := map[string]bool{}
	for name := range direct {
		names[name] = true
	}
	for name := range through {
		names[name] = true
	}
	sorted := slices.SortedFunc(maps.Keys(names), func(a, b string) int {
		return cmp.Or(cmp.Compare(max(direct[b], through[b]), max(direct[a], through[a])), cmp.Compare(a, b))
	})
	s.more("%-22s %12s %14s", what, "direct", "by streams")
	hidden := 0
	for i, name := range sorted {
		if same := direct[name] == through[name]; !same {
			s.more("%-22s %12s %14s   differs", name, count(direct[name]), count(through[name]))
		} else if i < shown {
			s.more("%-22s %12s %14s", name, count(direct[name]), count(through[name]))
		} else {
			hidden++
		}
	}
	if hidden > 0 {
		s.more("… and %s more %s, equal in both", count(hidden), of)
	}
}

// finish writes the last lines. Their numbers are plain, for whoever reads them with a program.
func (s *story) finish(produced int, sc score, direct, through *totals) {
	whole := sc.lost == 0 && sc.wrong == 0
	s.say("end", "took %s", seconds(time.Since(s.began)))
	s.result(true, "produced %d", produced)
	s.result(whole, "handled %s %d, %s %d", countLine, sc.lines, countImport, sc.imports)
	s.result(true, "run again %d", sc.again)
	s.result(direct.lines == through.lines && direct.imports == through.imports, "compared lines %d / %d, imports %d / %d (direct / through the streams)",
		direct.lines, through.lines, direct.imports, through.imports)
	if sc.wrong > 0 {
		s.result(false, "wrong %d", sc.wrong)
	}
	s.result(sc.lost == 0, "lost %d", sc.lost)
}
