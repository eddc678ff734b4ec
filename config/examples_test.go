package config

import (
	"os"
	"regexp"
	"testing"
)

// TestExamplesOfTheDocumentsAreValidAndWarnOfNothing: who copies one gets what it says.
func TestExamplesOfTheDocumentsAreValidAndWarnOfNothing(t *testing.T) {
	blocks := regexp.MustCompile("(?s)\n```[a-z]*\n(devices: .*?|devices:\n.*?)```")
	for file, least := range map[string]int{"../docs/ENGINES.md": 4, "../docs/DEVICES.md": 1, "../docs/VLLM.md": 1} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := blocks.FindAllStringSubmatch(string(text), -1)
		if len(found) < least {
			t.Errorf("%s: found %d examples, want at least %d", file, len(found), least)
		}
		for _, block := range found {
			f, err := Parse([]byte(block[1]))
			if err != nil || len(f.Warnings()) > 0 {
				t.Errorf("%s: %v, warnings %q, of\n%s", file, err, f.Warnings(), block[1])
			}
		}
	}
}
