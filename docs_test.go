package main_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// firstOf is a text up to its first heading of the second level: what somebody
// reads who reads no further.
func firstOf(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n## ")
	return strings.Join(strings.Fields(first), " ")
}

func TestFirstScreensSayWhatIsNotSoYet(t *testing.T) {
	for file, wants := range map[string][]string{
		"README.md": {
			"**Only the CPU has been measured.**", "that and the CUDA side of the training runtime are written and have not run on one",
			"**A stock vLLM lends nothing**: its pool is static", "With the plugin `lull-vllm` beside it",
		},
		"docs/ENGINES.md": {"**Only host memory was measured**", "nothing of that has run on one yet"},
		"docs/VLLM.md":    {"**On CPU only today.** A GPU can be named", "has run on one"},
		"docs/DEVICES.md": {"**Nothing of this has run on a real GPU yet.**"},
	} {
		for _, want := range wants {
			if first := firstOf(t, file); !strings.Contains(first, want) {
				t.Errorf("%s: its first screen does not say %q:\n%s", file, want, first)
			}
		}
	}
}

func TestKvcachedSectionSaysThatItHasNotRunOnAGPU(t *testing.T) {
	text, err := os.ReadFile("docs/ENGINES.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## kvcached\n")
	section, _, _ = strings.Cut(section, "\n```")
	if !strings.Contains(section, "the whole of it has not run on a GPU") {
		t.Errorf("docs/ENGINES.md: the section on kvcached begins without it:\n%s", section)
	}
}

func TestPriceOfThePluginIsThatOfItsTable(t *testing.T) {
	table, err := os.ReadFile("docs/VLLM.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile(`\| throughput against a vLLM without the plugin.*\| ([+-]\d+\.\d)%`).FindSubmatch(table)
	if row == nil {
		t.Fatal("docs/VLLM.md: no row with the plugin's throughput")
	}
	want := string(row[1]) + " %"
	for _, file := range []string{"README.md", "docs/VLLM.md"} {
		if first := firstOf(t, file); !strings.Contains(first, want) {
			t.Errorf("%s: its first screen does not name the plugin's price of %s throughput", file, want)
		}
	}
}
