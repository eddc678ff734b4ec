package config

import (
	"strings"
	"testing"
	"time"
)

var calibrated = Limits{TTFT: 35500 * time.Microsecond, TTFTPerToken: 81300 * time.Nanosecond, TTFTFactor: 4, TBT: 76 * time.Millisecond}

func TestSetObjectiveKeepsTheRestOfTheFile(t *testing.T) {
	const keys = "  ttft: 35.5ms\n  ttft_per_token: 81.3us\n  ttft_factor: 4\n  tbt: 76ms\n"
	for name, c := range map[string]struct{ text, want string }{
		"no section":         {minimal, minimal + "\nslo:\n" + keys},
		"no line end":        {strings.TrimSuffix(minimal, "\n"), minimal + "\nslo:\n" + keys},
		"empty section":      {minimal + "slo:\npolicy: {quantum: 32MiB}\n", minimal + "slo:\n" + keys + "policy: {quantum: 32MiB}\n"},
		"comments and order": {minimal + "# why\nslo: # ours\n    # at first\n    tbt: 1s   # each gap\n\n    ttft: 2s # first\n    success: 0.999\n# next\npolicy: {quantum: 32MiB} # last\n", minimal + "# why\nslo: # ours\n    ttft_per_token: 81.3us\n    ttft_factor: 4\n    # at first\n    tbt: 76ms # each gap\n\n    ttft: 35.5ms # first\n    success: 0.999\n# next\npolicy: {quantum: 32MiB} # last\n"},
		"entries' own keys":  {minimal + "slo:\n  objectives:\n    - name: a\n      model: m\n      ttft: 9s\n  tbt: 1s\n", minimal + "slo:\n  ttft: 35.5ms\n  ttft_per_token: 81.3us\n  ttft_factor: 4\n  objectives:\n    - name: a\n      model: m\n      ttft: 9s\n  tbt: 76ms\n"},
		"other line ends":    {strings.ReplaceAll(minimal+"slo:\n  ttft: 1s\n", "\n", "\r\n"), strings.ReplaceAll(minimal+"slo:\n  ttft_per_token: 81.3us\n  ttft_factor: 4\n  tbt: 76ms\n  ttft: 35.5ms\n", "\n", "\r\n")},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := SetObjective([]byte(c.text), calibrated)
			if err != nil || string(got) != c.want {
				t.Errorf("got %v:\n%q\nwant\n%q", err, got, c.want)
			}
		})
	}
}

func TestSetObjectiveOfTheExampleChangesFourLines(t *testing.T) {
	got, err := SetObjective([]byte(Example), calibrated)
	if err != nil {
		t.Fatal(err)
	}
	before, after := strings.Split(Example, "\n"), strings.Split(string(got), "\n")
	if len(before) != len(after) {
		t.Fatalf("%d lines, want %d", len(after), len(before))
	}
	var changed []string
	for i, line := range after {
		if line != before[i] {
			changed = append(changed, strings.TrimSpace(strings.Split(line, "#")[0]))
			if a, b := strings.Index(line, "#"), strings.Index(before[i], "#"); a != b && !strings.Contains(line, "81.3us #") { // no room before that one
				t.Errorf("%q: the comment moved from column %d to %d", line, b, a)
			}
		}
	}
	if want := "ttft: 35.5ms, ttft_per_token: 81.3us, ttft_factor: 4, tbt: 76ms"; strings.Join(changed, ", ") != want {
		t.Errorf("changed %q, want %s", changed, want)
	}
}

func TestSetObjectiveRefusesWhatItCannotEdit(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"braces":     {minimal + "slo: {ttft: 1s}\n", `slo: got "slo: {ttft: 1s}" on line 6, want the section's keys below it, one a line; nothing is written`},
		"quoted key": {minimal + "\"slo\":\n  ttft: 1s\n", "slo: got a section that could not be edited (not YAML: "},
		"bad file":   {"engines: []", "engines: got none, want at least one with a url"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := SetObjective([]byte(c.text), calibrated)
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func FuzzSetObjectiveChangesOnlyTheObjective(f *testing.F) {
	f.Add([]byte(Example))
	f.Add([]byte(tiered))
	f.Add([]byte(minimal + "slo:\n  ttft: 1s # x\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := SetObjective(text, calibrated)
		if err != nil {
			return
		}
		again, err := SetObjective(got, calibrated)
		if err != nil || string(again) != string(got) {
			t.Fatalf("set again: %v\n%q\nwant\n%q", err, again, got)
		}
	})
}
