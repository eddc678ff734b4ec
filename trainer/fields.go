package trainer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"sort"
	"strconv"
	"time"

	"github.com/lull-project/lull/size"
)

// wantInt is the rule for every integer on the wire.
const wantInt = "an integer from 0 to 9223372036854775807"

// fields reads one JSON object field by field. The first bad field sticks in
// *err and the rest reads as zero, so that a message's reader is a plain list.
// Names match exactly: encoding/json's own structs would take "BYTES" too.
type fields struct {
	what, prefix string
	raw          map[string]json.RawMessage
	err          **LineError
}

// get returns a field's text; false when it is absent or null, which is a fault
// where the field is required.
func (f fields) get(key string, required bool) (json.RawMessage, bool) {
	if *f.err != nil {
		return nil, false
	}
	raw, ok := f.raw[key]
	if ok && string(raw) != "null" {
		return raw, true
	}
	if required {
		f.fail(key, "missing")
	}
	return nil, false
}

func (f fields) fail(key, rule string) {
	if *f.err == nil {
		*f.err = &LineError{What: f.what, Where: f.prefix + key, Rule: rule}
	}
}

func (f fields) int(key string, required bool) int64 {
	raw, ok := f.get(key, required)
	if !ok {
		return 0
	}
	return f.parseInt(key, raw)
}

func (f fields) parseInt(key string, raw json.RawMessage) int64 {
	if k := kind(raw); k != "an integer" {
		f.fail(key, "got "+k+", want "+wantInt)
		return 0
	}
	v, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || v < 0 {
		f.fail(key, "got an integer out of range, want "+wantInt)
		return 0
	}
	return v
}

func (f fields) bytes(key string, required bool) size.Bytes {
	return size.Bytes(f.int(key, required))
}

// duration reads whole units; what a time.Duration cannot hold becomes the
// longest one.
func (f fields) duration(key string, unit time.Duration, required bool) time.Duration {
	v := f.int(key, required)
	if v > math.MaxInt64/int64(unit) {
		return math.MaxInt64
	}
	return time.Duration(v) * unit
}

func (f fields) float(key string, required bool) float64 {
	raw, ok := f.get(key, required)
	if !ok {
		return 0
	}
	return f.parseFloat(key, raw)
}

func (f fields) parseFloat(key string, raw json.RawMessage) float64 {
	if k := kind(raw); k != "an integer" && k != "a fraction" {
		f.fail(key, "got "+k+", want a number")
		return 0
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil {
		f.fail(key, "got a number out of range, want a finite number")
		return 0
	}
	return v
}

// optional reads a number that may be absent.
func (f fields) optional(key string) *float64 {
	raw, ok := f.get(key, false)
	if !ok {
		return nil
	}
	v := f.parseFloat(key, raw)
	return &v
}

// millis reads a number of milliseconds that may have a fraction.
func (f fields) millis(key string) time.Duration {
	v := f.float(key, true) * float64(time.Millisecond)
	if math.Abs(v) >= math.MaxInt64 {
		f.fail(key, "got a number out of range, want milliseconds")
		return 0
	}
	return time.Duration(math.Round(v))
}

func (f fields) text(key string, required bool) string {
	raw, ok := f.get(key, required)
	if !ok {
		return ""
	}
	if k := kind(raw); k != "a string" {
		f.fail(key, "got "+k+", want a string")
		return ""
	}
	var s string
	// The line is valid JSON already, so a string that is one reads.
	_ = json.Unmarshal(raw, &s)
	return s
}

func (f fields) flag(key string) bool {
	raw, ok := f.get(key, false)
	if !ok {
		return false
	}
	if k := kind(raw); k != "a boolean" {
		f.fail(key, "got "+k+", want true or false")
	}
	return string(raw) == "true"
}

// object opens a nested object; false when it is absent or no object.
func (f fields) object(key string, required bool) (fields, bool) {
	raw, ok := f.get(key, required)
	if !ok {
		return fields{}, false
	}
	return f.open(key, raw)
}

func (f fields) open(key string, raw json.RawMessage) (fields, bool) {
	if k := kind(raw); k != "an object" {
		f.fail(key, "got "+k+", want an object")
		return fields{}, false
	}
	nested := fields{what: f.what, prefix: f.prefix + key + ".", err: f.err}
	_ = json.Unmarshal(raw, &nested.raw)
	return nested, true
}

// list reads an optional array's items.
func (f fields) list(key string) []json.RawMessage {
	raw, ok := f.get(key, false)
	if !ok {
		return nil
	}
	if k := kind(raw); k != "an array" {
		f.fail(key, "got "+k+", want an array")
		return nil
	}
	var items []json.RawMessage
	_ = json.Unmarshal(raw, &items)
	return items
}

// sizes reads an object of byte counts, in the order of its keys, so that the
// first fault is always the same one.
func (f fields) sizes(key string) map[string]size.Bytes {
	nested, ok := f.object(key, true)
	if !ok {
		return nil
	}
	keys := make([]string, 0, len(nested.raw))
	for k := range nested.raw {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	out := make(map[string]size.Bytes, len(keys))
	for _, k := range keys {
		out[k] = size.Bytes(nested.parseInt(k, nested.raw[k]))
	}
	return out
}

func index(key string, i int) string { return fmt.Sprintf("%s[%d]", key, i) }

// kind names a JSON value's kind in the words that the Python side uses.
func kind(raw json.RawMessage) string {
	raw = bytes.TrimLeft(raw, " \t\r\n")
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '[':
		return "an array"
	case '{':
		return "an object"
	}
	if bytes.ContainsAny(raw, ".eE") {
		return "a fraction"
	}
	return "an integer"
}
