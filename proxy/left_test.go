package proxy

import (
	"io"
	"net/http"
	"testing"
)

// TestClientThatClosesAtTheStreamsOwnEndHasItsAnswer: clients stop reading at the
// mark, before the transfer's end has come.
func TestClientThatClosesAtTheStreamsOwnEndHasItsAnswer(t *testing.T) {
	const failed = "data: {\"error\":{\"message\":\"x\"}}\n\n"
	for name, c := range map[string]struct {
		path, body, outcome string
	}{
		"done":                    {chatPath, chunk("a") + doneChunk, OutcomeForwarded},
		"message_stop":            {"/v1/messages", "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\ndata: {\"type\":\"message_stop\"}\n\n", OutcomeForwarded},
		"response.completed":      {"/v1/responses", "data: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\ndata: {\"type\":\"response.completed\"}\n\n", OutcomeForwarded},
		"no end yet":              {chatPath, chunk("a"), OutcomeClientGone},
		"done after an error":     {chatPath, chunk("a") + failed + doneChunk, OutcomeUpstreamError},
		"an error and no end yet": {chatPath, chunk("a") + failed, OutcomeClientGone},
	} {
		for _, protocol := range []int{1, 2} {
			gone := make(chan struct{})
			r := newRig(t, func(w http.ResponseWriter, r *http.Request) {
				stream(c.body)(w, r)
				<-r.Context().Done()
				close(gone)
			})
			if protocol == 2 {
				r.speakHTTP2()
			}
			res := r.post(c.path, `{"stream":true}`)
			if _, err := io.ReadFull(res.Body, make([]byte, len(c.body))); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			res.Body.Close()
			rec := r.seen.record(t)
			if _, timed := rec.TTFT(); rec.Outcome != c.outcome || rec.Contents != 1 || timed != (c.outcome != OutcomeUpstreamError) {
				t.Errorf("%s: got %+v, want %s", name, rec, c.outcome)
			}
			<-gone // the upstream is let go all the same
			r.idle()
		}
	}
}
