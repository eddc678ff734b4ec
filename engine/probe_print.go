package engine

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/lull-project/lull/endpoint"
)

// kindName is how a kind's server calls itself.
var kindName = map[string]string{
	KindEmulator: "lull emulate", KindVLLM: "vLLM", KindVLLMSleep: "vLLM with its sleep mode", KindLullVLLM: "vLLM with lull-vllm", KindKvcached: "kvcached", KindSGLang: "SGLang",
	KindTriton: "Triton", KindLlamaCPP: "llama.cpp", KindTGI: "text-generation-inference", KindOllama: "Ollama", KindOpenAI: "an OpenAI-compatible server",
}

// Print writes what the endpoint is, what it can do, what Lull would do with it,
// and the lines for lull.yaml.
func (r Report) Print(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s: %s (kind %s)\n", r.URL, strings.TrimSpace(kindName[r.Can.Kind]+" "+r.Version), r.Can.Kind)
	r.printSeen(&b)
	r.printCan(&b)
	r.printPlan(&b)
	r.printYAML(&b)
	_, err := w.Write(b.Bytes())
	return err
}

func line(b *bytes.Buffer, what, format string, args ...any) {
	fmt.Fprintf(b, "  %-14s %s\n", what, fmt.Sprintf(format, args...))
}

// printSeen is what the server says of itself.
func (r Report) printSeen(b *bytes.Buffer) {
	switch {
	case r.Locked:
		line(b, "models", "not shown: the list is not for everybody (--api-key-env or --api-key-file gives the server's key)")
	case len(r.Models) == 0:
		line(b, "models", "none listed")
	default:
		line(b, "models", "%s", strings.Join(r.Models, ", "))
	}
	if r.Can.Kind == KindOpenAI && r.Owner != "" {
		line(b, "owned by", "%q, by its list of models", r.Owner)
	}
	if r.Trouble != nil {
		line(b, "trouble", "%v", r.Trouble)
		return
	}
	s := r.Sample
	line(b, "KV pool", "%s", poolText(s))
	if s.MaxModelLen > 0 {
		line(b, "longest", "%d tokens of prompt and answer", s.MaxModelLen)
	}
	use := "use unknown"
	if s.UsageFrac >= 0 {
		use = fmt.Sprintf("%.1f%% of the pool in use", 100*s.UsageFrac)
	}
	if r.Can.ObserveLogical && s.Note == "" || s.UsageFrac >= 0 {
		line(b, "now", "%d running, %d waiting, %s", s.Running, s.Waiting, use)
	}
	if s.Note != "" {
		line(b, "note", "%s", s.Note)
	}
	for _, e := range r.Beside {
		line(b, "beside it", "%s: %s, %v mapped of at most %v; it does not say which server it belongs to", e.Path, kindName[e.Kind], e.Sample.Held, e.Sample.Bound)
	}
}

func poolText(s Sample) string {
	var parts []string
	if s.Pool > 0 {
		parts = append(parts, s.Pool.String())
	}
	if s.PoolTokens > 0 {
		parts = append(parts, fmt.Sprintf("%d tokens", s.PoolTokens))
	}
	if s.BlockTokens > 0 {
		parts = append(parts, fmt.Sprintf("blocks of %d tokens", s.BlockTokens))
	}
	switch {
	case s.BytesPerToken > 0:
		parts = append(parts, fmt.Sprintf("%v a token", s.BytesPerToken))
	case len(parts) > 0:
		parts = append(parts, "bytes of a token unknown")
	default:
		return "unknown: the server does not say it"
	}
	return strings.Join(parts, ", ")
}

// printCan is Capabilities in words.
func (r Report) printCan(b *bytes.Buffer) {
	b.WriteString("what it lets Lull do\n")
	word := func(yes bool) string {
		if yes {
			return "yes"
		}
		return "no"
	}
	line(b, "read its bytes", "%s", word(r.Can.ObservePhysical))
	line(b, "read its use", "%s", word(r.Can.ObserveLogical))
	line(b, "bound them", "%s", word(r.Can.Bound))
	line(b, "take them back", "%s", word(r.Can.Reclaim))
	if r.Can.Static {
		line(b, "static", "yes: the KV pool was allocated at start, and no byte of it moves")
	} else {
		line(b, "static", "no")
	}
}

// elastic says what would make a static kind's memory move.
var elastic = map[string]string{
	KindVLLM:   "the plugin lull-vllm (docs/VLLM.md) or kvcached (docs/ENGINES.md) makes its memory move; so does its own sleep mode, whole and in long lulls (kind vllm-sleep, docs/ENGINES.md)",
	KindSGLang: "kvcached (docs/ENGINES.md) makes its memory move",
	KindTriton: "its models can be unloaded in lulls and loaded for their next request (models in lull.yaml, docs/ENGINES.md)",
}

// printPlan is what a sidecar would do.
func (r Report) printPlan(b *bytes.Buffer) {
	b.WriteString("what Lull would do with it\n")
	b.WriteString("  relay and measure its requests; with objectives, make training yield and pace (slo and interference in lull.yaml)\n")
	switch {
	case r.Trouble != nil:
		b.WriteString("  nothing else: no training memory grows while it cannot be read, and /readyz says why\n")
	case r.Can.Bound:
		b.WriteString("  lend the KV memory that requests are not expected to need, under a bound that it confirms\n")
	case r.Can.ObserveLogical:
		b.WriteString("  lend nothing of its memory: it is static; training gets what stands beside it\n")
	default:
		b.WriteString("  lend nothing of its memory: it is static, and its use cannot be read; training gets what stands beside it\n")
	}
	if how := elastic[r.Can.Kind]; how != "" && r.Trouble == nil {
		fmt.Fprintf(b, "  %s\n", how)
	}
}

// printYAML is the engine's entry, as far as it is known.
func (r Report) printYAML(b *bytes.Buffer) {
	b.WriteString("lines for lull.yaml\n\nengines:\n  - name: main\n")
	key := func(key, value, comment string) {
		fmt.Fprintf(b, "    %s: %s", key, value)
		if comment != "" {
			fmt.Fprintf(b, "  # %s", comment)
		}
		b.WriteByte('\n')
	}
	key("kind", r.Can.Kind, "")
	key("url", fmt.Sprintf("%q", r.URL), "")
	if r.TLS != (endpoint.TLS{}) {
		key("tls", fmt.Sprintf("{ca: %q, cert: %q, key: %q, server_name: %q}", r.TLS.CA, r.TLS.Cert, r.TLS.Key, r.TLS.ServerName), "")
	}
	key("devices", "[host0]", "the device whose memory it shares, as named in devices; [] relays and measures only")
	if r.Can.Kind == KindTriton {
		key("metrics_url", fmt.Sprintf("%q", r.MetricsURL), "where its metrics are")
	}
	if r.Trouble == nil && r.Sample.BytesPerToken == 0 && r.Can.Kind != KindOllama {
		key("bytes_per_token", "0", "it does not say them; `lull forecast --geometry config.json` does")
	}
	for _, e := range r.Beside {
		switch e.Kind {
		case KindLullVLLM:
			fmt.Fprintf(b, "# or, if this page is that server's:\n#   kind: lull-vllm\n#   page: %s\n", e.Path)
		case KindKvcached:
			fmt.Fprintf(b, "# or, if its KVCACHED_IPC_NAME names this segment:\n#   kind: kvcached\n#   segment: %s\n", e.Path)
		}
	}
}
