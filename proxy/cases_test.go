package proxy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// caseRow is a row of docs/PROXY_CASES.md: its number, and its last column.
var caseRow = regexp.MustCompile(`(?m)^\| (\d+) \|.*\| ([^|]*) \|$`)

// named is what a row names, in backquotes: a check, or a function of a test file.
var named = regexp.MustCompile("`(Relay/[^`]+|(?:Test|Fuzz)[A-Za-z0-9_]+)`")

// testFunctions are the test functions of all the module's packages.
func testFunctions(t *testing.T) map[string]bool {
	t.Helper()
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	found := map[string]bool{}
	files, err := filepath.Glob("../*/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Glob("../*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(files, root...) {
		body, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range function.FindAllStringSubmatch(string(body), -1) {
			found[m[1]] = true
		}
	}
	return found
}

// caseErrors is what is wrong with a text of cases.
func caseErrors(text string, tests map[string]bool) []string {
	var bad []string
	seen := map[string]bool{}
	for _, row := range caseRow.FindAllStringSubmatch(text, -1) {
		number, cell := row[1], row[2]
		if seen[number] {
			bad = append(bad, number+": got it twice, want each case once")
		}
		seen[number] = true
		names := named.FindAllStringSubmatch(cell, -1)
		if len(names) == 0 && !strings.Contains(cell, "not yet: ") {
			bad = append(bad, number+": got no test, want one or what is missing")
		}
		for _, n := range names {
			check, isCheck := strings.CutPrefix(n[1], "Relay/")
			known := tests[n[1]]
			if isCheck {
				known = slices.ContainsFunc(relayChecks, func(c relayCheck) bool { return c.name == check })
			}
			if !known {
				bad = append(bad, number+": "+n[1]+": no such test")
			}
		}
	}
	return bad
}

func TestProxyCasesNameTestsThatExist(t *testing.T) {
	text, err := os.ReadFile("../docs/PROXY_CASES.md")
	if err != nil {
		t.Fatal(err)
	}
	const cases = 60
	if n := len(caseRow.FindAllString(string(text), -1)); n != cases {
		t.Errorf("got %d rows, want the %d cases", n, cases)
	}
	for _, e := range caseErrors(string(text), testFunctions(t)) {
		t.Error(e)
	}
}

func TestProxyCasesAreChecked(t *testing.T) {
	text := "| 1 | A | x | `TestGone` |\n| 1 | A | x | `Relay/gone` |\n| 2 | A | x | nothing |\n| 3 | A | x | not yet: y |\n| 4 | A | x | `TestHere` |\n"
	got := caseErrors(text, map[string]bool{"TestHere": true})
	want := []string{"1: TestGone: no such test", "1: got it twice, want each case once", "1: Relay/gone: no such test", "2: got no test, want one or what is missing"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
