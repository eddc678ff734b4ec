package proxy

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// chatBody is a chat request with those contents.
func chatBody(model, tools string, contents ...string) string {
	var list []map[string]string
	for _, c := range contents {
		list = append(list, map[string]string{"role": "user", "content": c})
	}
	text, _ := json.Marshal(list)
	return fmt.Sprintf(`{"messages":%s,"tools":%s,"model":%q}`, text, tools, model)
}

func marksOf(body string, piece int) []Mark {
	_, r := scanText(chat{}, body, piece)
	return r.Prefix
}

// inCommon is how far two prompts' marks agree.
func inCommon(a, b []Mark) (upto int) {
	for i := range min(len(a), len(b)) {
		if a[i].Sum != b[i].Sum {
			break
		}
		upto = max(a[i].Upto, b[i].Upto)
	}
	return upto
}

func TestPromptsThatBeginAlikeHaveMarksInCommonAsFarAsTheyDo(t *testing.T) {
	system := strings.Repeat("You answer in short sentences.\n", 200) // 6200 bytes
	a := marksOf(chatBody("m", "[]", system, "What is a lull?"), 1<<20)
	b := marksOf(chatBody("m", "[]", system, "And what is a burst?"), 100)
	if n := inCommon(a, b); n > len(system) || n < len(system)*3/4 {
		t.Errorf("%d bytes in common of a system prompt of %d", n, len(system))
	}
	for name, other := range map[string]string{
		"another model": chatBody("x", "[]", system), "other tools": chatBody("m", `[{"name":"t"}]`, system),
		"another beginning": chatBody("m", "[]", "!"+system),
	} {
		if n := inCommon(a, marksOf(other, 1<<20)); n != 0 {
			t.Errorf("%s: %d bytes in common, want none", name, n)
		}
	}
	for name, body := range map[string]string{
		"a short prompt":    chatBody("m", "[]", "hello"),
		"several prompts":   fmt.Sprintf(`{"prompt":[%q,"b"]}`, system),
		"two places":        fmt.Sprintf(`{"prompt":%q,"messages":[]}`, system),
		"a cut-off body":    chatBody("m", "[]", system)[:5000],
		"no text but media": fmt.Sprintf(`{"messages":[{"image_url":%q}]}`, strings.Repeat("A", 9000)),
	} {
		if got := marksOf(body, 1<<20); got != nil {
			t.Errorf("%s has marks %v, want none", name, got)
		}
	}
}

func TestPromptWithMediaBesideItHasNoMarks(t *testing.T) {
	body := fmt.Sprintf(`{"prompt":%q,"images":["A"]}`, strings.Repeat("words ", 1000))
	for body, want := range map[string]bool{body: true, strings.Replace(body, `["A"]`, `[]`, 1): false} {
		if _, r := scanText(ollama{}, body, 1<<20); (r.Prefix == nil) != want {
			t.Errorf("%s…: got %d marks, want none: %t", body[len(body)-20:], len(r.Prefix), want)
		}
	}
}

func TestMarksOfTokenIDsCountIDs(t *testing.T) {
	_, r := scanText(completions{}, `{"prompt":[`+strings.Repeat("17,", 999)+`17]}`, 1<<20)
	if n := len(r.Prefix); n == 0 || r.Prefix[0].Upto < 330 || r.Prefix[n-1].Upto > 1000 {
		t.Errorf("got %v of 1000 ids", r.Prefix)
	}
}

// TestMarksInCommonSayTheTruth: whatever two bodies are and however they were cut,
// the text up to a mark with the same Sum is the same.
func TestMarksInCommonSayTheTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pool := []string{strings.Repeat("ab\n", 300), strings.Repeat("é\"", 400), strings.Repeat("x", 1500), "y", ""}
		draw := func(name string) []string {
			return rapid.SliceOfN(rapid.SampledFrom(pool), 1, 6).Draw(t, name)
		}
		x, y := draw("x"), draw("y")
		piece := rapid.IntRange(1, 3000).Draw(t, "piece")
		a, b := marksOf(chatBody("m", "[]", x...), 1<<20), marksOf(chatBody("m", "[]", y...), piece)
		if again := marksOf(chatBody("m", "[]", x...), piece); !reflect.DeepEqual(a, again) {
			t.Fatalf("cut in pieces of %d: got %v, whole %v", piece, again, a)
		}
		n, p, q := inCommon(a, b), strings.Join(x, ""), strings.Join(y, "")
		if n > len(p) || n > len(q) || p[:n] != q[:n] {
			t.Fatalf("%d bytes in common of %d and %d", n, len(p), len(q))
		}
		last := 0
		for _, m := range a {
			if m.Upto <= last || m.Upto > len(p) {
				t.Fatalf("marks %v do not rise within %d bytes", a, len(p))
			}
			last = m.Upto
		}
	})
}
