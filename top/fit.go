package top

import "fmt"

// fit cuts lines to a terminal: what is wider than a row would go on in the next one,
// and what is longer than the screen would push its head off. The last row says how
// many are missing.
func fit(lines []string, size func() (columns, rows int)) []string {
	columns, rows := size()
	if missing := len(lines) - rows + 1; rows > 0 && missing > 1 {
		lines = append(lines[:rows-1:rows-1], fmt.Sprintf("... and %d more lines, in a higher window", missing))
	}
	if columns <= 0 {
		return lines
	}
	cut := make([]string, len(lines))
	for i, line := range lines {
		cut[i] = line
		if r := []rune(line); len(r) > columns {
			cut[i] = string(r[:columns])
		}
	}
	return cut
}
