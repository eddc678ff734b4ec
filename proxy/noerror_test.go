package proxy

import (
	"fmt"
	"testing"
)

// TestErrorWithNothingInItIsNone: servers whose events always have the field leave it
// empty, and clients look whether there is something in it.
func TestErrorWithNothingInItIsNone(t *testing.T) {
	for value, failed := range map[string]bool{
		`null`: false, `""`: false, `false`: false, `[]`: false,
		`"x"`: true, `true`: true, `500`: true, `{"message":"x"}`: true, `["x"]`: true, `[{"message":"x"}]`: true,
	} {
		for path, content := range map[string]string{
			chatPath: `"choices":[{"delta":{"content":"a"}}]`, "/v1/messages": `"delta":{"text":"a"}`, "/v1/responses": `"delta":"a"`,
			"/v2/models/m/generate_stream": `"text_output":"a"`, "/generate": `"text":"a"`, "/completion": `"content":"a"`,
		} {
			r := newRig(t, stream(fmt.Sprintf("data: {%s,\"error\":%s}\n\n", content, value)))
			text(t, r.post(path, `{"stream":true}`))
			if rec := r.seen.record(t); (rec.Outcome == OutcomeUpstreamError) != failed || rec.Contents != 1 {
				t.Errorf("%s with error %s: got %+v, want a failure: %v", path, value, rec, failed)
			}
		}
	}
}
