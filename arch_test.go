package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/lull-project/lull"

// listed is the part of `go list -json` that is read.
type listed struct {
	Dir, ImportPath  string
	Imports, GoFiles []string
}

// rel is the package's path inside the module, "." for the module itself.
func rel(path string) string {
	if path == module {
		return "."
	}
	return strings.TrimPrefix(path, module+"/")
}

// layer is what a part of the repository may import of the others. Sub-packages
// belong to the longest name that is listed.
type layer struct {
	may []string
	why string
}

const (
	edgeRule = "edges import neither each other nor the core; sidecar turns their values into events and actions into calls"
	pureRule = "the core must stay pure"
)

// layers is the diagram of docs/ARCHITECTURE.md, "Who may import whom".
var layers = map[string]layer{
	".":              {[]string{"cli"}, "main.go only hands over to cli"},
	"cli":            {[]string{"sidecar", "config", "calibrate", "endpoint", "demo", "emulator", "emulator/model", "benchmarks", "proxy", "engine", "device", "trainer", "admin", "telemetry", "handover", "kvbudget", "slo", "top", "size"}, "cli is thin, and nothing imports it but main.go"},
	"sidecar":        {[]string{"config", "proxy", "engine", "endpoint", "device", "trainer", "admin", "telemetry", "handover", "kvbudget", "slo", "size"}, "sidecar wires edges and core; it knows no engine to test against and no evidence"},
	"config":         {[]string{"handover", "proxy", "engine", "endpoint", "device", "trainer", "admin", "telemetry", "slo", "size"}, "config joins the packages' own Configs"},
	"calibrate":      {[]string{"config", "engine", "endpoint", "slo", "size"}, "calibrate is a client that measures a server; it knows no sidecar, and only cli imports it"},
	"proxy":          {[]string{"endpoint", "size"}, edgeRule},
	"engine":         {[]string{"endpoint", "size"}, edgeRule},
	"device":         {[]string{"size"}, edgeRule},
	"endpoint":       {nil, "an address is nobody's, as a size is"},
	"trainer":        {[]string{"size"}, edgeRule},
	"admin":          {[]string{"size"}, edgeRule},
	"telemetry":      {[]string{"size"}, edgeRule},
	"handover":       {[]string{"kvbudget", "slo", "size"}, pureRule},
	"kvbudget":       {[]string{"size"}, pureRule},
	"slo":            {[]string{"size"}, pureRule},
	"emulator":       {[]string{"emulator/model", "emulator", "size"}, "an engine to test against knows nothing of the product"},
	"emulator/model": {[]string{"size"}, pureRule + ": the simulator drives it"},
	"chart":          {nil, "a chart knows nothing of what it draws"},
	"benchmarks":     {[]string{"benchmarks", "chart", "handover", "kvbudget", "slo", "emulator/model", "proxy", "engine", "device", "trainer", "admin", "telemetry", "size"}, "evidence uses the core, emulator/model and edges; nothing of the product imports it"},
	"demo":           {[]string{"benchmarks/traces", "chart", "device", "engine", "size"}, "demo uses data and edges that are clients, and starts the product as processes"},
	"top":            {[]string{"size"}, "top is a client of the admin API and knows no sidecar; only cli imports it"},
	"size":           {nil, "size is the leaf that everybody may import"},
	"e2e":            {nil, "end-to-end tests start the product as a process"},
	// What tools a maintainer runs; the product never imports them.
	"scripts": {[]string{"config", "engine", "size"}, "scripts are no part of the product"},
}

// pure names the packages without I/O, clocks, goroutines and global randomness,
// and what of the standard library would bring them in.
var (
	pure       = []string{"handover", "kvbudget", "slo", "size", "emulator/model"}
	impureStd  = []string{"net", "net/http", "os", "os/exec", "os/signal", "io/ioutil", "log", "log/slog", "context", "sync", "syscall", "time/tzdata", "crypto/rand", "math/rand", "plugin", "runtime"}
	thirdParty = map[string][]string{
		// Who alone may import an SDK, so that its types stay out of the rest.
		"github.com/gin-gonic/gin":      {"admin"},
		"github.com/spf13/cobra":        {"cli"},
		"github.com/knadh/koanf":        {"config"},
		"github.com/prometheus/common":  {"engine", "telemetry"},
		"gonum.org/v1/plot":             {"chart", "demo", "benchmarks"},
		"github.com/gofrs/flock":        {"device"},
		"github.com/NVIDIA/go-nvml":     {"device"},
		"github.com/HdrHistogram":       {"telemetry", "benchmarks", "demo"},
		"github.com/cockroachdb/datadr": {},
		"pgregory.net/rapid":            {},
		"go.uber.org/goleak":            {},
	}
)

// layerOf is the longest listed name that holds a package.
func layerOf(pkg string) (string, bool) {
	best, found := "", false
	for name := range layers {
		if (pkg == name || strings.HasPrefix(pkg, name+"/")) && len(name) >= len(best) {
			best, found = name, true
		}
	}
	return best, found
}

// goList lists the module's packages.
func goList(t *testing.T) []listed {
	t.Helper()
	out, err := exec.Command("go", "list", "-e", "-json=Dir,ImportPath,Imports,GoFiles", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// importErrors is what is wrong with a package's imports.
func importErrors(p listed) []string {
	pkg := rel(p.ImportPath)
	name, ok := layerOf(pkg)
	if !ok {
		return []string{fmt.Sprintf("%s: not in the diagram; add it to docs/ARCHITECTURE.md and to layers", pkg)}
	}
	var bad []string
	for _, i := range p.Imports {
		switch {
		case strings.HasPrefix(i, module):
			if to, _ := layerOf(rel(i)); to != name && !slices.ContainsFunc(layers[name].may, func(m string) bool { return m == to || m == rel(i) }) {
				bad = append(bad, fmt.Sprintf("%s imports %s: %s", pkg, rel(i), layers[name].why))
			}
		case slices.Contains(pure, name) && slices.Contains(impureStd, i):
			bad = append(bad, fmt.Sprintf("%s imports %s: %s", pkg, i, pureRule))
		case slices.Contains(pure, name) && strings.Contains(strings.Split(i, "/")[0], "."):
			bad = append(bad, fmt.Sprintf("%s imports %s: %s", pkg, i, pureRule))
		}
		for sdk, owners := range thirdParty {
			if strings.HasPrefix(i, sdk) && !slices.Contains(owners, name) {
				bad = append(bad, fmt.Sprintf("%s imports %s: only %v may", pkg, i, owners))
			}
		}
	}
	return bad
}

func TestImportsFollowTheDiagram(t *testing.T) {
	for _, p := range goList(t) {
		for _, e := range importErrors(p) {
			t.Error(e)
		}
	}
}

func TestTheDiagramIsEnforced(t *testing.T) {
	for want, p := range map[string]listed{
		"handover imports net/http: the core must stay pure":                     {ImportPath: module + "/handover", Imports: []string{"net/http"}},
		"slo imports example.com/x: the core must stay pure":                     {ImportPath: module + "/slo", Imports: []string{"example.com/x"}},
		"proxy imports handover: " + edgeRule:                                    {ImportPath: module + "/proxy", Imports: []string{module + "/handover"}},
		"engine imports trainer: " + edgeRule:                                    {ImportPath: module + "/engine", Imports: []string{module + "/trainer"}},
		"proxy imports github.com/gin-gonic/gin: only [admin] may":               {ImportPath: module + "/proxy", Imports: []string{"github.com/gin-gonic/gin"}},
		"util: not in the diagram; add it to docs/ARCHITECTURE.md and to layers": {ImportPath: module + "/util"},
		"sidecar imports benchmarks/traces: " + layers["sidecar"].why:            {ImportPath: module + "/sidecar", Imports: []string{module + "/benchmarks/traces"}},
		"emulator imports engine: " + layers["emulator"].why:                     {ImportPath: module + "/emulator", Imports: []string{module + "/engine"}},
		"handover imports pgregory.net/rapid: " + pureRule:                       {ImportPath: module + "/handover", Imports: []string{"pgregory.net/rapid"}},
	} {
		if got := importErrors(p); !slices.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	ok := listed{ImportPath: module + "/emulator/faults", Imports: []string{module + "/emulator/model", "net/http"}}
	if got := importErrors(ok); len(got) > 0 {
		t.Errorf("got %q, want nothing wrong", got)
	}
}
