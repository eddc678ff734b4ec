package telemetry

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestEveryOutcomeStandsInItsTable: those of proxy, and none besides.
func TestEveryOutcomeStandsInItsTable(t *testing.T) {
	words := func(file, pattern string) []string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, section, found := strings.Cut(string(text), "**How a request ended**")
		if !found {
			section = string(text)
		}
		section, _, _ = strings.Cut(section, "**How a handover ended**")
		var list []string
		for _, row := range regexp.MustCompile(pattern).FindAllStringSubmatch(section, -1) {
			list = append(list, row[1])
		}
		slices.Sort(list)
		return list
	}
	code := words("../proxy/contract.go", `(?m)^\tOutcome\w+\s+= "([a-z_]+)"`)
	if table := words("../docs/METRICS.md", "(?m)^\\| `([a-z_]+)` \\| .+ \\|$"); len(code) < 18 || !slices.Equal(code, table) {
		t.Errorf("docs/METRICS.md, how a request ended\ngot  %q\nwant %q", table, code)
	}
}

// TestEverySeriesStandsInTheTable: with its labels, and none besides.
func TestEverySeriesStandsInTheTable(t *testing.T) {
	m := NewMetrics()
	m.ShowServing(func() Serving { return Serving{} })
	m.ShowObjectives(func() ([]Objective, []Goodput) { return nil, nil })
	m.ShowReserves(func() []Reserve { return nil })
	m.ShowOwners(func() []OwnerMemory { return nil })
	m.ShowStages(func() []Stage { return nil })
	var code []string
	descs := make(chan *prometheus.Desc)
	go func() { m.registry.Describe(descs); close(descs) }() // ends when all are read
	line := regexp.MustCompile(`fqName: "(lull_[a-z_]+)".*variableLabels: \{([a-z,]*)\}`)
	for d := range descs {
		if found := line.FindStringSubmatch(d.String()); found != nil {
			code = append(code, strings.TrimRight(found[1]+" "+strings.ReplaceAll(found[2], ",", ", "), " "))
		}
	}
	text, err := os.ReadFile("../docs/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	var table []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(lull_[a-z_]+)` \\| [a-z]+ \\|([a-z, ]*)\\|").FindAllStringSubmatch(string(text), -1) {
		table = append(table, strings.TrimRight(row[1]+" "+strings.TrimSpace(row[2]), " "))
	}
	slices.Sort(code)
	slices.Sort(table)
	if !slices.Equal(code, table) {
		t.Errorf("docs/METRICS.md\ngot  %s\nwant %s", strings.Join(table, "\n     "), strings.Join(code, "\n     "))
	}
}
