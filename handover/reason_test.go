package handover

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// reasonsInCode are the constants of reason.go.
func reasonsInCode(t *testing.T) (words []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "reason.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok {
			word, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			words = append(words, word)
		}
		return true
	})
	slices.Sort(words)
	return words
}

func TestEveryReasonIsExplained(t *testing.T) {
	text, err := os.ReadFile("../docs/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	_, said, ok := strings.Cut(string(text), "\n**Why memory moves**")
	if !ok {
		t.Fatal("docs/METRICS.md has no paragraph on why memory moves")
	}
	said, _, _ = strings.Cut(said, "\n\n")
	_, said, _ = strings.Cut(said, "Of orders:")
	var words []string
	for _, w := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(said, -1) {
		words = append(words, w[1])
	}
	slices.Sort(words)
	if code := reasonsInCode(t); !slices.Equal(slices.Compact(words), code) {
		t.Errorf("docs/METRICS.md explains %v, the code knows %v", words, code)
	}
}

// TestReasonsAreThoseOfTheList: no order and no bound has a word of its own.
func TestReasonsAreThoseOfTheList(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			to, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || to.Sel.Name != "issue" && to.Sel.Name != "setBound" {
				return true
			}
			calls++
			for _, a := range call.Args {
				if lit, ok := a.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					t.Errorf("%s: %s is given %s, want a constant of reason.go", name, to.Sel.Name, lit.Value)
				}
			}
			return true
		})
	}
	if calls < 10 {
		t.Errorf("found %d calls that give a reason, want all of them", calls)
	}
}
