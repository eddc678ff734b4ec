package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lull-project/lull/size"
)

const minimal = `
devices:
  - {id: host0, kind: host, capacity: 1GiB, headroom: 64MiB}
engines:
  - {name: main, kind: emulator, url: "http://127.0.0.1:8000", devices: [host0]}
`

func TestParseKeepsDefaultsWhereTheFileIsSilent(t *testing.T) {
	f, err := Parse([]byte(minimal + "slo: {ttft: 680ms}\npolicy: {quantum: 32MiB}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if f.Policy.Quantum != 32*size.MiB || f.Policy.Quantile != 0.95 || f.SLO.TTFT != 680*time.Millisecond {
		t.Errorf("got %+v", f)
	}
	if f.Devices[0].Capacity != size.GiB || f.Engines[0].Devices[0] != "host0" || f.Admin.Listen != "127.0.0.1:9797" {
		t.Errorf("got %+v", f)
	}
}

// staged is a file with two devices and an engine of such stages.
func staged(stages string) string {
	return "devices: [{id: a, kind: host, capacity: 1GiB}, {id: b, kind: host, capacity: 1GiB}]\n" +
		"engines: [{name: a, kind: emulator, url: 'http://a:1', devices: [a, b], stages: " + stages + "}]"
}

func TestStagesAreRead(t *testing.T) {
	f, err := Parse([]byte(staged("[{devices: [b], bytes_per_token: 1KiB, pool: 2MiB}, {devices: [a], bytes_per_token: 3KiB}]")))
	if err != nil {
		t.Fatal(err)
	}
	e := f.Engines[0]
	if len(e.Stages) != 2 || e.Stages[0].Pool != 2*size.MiB || e.Stages[1].Devices[0] != "a" || e.PerToken() != 3*size.KiB {
		t.Errorf("got %+v, %v a token", e.Stages, e.PerToken())
	}
}

func TestBadConfigNamesKeyValueAndRule(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"unknown key":         {minimal + "slo: {tfft: 1s}", "slo.tfft: no such key; see `lull config --print-default`"},
		"unknown section":     {minimal + "slow: 1", "slow: no such key; see `lull config --print-default`"},
		"unknown device key":  {"devices: [{idd: a}]", "devices[0].idd: no such key; see `lull config --print-default`"},
		"duration no unit":    {minimal + "slo: {ttft: 5}", "slo.ttft: got 5, want a duration such as 12ms or 10s"},
		"negative duration":   {minimal + "slo: {ttft: -5s}", `slo.ttft: got "-5s", want a duration such as 12ms or 10s`},
		"decimal unit":        {minimal + "policy: {quantum: 5MB}", `policy.quantum: got "5MB", want a number with B, KiB, MiB or GiB, such as 640MiB`},
		"size without a unit": {"devices: [{id: a, kind: host, capacity: 1280}]", `devices[0].capacity: got 1280, want a number with B, KiB, MiB or GiB, such as 640MiB`},
		"size in quotes":      {"engines: [{name: a, kind: vllm, url: 'http://a:1', pool: '640'}]", `engines[0].pool: got "640", want a number with B, KiB, MiB or GiB, such as 640MiB`},
		"text for a number":   {minimal + "policy: {quantile: high}", `policy.quantile: got "high", want a number`},
		"a bool for a word":   {minimal + "interference: {yield: true}", `interference.yield: got true, want auto or never`},
		"number for a text":   {minimal + "listen: 8080", `listen: got 8080, want text (put it in quotes)`},
		"no port":             {minimal + "listen: localhost", `listen: got "localhost", want host:port`},
		"one address":         {minimal + "listen: '127.0.0.1:9797'", `admin.listen: got "127.0.0.1:9797", want another address than that for clients (listen: "127.0.0.1:9797")`},
		"one port":            {minimal + "listen: ':9797'", `admin.listen: got "127.0.0.1:9797", want another address than that for clients (listen: ":9797")`},
		"pid":                 {"engines: [{name: a, kind: vllm, url: 'http://a:1', pid: -1}]", "engines[0].pid: got -1, want the number of the server's process, or 0 to find it by the port or socket of url"},
		"no engines":          {"devices: []", "engines: got none, want at least one with a url"},
		"engine without name": {"engines: [{kind: vllm, url: 'http://a:1'}]", `engines[0].name: got "", want a name`},
		"engine kind":         {"engines: [{name: a, kind: foo, url: 'http://a:1'}]", `engines[0].kind: got "foo", want one of [auto emulator vllm vllm-sleep lull-vllm kvcached sglang triton llamacpp tgi ollama openai]`},
		"engine url":          {"engines: [{name: a, kind: vllm, url: 'a:1'}]", `engines[0].url: got "a:1", want http://host:port, https://host:port or unix:///path/of/the/socket`},
		"engine url's path":   {"engines: [{name: a, kind: vllm, url: 'http://a:1/v1/'}]", `engines[0].url: got "http://a:1/v1/", want the server's address without /v1: clients send it in their paths`},
		"engine twice":        {"engines: [{name: a, kind: vllm, url: 'http://a:1'}, {name: a, kind: vllm, url: 'http://a:2'}]", `engines[1].name: got "a" again, want each engine once`},
		"engine device":       {"engines: [{name: a, kind: vllm, url: 'http://a:1', devices: [gpu9]}]", `engines[0].devices: got "gpu9", want the id of a device in devices`},
		"stage's devices":     {staged("[{bytes_per_token: 1KiB}]"), "engines[0].stages[0].devices: got none, want at least one of engines[0].devices"},
		"stage elsewhere":     {staged("[{devices: [c], bytes_per_token: 1KiB}]"), `engines[0].stages[0].devices: got "c", want devices of engines[0].devices, each in one stage`},
		"device in two":       {staged("[{devices: [a], bytes_per_token: 1KiB}, {devices: [a], bytes_per_token: 1KiB}]"), `engines[0].stages[1].devices: got "a", want devices of engines[0].devices, each in one stage`},
		"device in none":      {staged("[{devices: [a], bytes_per_token: 1KiB}]"), `engines[0].stages: got none with "b", want each of engines[0].devices in one`},
		"stage's token":       {staged("[{devices: [a]}, {devices: [b], bytes_per_token: 1KiB}]"), "engines[0].stages[0].bytes_per_token: got 0B, want what a token takes there (lull forecast --geometry config.json --pp N says it)"},
		"stages and token":    {staged("[{devices: [a], bytes_per_token: 1KiB}, {devices: [b], bytes_per_token: 2KiB}], bytes_per_token: 1KiB"), "engines[0].bytes_per_token: got 1.0KiB beside stages, want 0 or that of the fullest, 2.0KiB"},
		"page":                {"engines: [{name: a, kind: lull-vllm, url: 'http://a:1', page: vllm.page}]", `engines[0].page: got "vllm.page", want an absolute path that ends in .page (see docs/VLLM.md)`},
		"page's ending":       {"engines: [{name: a, kind: lull-vllm, url: 'http://a:1', page: /dev/shm/x}]", `engines[0].page: got "/dev/shm/x", want an absolute path that ends in .page (see docs/VLLM.md)`},
		"server twice":        {"engines: [{name: a, kind: vllm, url: 'http://a:1'}, {name: b, kind: vllm, url: 'http://a:1/'}]", `engines[1].url: got "http://a:1/" again, want each server once: two engines cannot be read at one address`},
		"no segment":          {"engines: [{name: a, kind: kvcached, url: 'http://a:1'}]", `engines[0].segment: got "", want /dev/shm/ and the server's KVCACHED_IPC_NAME (see docs/ENGINES.md)`},
		"segment's path":      {"engines: [{name: a, kind: kvcached, url: 'http://a:1', segment: kvcached_main}]", `engines[0].segment: got "kvcached_main", want /dev/shm/ and the server's KVCACHED_IPC_NAME (see docs/ENGINES.md)`},
		"segment's kind":      {"engines: [{name: a, kind: vllm, url: 'http://a:1', segment: /dev/shm/x}]", `engines[0].segment: got "/dev/shm/x" for the kind vllm, want it for kvcached only`},
		"idle of a lull":      {"engines: [{name: a, kind: vllm-sleep, url: 'http://a:1', idle: -1s}]", `engines[0].idle: got "-1s", want a duration such as 12ms or 10s`},
		"idle's kind":         {"engines: [{name: a, kind: vllm, url: 'http://a:1', idle: 1m}]", `engines[0].idle: got 1m0s for the kind vllm, want it for vllm-sleep and for models of triton only: others lend what they have by parts`},
		"whole pool's bound":  {"engines: [{name: a, kind: vllm-sleep, url: 'http://a:1', min_bound: 1GiB}]", `engines[0].min_bound: got 1.0GiB for the kind vllm-sleep, want none: its pool goes whole or not at all`},
		"segment twice":       {"engines: [{name: a, kind: kvcached, url: 'http://a:1', segment: /dev/shm/x}, {name: b, kind: kvcached, url: 'http://a:2', segment: /dev/shm/x}]", `engines[1].segment: got "/dev/shm/x" again, want each engine's own`},
		"tls in the clear":    {"engines: [{name: a, kind: vllm, url: 'http://a:1', tls: {ca: ca.pem}}]", `engines[0].tls: got settings for "http://a:1", want them for an https address only`},
		"certificate alone":   {"engines: [{name: a, kind: vllm, url: 'https://a:1', tls: {cert: c.pem}}]", `engines[0].tls.key: got none beside cert "c.pem", want the file of its private key`},
		"server's socket":     {"engines: [{name: a, kind: vllm, url: 'unix://run/a.sock'}]", `engines[0].url: got "unix://run/a.sock", want unix:// and the absolute path of a socket: unix:///run/vllm/api.sock`},
		"metrics url":         {"engines: [{name: a, kind: triton, url: 'http://a:1', metrics_url: 'a:8002'}]", `engines[0].metrics_url: got "a:8002", want http://host:port, https://host:port or unix:///path/of/the/socket`},
		"quantile":            {minimal + "policy: {quantile: 99}", "policy.quantile: got 99, want a fraction in (0, 1)"},
		"no number":           {minimal + "policy: {quantile: .nan}", "policy.quantile: got NaN, want a finite number"},
		"mode":                {minimal + "policy: {mode: fair}", `policy.mode: got "fair", want elastic or static`},
		"hold":                {minimal + "admission: {hold: always}", `admission.hold: got "always", want auto or never`},
		"within":              {minimal + "admission: {within: 0s}", "admission.within: got 0s, want more than 0"},
		"queue limit":         {minimal + "admission: {queue_limit: -1}", "admission.queue_limit: got -1, want more than 0"},
		"device kind":         {"devices: [{id: a, kind: tpu}]", `devices[0].kind: got "tpu", want host or nvidia`},
		"device twice":        {"devices: [{id: a, kind: host, capacity: 1GiB}, {id: a, kind: host, capacity: 1GiB}]", `devices[1].id: got "a" again, want each device once`},
		"device id":           {"devices: [{kind: host}]", `devices[0].id: got "", want a name`},
		"device path":         {"devices: [{id: ../evil, kind: host, capacity: 1GiB}]", `devices[0].id: got "../evil", want letters, digits, -, _ and . only: it names the lock file`},
		"engine is us":        {"engines: [{name: a, kind: vllm, url: 'http://127.0.0.1:8080'}]", `engines[0].url: got "http://127.0.0.1:8080", want the LLM server's address: this is Lull's own (listen)`},
		"no capacity":         {"devices: [{id: a, kind: host}]", "devices[0].capacity: got 0B, want more than 0"},
		"headroom":            {"devices: [{id: a, kind: host, capacity: 1GiB, headroom: 1GiB}]", "devices[0].headroom: got 1.0GiB, want at least 0 and below the capacity 1.0GiB"},
		"heartbeat":           {minimal + "trainers: {heartbeat: 0s}", "trainers.heartbeat: got 0s, want more than 0"},
		"lease":               {minimal + "trainers: {lease: 2999ms}", "trainers.lease: got 2.999s, want at least 3 heartbeats, 3s"},
		"socket":              {minimal + "trainers: {socket: ''}", `trainers.socket: got "", want the path of a Unix socket`},
		"idle":                {minimal + "proxy: {idle_timeout: 0s}", "proxy.idle_timeout: got 0s, want more than 0"},
		"yield":               {minimal + "interference: {yield: always}", `interference.yield: got "always", want auto or never`},
		"pace":                {minimal + "interference: {pace: slow}", `interference.pace: got "slow", want auto, never or priced`},
		"progress floor":      {minimal + "interference: {progress_floor: 0}", "interference.progress_floor: got 0, want more than 0, at most 1"},
		"body memory":         {minimal + "proxy: {body_memory: 1GB}", `proxy.body_memory: got "1GB", want a number with B, KiB, MiB or GiB, such as 640MiB`},
		"balance":             {minimal + "proxy: {balance: random}", `proxy.balance: got "random", want first or least_load`},
		"balance, no choice":  {minimal + "proxy: {balance: least_load}", `proxy.balance: got least_load without proxy.failover, want failover: true, which says that all engines serve the same models`},
		"usage":               {minimal + "proxy: {usage: always}", `proxy.usage: got "always", want pass or inject`},
		"log level":           {minimal + "telemetry: {log_level: loud}", `telemetry.log_level: got "loud", want one of [debug info warn error]`},
		"section is a text":   {minimal + "slo: fast", `slo: got "fast", want a section with keys`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(c.text))
			if err == nil || err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestLeastLeaseAndNoPageAreAccepted(t *testing.T) {
	f, err := Parse([]byte("trainers: {lease: 3s}\nengines: [{name: a, kind: lull-vllm, url: 'http://a:1'}]"))
	if err != nil || f.Engines[0].Page != "" {
		t.Errorf("got %+v, %v, want the engine's default page", f.Engines, err)
	}
}

func TestWhatMayStandTogetherIsAccepted(t *testing.T) {
	for name, text := range map[string]string{
		"free ports":    "listen: '127.0.0.1:0'\nadmin: {listen: '127.0.0.1:0'}\n",
		"two addresses": "listen: '127.0.0.2:9797'\n",
		"two families":  "listen: '0.0.0.0:9797'\nadmin: {listen: '[::1]:9797'}\n",
		"a name":        "listen: '0.0.0.0:9797'\nadmin: {listen: 'localhost:9797'}\n",
		"yield":         "interference: {yield: auto, pace: auto}\nslo: {overrides: {ttft_max: 1s}}\n",
	} {
		if _, err := Parse([]byte(minimal + text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhatCannotComeIntoPlayIsWarnedOf(t *testing.T) {
	const nobody = " without an objective, want slo.ttft, slo.tbt or an entry of slo.objectives or slo.overrides that promises one: it does nothing, nobody can be late"
	for text, want := range map[string][]string{
		"": nil,
		"interference: {yield: auto, pace: auto}\nslo: {e2e: 5s}":                               {"interference.yield: got auto" + nobody, "interference.pace: got auto" + nobody},
		"interference: {yield: auto, pace: auto}\nslo: {ttft: 1s}":                              nil,
		"interference: {yield: auto, pace: auto}\nslo: {overrides: {ttft_max: 1s}}":             nil,
		"policy: {prices: {sample: 1, miss: 1}}\nslo: {tbt: 1s}":                                {"policy.prices: got prices without an objective on TTFT, want slo.ttft or an entry of slo.objectives or slo.overrides that promises one: the reserve is then 0, nobody can miss what nobody promised"},
		"policy: {prices: {sample: 1, miss: 1}}\nslo: {ttft: 1s}":                               nil,
		"interference: {pace: priced}\nslo: {ttft: 1s}":                                         {"interference.pace: got priced without policy.prices, want a sample and a miss price there: until then it does what auto does"},
		"interference: {pace: priced}\npolicy: {prices: {sample: 1, miss: 1}}\nslo: {ttft: 1s}": nil,
		"proxy: {failover: true}":                                                               {"proxy.failover: got true with one engine, want two or more in engines: it does nothing, there is no next one to serve"},
	} {
		f, err := Parse([]byte(minimal + text))
		if got := f.Warnings(); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %q, %v; want %q", text, got, err, want)
		}
	}
}

// TestStagesThatNothingIsLentByAreWarnedOf: they are valid, and only accounted for.
func TestStagesThatNothingIsLentByAreWarnedOf(t *testing.T) {
	const only = ": they say what each device holds, and no KV of it is lent"
	for kind, want := range map[string][]string{
		"emulator": nil, "vllm-sleep": nil, "kvcached, segment: /dev/shm/x": nil,
		"lull-vllm": {"engines[0].stages: got some for the kind lull-vllm, whose plugin bounds no server of several pipeline stages (docs/VLLM.md)" + only},
		"vllm":      {"engines[0].stages: got some for the kind vllm, whose pool does not move" + only},
		"sglang":    {"engines[0].stages: got some for the kind sglang, whose pool does not move" + only},
	} {
		text := strings.Replace(staged("[{devices: [a], bytes_per_token: 1KiB}, {devices: [b], bytes_per_token: 2KiB}]"), "emulator", kind, 1)
		f, err := Parse([]byte(text))
		if got := f.Warnings(); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: got %q, %v; want %q", kind, got, err, want)
		}
	}
}

func TestOneSocketIsFound(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{":80", "127.0.0.1:80", true}, {":80", "[::1]:80", true}, {":80", "localhost:80", true}, {"[::]:80", "10.0.0.1:80", true},
		{"0.0.0.0:80", "127.0.0.1:80", true}, {"0.0.0.0:80", "[::]:80", true}, {"0.0.0.0:80", "[::1]:80", false},
		{"127.0.0.1:80", "[::ffff:127.0.0.1]:80", true}, {"[::1]:80", "[0::1]:80", true}, {"localhost:80", "localhost:80", true},
		{"127.0.0.1:80", "localhost:80", false}, {"127.0.0.1:80", "127.0.0.1:81", false}, {":0", ":0", false},
	} {
		if got := sameSocket(c.a, c.b); got != c.same || sameSocket(c.b, c.a) != got {
			t.Errorf("%s and %s: got %v, want %v both ways", c.a, c.b, got, c.same)
		}
	}
}

func TestTextThatIsNoYAMLIsRefused(t *testing.T) {
	if _, err := Parse([]byte("a: [")); err == nil || !strings.HasPrefix(err.Error(), "not YAML: ") {
		t.Errorf("error %v", err)
	}
}

func TestLoadNamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lull.yaml")
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("missing file: %v, want its path", err)
	}
	if err := os.WriteFile(path, []byte("engines: []"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil || !strings.HasPrefix(err.Error(), path+": engines: ") {
		t.Errorf("bad file: %v, want its path and key", err)
	}
}

func TestPrintedDefaultIsAValidFile(t *testing.T) {
	f, err := Parse([]byte(Example))
	if err != nil {
		t.Fatal(err)
	}
	d := Default()
	if len(Diff(File{Policy: f.Policy}, File{Policy: d.Policy})) > 0 || f.Admission != d.Admission || f.Trainers.Lease != d.Trainers.Lease || f.Listen != d.Listen ||
		f.Proxy != d.Proxy || f.StateDir != d.StateDir || f.Telemetry != d.Telemetry || f.Trainers.Socket != d.Trainers.Socket ||
		f.Trainers.OnStop != d.Trainers.OnStop || len(f.Auth.Keys) > 0 {
		t.Errorf("the example's values differ from the defaults:\n%+v\n%+v", f, d)
	}
}

func FuzzParseNeverPanics(f *testing.F) {
	f.Add([]byte(Example))
	f.Add([]byte("engines: [1, {name: 2}]"))
	f.Fuzz(func(_ *testing.T, text []byte) { _, _ = Parse(text) })
}
