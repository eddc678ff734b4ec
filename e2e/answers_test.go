package e2e

import (
	"bytes"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

const prompt = "Name the capital of France and say one thing about it."

// TestTheOpenAIClientGetsItsAnswers asks through Lull, with training beside it,
// and directly.
func TestTheOpenAIClientGetsItsAnswers(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		direct := s.up(t)
		l := serve(t, s)
		l.train(t)
		for _, endpoint := range []string{"chat", "completions"} {
			for _, how := range []string{"whole", "stream"} {
				want := ask(t, direct, s.model, endpoint, how, 24, prompt)
				got := ask(t, l.url, s.model, endpoint, how, 24, prompt)
				if got.Text != want.Text || got.Tokens != 24 || want.Tokens != 24 || got.Finish != "length" {
					t.Errorf("%s %s: got %+v, want %+v", endpoint, how, got, want)
				}
				if how == "stream" && len(got.At) < 5 { // a busy server puts several tokens into one event
					t.Errorf("%s: got %d events for 24 tokens, want a stream of them", endpoint, len(got.At))
				}
			}
		}
		before := trained(l.state(t))
		l.waitFor(t, "training goes on", time.Minute, func(st state) bool { return trained(st) > before })
	})
}

// differing is what two answers to one request differ in: ids, times, and what
// llama.cpp tells of its own speed.
var differing = regexp.MustCompile(`"id":"[^"]*"|"created":[0-9]+|"[a-z_]+_(?:ms|per_second)":[0-9.e+-]+`)

func same(body []byte) string { return differing.ReplaceAllString(string(body), "~") }

// said is the text of an event of a stream, where it stands in it.
var said = regexp.MustCompile(`"(?:text|content)":"((?:[^"\\]|\\.)*)"`)

// joined is a stream however its server cut it into events: vLLM puts all tokens
// that it made since its last event into one, so two answers to one request can
// differ in how many there are. It holds the whole text, then the events
// without theirs, equal neighbours as one.
func joined(body []byte) string {
	var text strings.Builder
	var events []string
	for event := range strings.SplitSeq(same(body), "\n\n") {
		if at := said.FindStringSubmatchIndex(event); at != nil {
			text.WriteString(event[at[2]:at[3]])
			event = event[:at[2]] + event[at[3]:]
		}
		if len(events) == 0 || events[len(events)-1] != event {
			events = append(events, event)
		}
	}
	return text.String() + "\n\n" + strings.Join(events, "\n\n")
}

// TestJoinedIsEqualHoweverAStreamIsCut holds the comparison itself to account:
// blind to the cuts, and to nothing else.
func TestJoinedIsEqualHoweverAStreamIsCut(t *testing.T) {
	event := func(text, finish string) string {
		return `data: {"id":"` + strconv.Itoa(len(text)) + `","choices":[{"text":"` + text + `","finish_reason":` + finish + "}]}\n\n"
	}
	const done = "data: [DONE]\n\n"
	want := joined([]byte(event("a", "null") + event(`\"b`, "null") + event("c", `"length"`) + done))
	for _, equal := range []string{
		event(`a\"b`, "null") + event("c", `"length"`) + done,
		event("a", "null") + event(`\"bc`, `"length"`) + done,
	} {
		if got := joined([]byte(equal)); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	for name, other := range map[string]string{
		"a token lost":     event("a", "null") + event("c", `"length"`) + done,
		"tokens exchanged": event(`\"b`, "null") + event("a", "null") + event("c", `"length"`) + done,
		"no end":           event("a", "null") + event(`\"b`, "null") + event("c", `"length"`),
		"another finish":   event("a", "null") + event(`\"b`, "null") + event("c", `"stop"`) + done,
		"other line ends":  strings.ReplaceAll(event("a", "null")+event(`\"bc`, `"length"`)+done, "\n", "\r\n"),
	} {
		if got := joined([]byte(other)); got == want {
			t.Errorf("%s: got the same, want a difference in\n%s", name, got)
		}
	}
}

type raw struct {
	status int
	kind   string
	body   []byte
}

func post(t *testing.T, url, body string) raw {
	t.Helper()
	got, err := fetch(http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// fetch sends one request on a connection of its own: one that a server just
// closed must not fail a test.
func fetch(method, url, body string) (raw, error) {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return raw{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return raw{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return raw{resp.StatusCode, resp.Header.Get("Content-Type"), b}, err
}

func TestBytesEqualThoseOfADirectCall(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		direct := s.up(t)
		l := serve(t, s)
		options := `"model":"` + s.model + `","max_tokens":16,"temperature":0,"seed":1,"ignore_eos":true`
		for name, c := range map[string]struct{ path, body string }{
			"chat":               {"/v1/chat/completions", `{` + options + `,"messages":[{"role":"user","content":"hello"}]}`},
			"chat stream":        {"/v1/chat/completions", `{` + options + `,"messages":[{"role":"user","content":"hello"}],"stream":true,"stream_options":{"include_usage":true}}`},
			"completions":        {"/v1/completions", `{` + options + `,"prompt":"hello"}`},
			"completions stream": {"/v1/completions", `{` + options + `,"prompt":"hello","stream":true}`},
			"no JSON":            {"/v1/chat/completions", `{"messages":`},
			"wrong type":         {"/v1/chat/completions", `{"messages":7}`},
			"unknown path":       {"/v1/nothing", `{}`},
		} {
			t.Run(name, func(t *testing.T) {
				post(t, direct+c.path, c.body) // what it caches is cached from here on
				want, got := post(t, direct+c.path, c.body), post(t, l.url+c.path, c.body)
				equal := same
				if strings.HasSuffix(name, "stream") {
					equal = joined
				}
				if got.status != want.status || got.kind != want.kind || equal(got.body) != equal(want.body) {
					t.Errorf("got %d %s\n%s\nwant %d %s\n%s", got.status, got.kind, got.body, want.status, want.kind, want.body)
				}
				if want.status == http.StatusOK && !bytes.Contains(want.body, []byte(strconv.Quote("length"))) {
					t.Errorf("got %s, want an answer that ends by its length", want.body)
				}
			})
		}
	})
}

func TestAStaticPoolIsReportedAsStatic(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		l := serve(t, s)
		st := l.waitFor(t, "the engine is known", 30*time.Second, func(st state) bool {
			return len(st.Engines) == 1 && st.Engines[0].Sample != nil
		})
		e := st.Engines[0]
		if e.Kind != s.kind || !e.Static || e.Problem != "" || !strings.Contains(e.Note, "nothing to lend") {
			t.Errorf("got %+v, want a static %s that says it has nothing to lend", e, s.kind)
		}
		if e.Sample.Pool == 0 || e.Sample.Held != e.Sample.Pool || e.Sample.Bound != e.Sample.Pool {
			t.Errorf("got %+v, want bound = held = the pool", e.Sample)
		}
	})
}
