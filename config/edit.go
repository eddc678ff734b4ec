package config

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// SetObjective returns the text of a file with another ttft, ttft_per_token,
// ttft_factor and tbt in its slo section, and nothing else changed: comments,
// order and other keys stay as they are. It edits lines, then reads both texts
// and refuses a result that says anything else.
func SetObjective(text []byte, l Limits) ([]byte, error) {
	before, err := Parse(text)
	if err != nil {
		return nil, err
	}
	edited, err := editSLO(string(text), []setting{
		{"ttft", DurationText(l.TTFT)}, {"ttft_per_token", DurationText(l.TTFTPerToken)},
		{"ttft_factor", strconv.FormatFloat(l.TTFTFactor, 'g', -1, 64)}, {"tbt", DurationText(l.TBT)},
	})
	if err != nil {
		return nil, err
	}
	want := before
	want.SLO.TTFT, want.SLO.TTFTPerToken, want.SLO.TTFTFactor, want.SLO.TBT = l.TTFT, l.TTFTPerToken, l.TTFTFactor, l.TBT
	after, err := Parse([]byte(edited))
	if err != nil {
		return nil, fmt.Errorf("slo: got a section that could not be edited (%w), want one key a line; put the values in by hand", err)
	}
	if !reflect.DeepEqual(after, want) {
		return nil, fmt.Errorf("slo: got a section that could not be edited without changing more, want one key a line; put the values in by hand")
	}
	return []byte(edited), nil
}

// DurationText is a duration as a file has it, in ASCII: 81.3us.
func DurationText(d time.Duration) string { return strings.ReplaceAll(d.String(), "µ", "u") }

// setting is a key with the text of its value.
type setting struct{ key, value string }

var (
	sloLine = regexp.MustCompile(`^slo:[ \t]*(.*?)\r?$`)
	// keyLine is a key's line: indentation, key, value, blanks, comment.
	keyLine = regexp.MustCompile(`^( +)([a-z0-9_]+):([ \t]+)([^#\r]*?)([ \t]*)(#[^\r]*)?(\r?)$`)
)

// editSLO sets keys of the slo section, which it appends where there is none.
func editSLO(text string, settings []setting) (string, error) {
	lines := strings.Split(text, "\n")
	head := -1
	for i, line := range lines {
		if m := sloLine.FindStringSubmatch(line); m != nil {
			if m[1] != "" && !strings.HasPrefix(m[1], "#") {
				return "", fmt.Errorf("slo: got %q on line %d, want the section's keys below it, one a line; nothing is written", strings.TrimSpace(line), i+1)
			}
			head = i
			break
		}
	}
	if head < 0 {
		return appendSLO(text, settings), nil
	}
	end, indent := section(lines, head)
	var missing []string
	for _, s := range settings {
		if !replace(lines[head+1:end], indent, s) {
			missing = append(missing, indent+s.key+": "+s.value+strings.Repeat("\r", strings.Count(lines[head], "\r")))
		}
	}
	lines = append(lines[:head+1:head+1], append(missing, lines[head+1:]...)...)
	return strings.Join(lines, "\n"), nil
}

// appendSLO adds a section at the end of a text that has none.
func appendSLO(text string, settings []setting) string {
	var b strings.Builder
	b.WriteString(text)
	if text != "" && !strings.HasSuffix(text, "\n") {
		b.WriteByte('\n')
	}
	b.WriteString("\nslo:\n")
	for _, s := range settings {
		b.WriteString("  " + s.key + ": " + s.value + "\n")
	}
	return b.String()
}

// section finds the end of the section whose head stands at a line, and how far
// its keys are indented.
func section(lines []string, head int) (end int, indent string) {
	for i := head + 1; i < len(lines); i++ {
		line := strings.TrimRight(lines[i], " \t\r")
		bare := strings.TrimLeft(line, " ")
		if bare == "" || bare[0] == '#' {
			continue
		}
		if bare == line {
			end = i
			break
		}
		if indent == "" {
			indent = line[:len(line)-len(bare)]
		}
	}
	if end == 0 {
		end = len(lines)
	}
	if indent == "" {
		indent = "  "
	}
	return end, indent
}

// replace sets a key's value in its line and keeps the comment where it stands.
func replace(lines []string, indent string, s setting) bool {
	for i, line := range lines {
		m := keyLine.FindStringSubmatch(line)
		if m == nil || m[1] != indent || m[2] != s.key {
			continue
		}
		value := s.value
		if m[6] != "" {
			value += strings.Repeat(" ", max(len(m[4])+len(m[5])-len(value), 1))
		}
		lines[i] = m[1] + m[2] + ":" + m[3] + value + m[6] + m[7]
		return true
	}
	return false
}
