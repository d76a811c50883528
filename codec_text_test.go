package sqlstreams

import (
	"bytes"
	"encoding/json"
	"net/url"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

type textual string

func (s textual) MarshalText() ([]byte, error) { return []byte(s), nil }

type inner struct {
	Name  string
	hides string
}

type outer struct {
	inner
	Skip string `json:"-"`
	Any  any
	Map  map[string]inner
	List []*string
	Raw  json.RawMessage
}

// What encoding/json would replace without a word is refused; what it writes as it is passes.
func TestTextThatIsNotUTF8IsRefused(t *testing.T) {
	bad, good := "a\xffb", "a\ufffdb"
	for _, c := range []struct {
		name string
		v    any
		ok   bool
	}{
		{"string", &bad, false},
		{"the character itself", &good, true},
		{"written escape", new(json.RawMessage(`"\ufffd"`)), true},
		{"field of an embedded struct", &outer{inner: inner{Name: bad}}, false},
		{"field that is not written", &outer{Skip: bad, inner: inner{hides: bad}, Any: good}, true},
		{"field that is not written beside an escape", &outer{Skip: bad, inner: inner{hides: bad}, Raw: json.RawMessage(`"\ufffd"`)}, true},
		{"interface", &outer{Any: []any{1, bad}}, false},
		{"key of a map", &outer{Map: map[string]inner{bad: {}}}, false},
		{"value of a map", &outer{Map: map[string]inner{"a": {Name: bad}}}, false},
		{"pointer in a list", &outer{List: []*string{nil, &bad}}, false},
		{"MarshalText", &[]textual{textual(bad)}, false},
		{"MarshalText as key", &map[textual]int{textual(bad): 1}, false},
		{"nil MarshalText", &struct {
			U *url.URL
			S string
		}{S: good}, true},
		{"nothing", new(any), true},
	} {
		data, err := jsonCodec{}.Marshal(c.v)
		if (err == nil) != c.ok {
			t.Errorf("%s: %s, %v", c.name, data, err)
		}
	}
}

// For every value of strings: either it is refused, or what is read again is what was given.
func TestTextComesBackOrIsRefused(t *testing.T) {
	piece := rapid.SampledFrom([]string{"a", "\xff", "\xc3", "\ufffd", `\ufffd`, `\`, "\u00e9", "\x00", "\u2028", `"`})
	text := rapid.Map(rapid.SliceOfN(piece, 0, 6), func(p []string) string {
		var b bytes.Buffer
		for _, s := range p {
			b.WriteString(s)
		}
		return b.String()
	})
	rapid.Check(t, func(t *rapid.T) {
		given := rapid.MapOfN(text, rapid.SliceOfN(text, 0, 3), 0, 3).Draw(t, "given")
		valid := true
		for k, list := range given {
			valid = valid && utf8.ValidString(k)
			for _, s := range list {
				valid = valid && utf8.ValidString(s)
			}
		}
		data, err := jsonCodec{}.Marshal(&given)
		if (err == nil) != valid {
			t.Fatalf("valid %v, but %v", valid, err)
		}
		if err != nil {
			return
		}
		var got map[string][]string
		if err := json.Unmarshal(data, &got); err != nil || len(got) != len(given) {
			t.Fatalf("%v: %v", got, err)
		}
		for k, list := range given {
			for i, s := range list {
				if got[k][i] != s {
					t.Fatalf("%q came back as %q", s, got[k][i])
				}
			}
		}
	})
}
