package main_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxLines is where a file must have been split.
const maxLines = 500

// tracked is every file of the repository that git knows.
func tracked(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v; these tests read a checkout", err)
	}
	files := strings.Split(strings.TrimRight(string(out), "\x00"), "\x00")
	return slices.DeleteFunc(files, func(f string) bool { _, err := os.Stat(f); return err != nil })
}

// isTest tells tests from what they test.
func isTest(file string) bool {
	base := filepath.Base(file)
	return strings.HasSuffix(base, "_test.go") || strings.HasPrefix(base, "test_") || strings.Contains("/"+file, "/tests/")
}

func TestEveryPackageHasADocFile(t *testing.T) {
	for _, p := range goList(t) {
		if len(p.GoFiles) == 0 || p.ImportPath == module {
			continue
		}
		doc, err := os.ReadFile(filepath.Join(p.Dir, "doc.go"))
		if err != nil {
			t.Errorf("%s: no doc.go; say what the package is, what it never does, one example, the concurrency rule", rel(p.ImportPath))
			continue
		}
		if name := filepath.Base(p.ImportPath); !bytes.Contains(doc, []byte("// Package "+name+" ")) {
			t.Errorf("%s: doc.go does not begin with \"Package %s\"", rel(p.ImportPath), name)
		}
	}
}

func TestNoFileIsTooLong(t *testing.T) {
	for _, f := range tracked(t) {
		if ext := filepath.Ext(f); (ext != ".go" && ext != ".py") || isTest(f) {
			continue
		}
		body, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(body, []byte("\n")); n > maxLines {
			t.Errorf("%s: got %d lines, want at most %d: one idea a file", f, n, maxLines)
		}
	}
}

// machinePath finds what only one machine has: homes, work folders, and the
// folder that lies beside the checkout on some.
var machinePath = regexp.MustCompile(`/(?:root|home/[a-z]+|Users/[a-z]+)/|/wo` + `rk/|\.\./sha` + `red\b|/tmp/(?:lull|vt)`)

// hasMachinePath tells whether a text names such a path.
func hasMachinePath(b []byte) bool { return machinePath.Match(b) }

func TestNoFileNamesAPathOfOneMachine(t *testing.T) {
	for _, bad := range []string{"/ro" + "ot/.cache", "see ../sha" + "red/x", "/wo" + "rk/main"} {
		if !hasMachinePath([]byte(bad)) {
			t.Errorf("%q: got nothing, want it found", bad)
		}
	}
	for _, f := range tracked(t) {
		body, err := os.ReadFile(f)
		if err != nil || bytes.IndexByte(body, 0) >= 0 {
			continue
		}
		for i, line := range bytes.Split(body, []byte("\n")) {
			if hasMachinePath(line) {
				t.Errorf("%s:%d: names a path of one machine: %s", f, i+1, machinePath.Find(line))
			}
		}
	}
}

// clockCalls are the functions that read a clock or wait on it.
var clockCalls = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}

// impure names what in a file reads a clock, starts a goroutine or uses a channel.
func impure(f *ast.File) []string {
	var found []string
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = append(found, "a go statement")
		case *ast.ChanType:
			found = append(found, "a channel")
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clockCalls, n.Sel.Name) {
				found = append(found, "time."+n.Sel.Name)
			}
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "rand" && !slices.Contains([]string{"New", "NewPCG", "NewChaCha8", "Rand", "Source", "PCG", "ChaCha8"}, n.Sel.Name) {
				found = append(found, "rand."+n.Sel.Name+" of the global source")
			}
		}
		return true
	})
	return found
}

func TestTheCoreReadsNoClock(t *testing.T) {
	for _, p := range goList(t) {
		if name, _ := layerOf(rel(p.ImportPath)); !slices.Contains(pure, name) {
			continue
		}
		for _, file := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, what := range impure(f) {
				t.Errorf("%s/%s: %s: %s", rel(p.ImportPath), file, what, pureRule)
			}
		}
	}
}

// pytestRoots are the folders whose Python tests scripts/run_tests.py runs.
func pytestRoots(t *testing.T) []string {
	t.Helper()
	body, err := os.ReadFile("scripts/run_tests.py")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^PYTEST_ROOTS = \{(.*)\}$`).FindSubmatch(body)
	if line == nil {
		t.Fatal("scripts/run_tests.py: got no PYTEST_ROOTS, want the folders with Python tests")
	}
	var roots []string
	for _, m := range regexp.MustCompile(`"([^"]+)":`).FindAllSubmatch(line[1], -1) {
		roots = append(roots, string(m[1]))
	}
	return roots
}

func TestEveryPythonTestIsRun(t *testing.T) {
	roots := pytestRoots(t)
	for _, f := range tracked(t) {
		if base := filepath.Base(f); !strings.HasPrefix(base, "test_") || filepath.Ext(base) != ".py" {
			continue
		}
		if !slices.ContainsFunc(roots, func(r string) bool { return strings.HasPrefix(f, r+"/") }) {
			t.Errorf("%s: in none of %v, so `make test` does not run it", f, roots)
		}
	}
}
