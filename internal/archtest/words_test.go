package archtest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// words are what stands in no file: a pattern in lower case, written so that it does not match itself, and literals of which one is in every
// match, which a search finds far faster than a pattern.
type words struct {
	why      string
	pattern  *regexp.Regexp
	literals []string
}

func forbidden() []words {
	all := []words{
		{"path of somebody's machine", regexp.MustCompile(`(?m)(^|[\s"'` + "`" + `(=:,])/(root|wor[k]|home/[a-z0-9_-]+|users/[a-z0-9_-]+)/`),
			[]string{"/roo" + "t/", "/wor" + "k/", "/home/", "/users/"}},
		{"drive of somebody's machine", regexp.MustCompile(`\b[c-z]:\\users\\`), []string{`:\users`}},
		{"host of a package registry",
			regexp.MustCompile(`\b(proxy\.golang|sum\.golang|index\.golang|registry\.npmjs|registry\.yarnpkg|deb\.debian|security\.debian|archive\.ubuntu|security\.ubuntu|` +
				`ports\.ubuntu|files\.pythonhosted|dl-cdn\.alpinelinux)\.(org|com)\b|\bgoproxy\.(io|cn)\b|\bpypi\.or[g]\b`),
			[]string{"golang.org", "npmjs", "yarnpkg", "debian.org", "ubuntu.com", "pythonhosted", "alpinelinux", "goproxy", "pypi."}},
		{"how the work was organised",
			regexp.MustCompile(`\b(this|previous|last|helper|developers?|coding) sess[i]on|\bsub-?agent[s]?\b|\b(ai|llm)[- ](generated|assisted|writte[n])` +
				`|\bthe bri[e]f says\b|\bbefore-sto[p]\b|\bco-authored-b[y]\b|\blanguage mode[l]s?\b`),
			[]string{"sess" + "ion", "agent", "ai-", "ai ", "llm", "brief", "before-", "co-auth", "language "}},
	}
	// Where this checkout and this user happen to be, and where this machine takes its modules from.
	var local []string
	if root, err := filepath.Abs(moduleRoot); err == nil && strings.Count(filepath.ToSlash(root), "/") > 1 {
		local = append(local, filepath.ToSlash(root)+"/")
	}
	if home, err := os.UserHomeDir(); err == nil && len(home) > 1 {
		local = append(local, filepath.ToSlash(home)+"/")
	}
	if proxy, err := exec.Command("go", "env", "GOPROXY").Output(); err == nil {
		for _, host := range regexp.MustCompile(`https?://(?:[^/@,|\s]*@)?([^/,|\s]+)`).FindAllStringSubmatch(string(proxy), -1) {
			local = append(local, host[1])
		}
	}
	for _, l := range local {
		l = strings.ToLower(l)
		all = append(all, words{"path or host of this machine", regexp.MustCompile(regexp.QuoteMeta(l)), []string{l}})
	}
	return all
}

func badWords(name string, text []byte, all []words) (found []string) {
	text = bytes.ToLower(text)
	for _, w := range all {
		worth := false
		for _, l := range w.literals {
			worth = worth || bytes.Contains(text, []byte(l))
		}
		if !worth {
			continue
		}
		for _, at := range w.pattern.FindAllIndex(text, -1) {
			match := bytes.TrimSpace(text[at[0]:at[1]])
			found = append(found, fmt.Sprintf("%s:%d: %s: %q", name, 1+bytes.Count(text[:at[1]-1], []byte("\n")), w.why, match))
		}
	}
	return found
}

func TestNothingTellsOfAMachineOrOfTheMaking(t *testing.T) {
	all := forbidden()
	for _, name := range files(t) {
		text := read(t, name)
		// Sums are content hashes; a NUL means that it is not a text.
		if strings.HasSuffix(name, ".sum") || bytes.IndexByte(text, 0) >= 0 {
			continue
		}
		report(t, badWords(name, text, all))
	}
}

func TestBadWordsAreNoticed(t *testing.T) {
	all := forbidden()
	for _, wrong := range []string{
		"cd /ro" + "ot/x", "see \"/wor" + "k/main/x.go\"", "/ho" + "me/jane/src", "(/Us" + "ers/jane/src)", `C:\Us` + `ers\jane`,
		"GOPROXY=https://proxy.golang" + ".org", "https://pypi" + ".org/simple", "deb http://deb.debian" + ".org/debian", "https://goproxy" + ".io",
		"http://archive.ubuntu" + ".com", "https://registry.npmjs" + ".org/x", "files.pythonhosted" + ".org", "dl-cdn.alpinelinux" + ".org",
		"as written in this ses" + "sion", "a sub" + "agent did", "the bri" + "ef says", "Co-Authored-" + "By: x", "AI-" + "generated", "a language " + "model", "the before-" + "stop hook",
	} {
		if found := badWords("x", []byte("a line\n"+wrong+"\n"), all); len(found) == 0 || !strings.HasPrefix(found[0], "x:2: ") {
			t.Errorf("%q: %q", wrong, found)
		}
	}
	for _, right := range []string{
		"the consumer's session", "/tmp/sqlstreams", "internal/work", "https://example.com/work/x", "the root package", "/usr/lib/postgresql", "https://www.postgresql.org/docs", "session metrics",
	} {
		if found := badWords("x", []byte(right), all); len(found) > 0 {
			t.Errorf("refused, though it is right: %q", found)
		}
	}
}
