package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lull-project/lull/size"
)

func TestModelsOfAServerAreRead(t *testing.T) {
	f, err := Parse([]byte(`
devices: [{id: host0, kind: host, capacity: 8GiB}]
engines: [{name: t, kind: triton, url: 'http://a:1', devices: [host0], idle: 10s, await: 2m, warm: 3GiB, models: [{name: a, bytes: 2GiB}, {name: b, bytes: 1GiB}]}]`))
	if err != nil {
		t.Fatal(err)
	}
	e := f.Engines[0]
	if want := []Model{{"a", 2 * size.GiB}, {"b", size.GiB}}; !reflect.DeepEqual(e.Models, want) || e.Warm != 3*size.GiB || e.Awaits() != 2*time.Minute || e.ModelID("a") != "t/a" {
		t.Errorf("got %+v, want its models %v", e, want)
	}
	if got := (Engine{}).Awaits(); got != time.Minute {
		t.Errorf("without await: got %v, want 1m", got)
	}
}

func TestModelErrorsNameTheKeyTheValueAndTheRule(t *testing.T) {
	for want, rest := range map[string]string{
		`engines[0].models: got some for the kind vllm, want them for triton only`:                                                                         `kind: vllm, devices: [host0], models: [{name: a, bytes: 1GiB}]`,
		`engines[0].models: got some of a server on no device, want a device in devices: their bytes are lent there`:                                       `kind: triton, models: [{name: a, bytes: 1GiB}]`,
		`engines[0].models[0].name: got "", want its name in the model repository`:                                                                         `kind: triton, devices: [host0], models: [{bytes: 1GiB}]`,
		`engines[0].models[0].name: got 129 bytes, want at most 128: more of it is not read in requests`:                                                   `kind: triton, devices: [host0], models: [{name: ` + strings.Repeat("a", 129) + `, bytes: 1GiB}]`,
		`engines[0].models[1].name: got "a" again, want each model once`:                                                                                   `kind: triton, devices: [host0], models: [{name: a, bytes: 1GiB}, {name: a, bytes: 1GiB}]`,
		`engines[0].models[0].bytes: got 0B, want what it takes of each device while it is loaded, such as 12GiB (docs/ENGINES.md says how to measure it)`: `kind: triton, devices: [host0], models: [{name: a}]`,
		`engines[0].pool: got 1.0GiB beside models, want none: what a model holds is in its bytes`:                                                         `kind: triton, devices: [host0], pool: 1GiB, models: [{name: a, bytes: 1GiB}]`,
		`engines[0].min_bound: got 1.0GiB beside models, want none: they go whole or not at all`:                                                           `kind: triton, devices: [host0], min_bound: 1GiB, models: [{name: a, bytes: 1GiB}]`,
		`engines[0].stages: got some beside models, want none: a model's bytes lie alike on all devices`:                                                   `kind: triton, devices: [host0], stages: [{devices: [host0], bytes_per_token: 1KiB}], models: [{name: a, bytes: 1GiB}]`,
		`engines[0].models[1].bytes: got 64.0GiB, want at most 7.9GiB, which host0 has without its headroom`:                                               `kind: triton, devices: [host0], models: [{name: a, bytes: 1GiB}, {name: b, bytes: 64GiB}]`,
		`engines[0].devices: got "host0" again, want each device once`:                                                                                     `kind: triton, devices: [host0, host0]`,
		`engines[0].await: got 1m0s, want it beside models only`:                                                                                           `kind: triton, devices: [host0], await: 1m`,
		`engines[0].warm: got 1.0GiB, want it beside models only`:                                                                                          `kind: triton, devices: [host0], warm: 1GiB`,
		`engines[1].models: got "t/a", which is an engine's name too, want another name for the engine`:                                                    `kind: triton, devices: [host0], models: [{name: a, bytes: 1GiB}]`,
	} {
		text := "devices: [{id: host0, kind: host, capacity: 8GiB}]\nengines: [{name: t, url: 'http://a:1', " + rest + "}]"
		if want[:10] == "engines[1]" {
			text = "devices: [{id: host0, kind: host, capacity: 8GiB}]\nengines: [{name: t/a, url: 'http://b:1', kind: vllm}, {name: t, url: 'http://a:1', " + rest + "}]"
		}
		if _, err := Parse([]byte(text)); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

// TestModelsThatDoNotFitAreWarnedOf: a file may be right for a server that serves one
// of its models at a time, and what comes of it is said.
func TestModelsThatDoNotFitAreWarnedOf(t *testing.T) {
	for text, want := range map[string][]string{
		"models: [{name: a, bytes: 5GiB}, {name: b, bytes: 2GiB}], warm: 2GiB": nil,
		"models: [{name: a, bytes: 6GiB}, {name: b, bytes: 2GiB}]":             {"engines[0].models: got 8.0GiB in all for d, whose capacity without its headroom is 7.0GiB: not all can be loaded at once, and idle ones make room for one that is asked for"},
		"models: [{name: a, bytes: 2GiB}, {name: b, bytes: 2GiB}], warm: 4GiB": {"engines[0].warm: got 4.0GiB beside models of 4.0GiB in all, want less: nothing of them is lent, those that fit stay loaded"},
	} {
		f, err := Parse([]byte("devices: [{id: d, kind: host, capacity: 8GiB, headroom: 1GiB}, {id: e, kind: host, capacity: 1GiB}, {id: g, kind: nvidia, gpu: 0}]\n" +
			"engines: [{name: t, kind: triton, url: 'http://a:1', devices: [d], " + text + "}, {name: u, kind: triton, url: 'http://a:2', devices: [g], models: [{name: z, bytes: 900GiB}]}]"))
		if got := f.Warnings(); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %q, %v; want %q", text, got, err, want)
		}
	}
}
