package admin

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
)

func TestMain(m *testing.M) {
	Quiet()
	os.Exit(m.Run())
}

type fakeSource struct{ problems []string }

func (f fakeSource) State() any         { return map[string]int{"capacity_bytes": 7} }
func (f fakeSource) Handovers() any     { return []int{2, 1} }
func (f fakeSource) Problems() []string { return f.problems }

func get(t *testing.T, source Source, path string) (int, string) {
	t.Helper()
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "lull_x 1\n") })
	server := httptest.NewServer(New(source, metrics))
	defer server.Close()
	resp, err := server.Client().Get(server.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

func TestEachPathAnswers(t *testing.T) {
	for path, want := range map[string]string{
		"/healthz": "ok\n", "/readyz": `{"problems":[],"ready":true}`, "/metrics": "lull_x 1\n",
		"/api/v1/state": `{"capacity_bytes":7}`, "/api/v1/handovers": `[2,1]`,
	} {
		if status, body := get(t, fakeSource{}, path); status != 200 || body != want {
			t.Errorf("%s: %d %q, want 200 %q", path, status, body, want)
		}
	}
}

func TestReadyzSaysWhatIsWrong(t *testing.T) {
	status, body := get(t, fakeSource{problems: []string{"engine main: connection refused"}}, "/readyz")
	if status != 503 || !strings.Contains(body, "engine main: connection refused") {
		t.Errorf("%d %s", status, body)
	}
}

func TestUnknownPathNamesTheOnesThatExist(t *testing.T) {
	status, body := get(t, fakeSource{}, "/v1/chat/completions")
	if status != 404 || !strings.Contains(body, "no such path: /v1/chat/completions; this is the admin listener") {
		t.Errorf("%d %s", status, body)
	}
}
