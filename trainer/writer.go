package trainer

import (
	"encoding/json"
	"math"
	"sort"
	"strconv"
	"time"

	"github.com/lull-project/lull/size"
)

// writer appends one JSON object. The first number that JSON cannot hold sticks
// in bad; Encode refuses the line.
type writer struct {
	b   []byte
	bad string
}

func (w *writer) key(k string) {
	if n := len(w.b); n > 0 && w.b[n-1] != '{' {
		w.b = append(w.b, ',')
	}
	w.b = append(w.b, '"')
	w.b = append(w.b, k...)
	w.b = append(w.b, '"', ':')
}

func (w *writer) int(k string, v int64) {
	w.key(k)
	if v < 0 {
		w.fail(k, "is negative")
	}
	w.b = strconv.AppendInt(w.b, v, 10)
}

func (w *writer) uint(k string, v uint64) {
	if v > math.MaxInt64 {
		w.fail(k, "is above 9223372036854775807")
	}
	w.key(k)
	w.b = strconv.AppendUint(w.b, v, 10)
}

func (w *writer) bytes(k string, v size.Bytes) { w.int(k, int64(v)) }

// duration writes whole units and rounds up, so that a short time never becomes
// 0, which means "none". A time that has passed is the shortest there is.
func (w *writer) duration(k string, v, unit time.Duration) {
	switch {
	case v < 0:
		w.int(k, 1)
	case v%unit != 0:
		w.int(k, int64(v/unit)+1)
	default:
		w.int(k, int64(v/unit))
	}
}

func (w *writer) float(k string, v float64) {
	w.key(k)
	w.number(k, v)
}

func (w *writer) number(k string, v float64) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		w.fail(k, "is not finite")
		v = 0
	}
	w.b = strconv.AppendFloat(w.b, v, 'g', -1, 64)
}

func (w *writer) optional(k string, v *float64) {
	if v != nil {
		w.float(k, *v)
	}
}

func (w *writer) text(k, v string) {
	w.key(k)
	if plain(v) {
		w.b = append(w.b, '"')
		w.b = append(w.b, v...)
		w.b = append(w.b, '"')
		return
	}
	quoted, _ := json.Marshal(v) // a string always marshals
	w.b = append(w.b, quoted...)
}

func (w *writer) flag(k string, v bool) {
	w.key(k)
	w.b = strconv.AppendBool(w.b, v)
}

func (w *writer) sizes(k string, v map[string]size.Bytes) {
	keys := make([]string, 0, len(v))
	for name := range v {
		keys = append(keys, name)
	}
	sort.Strings(keys)
	w.key(k)
	w.b = append(w.b, '{')
	for i, name := range keys {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		quoted, _ := json.Marshal(name)
		w.b = append(append(w.b, quoted...), ':')
		if v[name] < 0 {
			w.fail(k+"."+name, "is negative")
		}
		w.b = strconv.AppendInt(w.b, int64(v[name]), 10)
	}
	w.b = append(w.b, '}')
}

// items writes an array of n values.
func (w *writer) items(k string, n int, item func(i int)) {
	w.key(k)
	w.b = append(w.b, '[')
	for i := range n {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		item(i)
	}
	w.b = append(w.b, ']')
}

// object writes a nested object as the value that comes next.
func (w *writer) object(body func()) {
	w.b = append(w.b, '{')
	body()
	w.b = append(w.b, '}')
}

func (w *writer) fail(k, why string) {
	if w.bad == "" {
		w.bad = k + " " + why
	}
}

// plain says that a string needs no escape.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}
