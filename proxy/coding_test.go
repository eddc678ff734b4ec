package proxy

import (
	"net/http"
	"strings"
	"testing"
)

// TestAnswerWithoutARealCodingIsReadLikeAnyOther: "identity" is none (RFC 9110,
// 8.4.1), and "none" is what servers send to keep proxies from compressing streams.
func TestAnswerWithoutARealCodingIsReadLikeAnyOther(t *testing.T) {
	for coding, read := range map[string]bool{
		"": true, "identity": true, "Identity": true, "none": true, "identity, identity": true,
		"gzip": false, "identity, gzip": false, "br": false,
	} {
		r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", coding)
			stream(chunk("a"), usageChunk, doneChunk)(w, r)
		}, withConfig(injecting))
		res := r.post(chatPath, `{"stream":true}`)
		if got := res.Header.Get("Content-Encoding"); got != coding {
			t.Errorf("%q: the client got %q, want it unchanged", coding, got)
		}
		if got := text(t, res); strings.Contains(got, "usage") == read {
			t.Errorf("%q: client got %q; want usage that it did not ask for stripped where it can be read", coding, got)
		}
		rec := r.seen.record(t)
		if _, timed := rec.TTFT(); timed != read || (rec.TokenSource == TokensFromUsage) != read {
			t.Errorf("%q: got %+v, want it read: %v", coding, rec, read)
		}
	}
}
