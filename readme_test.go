package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documents are the texts whose commands a reader will type.
func documents(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(tracked(t), func(f string) bool { return filepath.Ext(f) != ".md" })
}

// code is what stands between backquotes, in lines or in fences.
var code = regexp.MustCompile("(?s)```.*?```|`[^`\n]+`")

// commands finds what follows a word at the start of a line of code: `make x`,
// `lull x`.
func commands(text, word string) []string {
	var found []string
	pattern := regexp.MustCompile("(?m)^[`\\s]*(?:\\$ )?(?:[A-Z_]+=\\S+ )*(?:\\./)?(?:bin/)?" + word + ` ([a-z][a-z-]*)`)
	for _, c := range code.FindAllString(text, -1) {
		for _, m := range pattern.FindAllStringSubmatch(c, -1) {
			found = append(found, m[1])
		}
	}
	return found
}

func TestCommandsAreFoundInCode(t *testing.T) {
	text := "make sure of `make demo` and\n```\n$ make test\nCI=true bin/lull serve --config x\n a drawing of -> lull things\n```\n lull in prose"
	if got := append(commands(text, "make"), commands(text, "lull")...); !slices.Equal(got, []string{"demo", "test", "serve"}) {
		t.Errorf("got %q, want demo, test, serve", got)
	}
}

func TestDocumentsNameOnlyMakeTargetsThatExist(t *testing.T) {
	body, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range documents(t) {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, target := range commands(string(text), "make") {
			if !regexp.MustCompile(`(?m)^` + target + `:`).Match(body) {
				t.Errorf("%s: `make %s`: the Makefile has no such target", f, target)
			}
		}
	}
}

func TestDocumentsNameOnlyVerbsThatExist(t *testing.T) {
	lull := filepath.Join(t.TempDir(), "lull")
	if out, err := exec.Command("go", "build", "-o", lull, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	for _, f := range documents(t) {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		verbs := commands(string(text), "lull")
		slices.Sort(verbs)
		for _, verb := range slices.Compact(verbs) {
			out, err := exec.Command(lull, verb, "--help").CombinedOutput()
			if err != nil || !strings.Contains(string(out), "lull "+verb) {
				t.Errorf("%s: `lull %s`: got %v %.200s, want a verb of the command line", f, verb, err, out)
			}
		}
	}
}

func TestEveryMakeTargetIsExplained(t *testing.T) {
	body, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z-]*):(.*)$`).FindAllStringSubmatch(string(body), -1) {
		if m[1] != "sysdeps" && !strings.Contains(m[2], "## ") {
			t.Errorf("Makefile: %s: got no ## line, want one that says what it does", m[1])
		}
	}
}
