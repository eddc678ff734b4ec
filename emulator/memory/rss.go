package memory

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// RSS is RssAnon + RssShmem of this process in bytes: what it holds of its own,
// without the files that it maps.
func RSS() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, fmt.Errorf("memory: read own size: %w", err)
	}
	return parseStatus(status)
}

func parseStatus(status []byte) (int64, error) {
	var sum int64
	for _, name := range []string{"RssAnon:", "RssShmem:"} {
		kib, err := field(status, name)
		if err != nil {
			return 0, err
		}
		sum += kib << 10
	}
	return sum, nil
}

// field reads "Name:   123 kB".
func field(status []byte, name string) (int64, error) {
	for line := range bytes.Lines(status) {
		words := bytes.Fields(line)
		if len(words) < 2 || string(words[0]) != name {
			continue
		}
		kib, err := strconv.ParseInt(string(words[1]), 10, 64)
		if err != nil || kib < 0 {
			return 0, fmt.Errorf("memory: /proc/self/status: %s got %q, want a number of kB", name, words[1])
		}
		return kib, nil
	}
	return 0, fmt.Errorf("memory: /proc/self/status: no line %s; Linux 4.5 or later has it", name)
}
