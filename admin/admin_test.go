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

type fakeSource struct {
	unready  bool
	problems []string
}

func (f fakeSource) State() any     { return map[string]int{"capacity_bytes": 7} }
func (f fakeSource) Handovers() any { return []int{2, 1} }
func (f fakeSource) Ready() (bool, []string) {
	return !f.unready, append([]string{}, f.problems...)
}

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
	wrong := []string{"engine main: connection refused"}
	for status, want := range map[int]string{
		503: `{"problems":["engine main: connection refused"],"ready":false}`,
		200: `{"problems":["engine main: connection refused"],"ready":true}`, // another serves
	} {
		if got, body := get(t, fakeSource{unready: status == 503, problems: wrong}, "/readyz"); got != status || body != want {
			t.Errorf("%d %s, want %d %s", got, body, status, want)
		}
	}
}

func TestUnknownPathNamesTheOnesThatExist(t *testing.T) {
	status, body := get(t, fakeSource{}, "/v1/chat/completions")
	if status != 404 || !strings.Contains(body, "no such path: /v1/chat/completions; this is the admin listener") {
		t.Errorf("%d %s", status, body)
	}
}
