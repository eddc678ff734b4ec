package engine

import (
	"strings"
	"testing"

	"github.com/lull-project/lull/endpoint"
	"github.com/lull-project/lull/endpoint/endpointtest"
)

func TestServerBehindASocketIsProbedAsAnyOther(t *testing.T) {
	at := "unix://" + endpointtest.Socket(t, routes{"/v1/models": models, "/metrics": read(t, "vllm-0.32.0.metrics"), "/version": `{"version":"0.32.0"}`})
	text, r, err := probe(t, probeConfig(t, at))
	if err != nil || r.Trouble != nil {
		t.Fatalf("%v, %v", err, r.Trouble)
	}
	for _, want := range []string{at + ": vLLM 0.32.0 (kind vllm)\n", `    url: "` + at + "\"\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestErrorsSpellTheAddressAsTheConfigDoes(t *testing.T) {
	at := "unix://" + endpointtest.Socket(t, routes{"/v1/models": models, "/metrics": "no metrics at all"})
	c := DefaultConfig()
	c.Name, c.Kind, c.URL = "main", KindVLLM, at
	e, err := Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer Close(e)
	_, err = e.Observe(t.Context())
	wantError(t, err, "engine main: "+at+"/metrics: ")
}

func TestServerThatWantsACertificateIsReadWithOurs(t *testing.T) {
	ca := endpointtest.NewCA(t)
	client := ca.Issue("lull")
	s := endpointtest.Server(t, routes{"/v1/models": models, "/metrics": read(t, "vllm-0.32.0.metrics")}, ca.Issue("127.0.0.1"), ca)
	cfg := probeConfig(t, s.URL)
	_, _, err := probe(t, cfg)
	wantError(t, err, "certificate signed by unknown authority")
	cfg.TLS = endpoint.TLS{CA: ca.File, Cert: client.Cert, Key: client.Key}
	text, _, err := probe(t, cfg)
	want := "    tls: {ca: \"" + ca.File + "\", cert: \"" + client.Cert + "\", key: \"" + client.Key + "\", server_name: \"\"}\n"
	if err != nil || !strings.Contains(text, want) {
		t.Errorf("%v; no %q in\n%s", err, want, text)
	}
	cfg.TLS.Key = ""
	_, _, err = probe(t, cfg)
	wantError(t, err, "probe: tls.key: got none beside cert ")
}

func TestMetricsOfTritonAreOnThisMachineWhereItsSocketIs(t *testing.T) {
	if got := (Config{URL: "unix:///run/triton.sock"}).metricsURL(); got != "http://localhost:8002" {
		t.Errorf("got %s", got)
	}
}

func TestTritonsKeyGoesToItsOwnAddressOnly(t *testing.T) {
	e := newTriton(Config{Name: "t", URL: "https://a:8000", Key: "secret", TLS: endpoint.TLS{CA: "ca.pem"}})
	if e.meter.key != "" || e.client.key != "secret" || e.meter.base != "https://a:8002" {
		t.Errorf("meter %q with key %q", e.meter.base, e.meter.key)
	}
}
