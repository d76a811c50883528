package sqlstreams

import (
	"bytes"
	"encoding"
	"encoding/json"
	"reflect"
	"unicode/utf8"
)

// encoding/json writes this for a byte that is not UTF-8, and the character itself, unescaped, for one that a string holds rightly.
const replacement = `\ufffd`

// altered says whether JSON made of v differs from what v holds because a string in it is not valid UTF-8: encoding/json replaces such bytes without a word. What v's own
// MarshalJSON wrote is v's affair.
func altered(v any, data []byte) bool {
	return bytes.Contains(data, []byte(replacement)) && badText(reflect.ValueOf(v))
}

// badText looks for a string that is not valid UTF-8 where encoding/json looks for what it writes. The value has been encoded, so it has no cycle.
func badText(v reflect.Value) bool {
	if !v.IsValid() {
		return false
	}
	jsonMarshaler, textMarshaler := reflect.TypeFor[json.Marshaler](), reflect.TypeFor[encoding.TextMarshaler]()
	if t := v.Type(); t.Implements(jsonMarshaler) || v.CanAddr() && reflect.PointerTo(t).Implements(jsonMarshaler) {
		return false
	} else if t.Implements(textMarshaler) && (v.Kind() != reflect.Pointer || !v.IsNil()) && v.CanInterface() {
		text, err := v.Interface().(encoding.TextMarshaler).MarshalText()
		return err == nil && !utf8.Valid(text)
	}
	switch v.Kind() {
	case reflect.String:
		return !utf8.ValidString(v.String())
	case reflect.Interface, reflect.Pointer:
		return badText(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); (f.IsExported() || f.Anonymous) && f.Tag.Get("json") != "-" && badText(v.Field(i)) {
				return true
			}
		}
	case reflect.Map:
		for entry := v.MapRange(); entry.Next(); {
			if badText(entry.Key()) || badText(entry.Value()) {
				return true
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if badText(v.Index(i)) {
				return true
			}
		}
	}
	return false
}
