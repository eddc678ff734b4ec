package config

import (
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"sort"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/rawbytes"
	"github.com/knadh/koanf/v2"

	"github.com/lull-project/lull/size"
)

// Load reads a file and validates it. Every error is "FILE: KEY: got VALUE,
// want RULE", so that it can be mended without reading code.
func Load(path string) (File, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return File{}, fmt.Errorf("config: %w", err)
	}
	f, err := Parse(text)
	if err != nil {
		return File{}, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// Parse reads the text of a file over the defaults and validates it.
func Parse(text []byte) (File, error) {
	k := koanf.New(".")
	if err := k.Load(rawbytes.Provider(text), yaml.Parser()); err != nil {
		return File{}, fmt.Errorf("not YAML: %w", err)
	}
	f := Default()
	err := k.UnmarshalWithConf("", &f, koanf.UnmarshalConf{DecoderConfig: &mapstructure.DecoderConfig{
		Result: &f, TagName: "koanf", ErrorUnused: true, DecodeHook: decode,
	}})
	if err != nil {
		return File{}, decodeError(err)
	}
	if err := f.Validate(); err != nil {
		return File{}, err
	}
	return f, nil
}

// valueError is a value that cannot be what its key wants.
type valueError struct{ got, want string }

func (e *valueError) Error() string { return "got " + e.got + ", want " + e.want }

// decode turns YAML scalars into durations and sizes, and refuses everything
// that would be converted silently (a number for a text, a text for a number).
func decode(from, to reflect.Type, v any) (any, error) {
	switch to {
	case reflect.TypeFor[time.Duration]():
		s, ok := v.(string)
		d, err := time.ParseDuration(s)
		if !ok || err != nil || d < 0 {
			return nil, &valueError{show(v), "a duration such as 12ms or 10s"}
		}
		return d, nil
	case reflect.TypeFor[size.Bytes]():
		text := fmt.Sprint(v)
		b, err := size.Parse(text)
		if err != nil || b != 0 && !strings.HasSuffix(text, "B") { // 640 may mean MiB: as bytes it would starve the server
			return nil, &valueError{show(v), "a number with B, KiB, MiB or GiB, such as 640MiB"}
		}
		return b, nil
	case reflect.TypeFor[GPU]():
		return decodeGPU(v)
	case reflect.TypeFor[Device]():
		return withHeadroom(v), nil
	}
	if x, ok := v.(float64); ok && (math.IsNaN(x) || math.IsInf(x, 0)) {
		return nil, &valueError{show(v), "a finite number"}
	}
	if from.Kind() == to.Kind() || to.Kind() == reflect.Interface || from.Kind() == reflect.Map || to.Kind() == reflect.Slice {
		return v, nil
	}
	if from.Kind() == reflect.Int && to.Kind() == reflect.Float64 {
		return v, nil
	}
	return nil, &valueError{show(v), kindWord(to.Kind())}
}

func show(v any) string {
	if s, ok := v.(string); ok {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprint(v)
}

func kindWord(k reflect.Kind) string {
	switch k {
	case reflect.String:
		return "text (put it in quotes)"
	case reflect.Int:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "true or false"
	case reflect.Struct:
		return "a section with keys"
	}
	return "a " + k.String()
}

// words are the keys whose text is one of a few words; YAML reads yes and no, on and
// off as true and false, so somebody will write those.
var words = map[string]string{
	"interference.yield": Auto + " or " + Never,
	"interference.pace":  Auto + ", " + Never + " or " + Priced,
	"admission.hold":     "auto or never",
	"admission.owed":     "fail_open or refuse",
	"policy.mode":        "elastic or static",
	"trainers.on_stop":   OnStopDrain + " or " + OnStopKeep,
	"proxy.usage":        "pass or inject",
}

// decodeError finds the key and the rule in the decoder's error tree and keeps
// the first in the order of the keys, so that the same file gives the same
// message.
func decodeError(err error) error {
	var found []string
	collect(err, &found)
	if len(found) == 0 {
		return err
	}
	sort.Strings(found)
	return errors.New(found[0])
}

func collect(err error, found *[]string) {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range many.Unwrap() {
			collect(e, found)
		}
		return
	}
	var at *mapstructure.DecodeError
	var value *valueError
	if errors.As(err, &at) {
		if errors.As(err, &value) {
			if w := words[at.Name()]; w != "" {
				value = &valueError{value.got, w}
			}
			*found = append(*found, at.Name()+": "+value.Error())
			return
		}
		cause := at.Unwrap().Error()
		if i := strings.Index(cause, "has invalid keys: "); i >= 0 {
			key := strings.Split(cause[i+len("has invalid keys: "):], ", ")[0]
			if at.Name() != "" {
				key = at.Name() + "." + key
			}
			*found = append(*found, key+": no such key; see `lull config --print-default`")
			return
		}
		*found = append(*found, at.Name()+": "+cause)
		return
	}
	*found = append(*found, err.Error())
}
