package e2e

import (
	"encoding/json"
	"os/exec"
	"strconv"
	"testing"
)

// answer is what the OpenAI client got.
type answer struct {
	Text, Finish string
	Tokens       int
	// At is the client's time of every generated event, in Unix microseconds.
	At []int64
}

// ask sends one request by the OpenAI client.
func ask(t *testing.T, base, model, endpoint, how string, tokens int, prompt string) answer {
	t.Helper()
	cmd := exec.Command(full, "testdata/client.py", base, model, endpoint, how, strconv.Itoa(tokens), prompt)
	out, err := cmd.Output()
	if err != nil {
		var stderr []byte
		if e, ok := err.(*exec.ExitError); ok {
			stderr = e.Stderr
		}
		t.Fatalf("openai client: %v\n%s", err, stderr)
	}
	var a answer
	for _, line := range lines(string(out)) {
		var event struct {
			T            int64 `json:"t_us"`
			Text, Finish string
			Tokens       int
		}
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatalf("openai client: got %q: %v", line, err)
		}
		if event.T != 0 {
			a.At = append(a.At, event.T)
			continue
		}
		a.Text, a.Finish, a.Tokens = event.Text, event.Finish, event.Tokens
	}
	return a
}
