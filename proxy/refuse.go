package proxy

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// refusal is an answer of Lull's own, in OpenAI's shape.
type refusal struct {
	status              int
	kind, code, message string
	retryAfter          time.Duration
}

func (f refusal) write(w http.ResponseWriter, requestID string) {
	type shape struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	}
	// Strings always marshal; invalid UTF-8 in an error's text is replaced.
	body, _ := json.Marshal(map[string]shape{"error": {Message: f.message, Type: f.kind, Code: f.code}})
	body = append(body, '\n')
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("X-Request-Id", requestID)
	if f.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int((f.retryAfter+time.Second-1)/time.Second)))
	}
	w.WriteHeader(f.status)
	_, _ = w.Write(body) // a client that left needs no answer
}

// unreachable is the answer when the upstream gave none.
func unreachable(err error) refusal {
	return refusal{
		status: http.StatusBadGateway, kind: "upstream_error", code: CodeUnreachable,
		message: "lull: upstream gave no answer: " + err.Error(),
	}
}

// refuseVerdict fills a Gate's refusal with its defaults.
func refuseVerdict(v Verdict) refusal {
	f := refusal{
		status: v.Status, kind: "server_error", code: v.Code, message: v.Message,
		retryAfter: max(v.RetryAfter, time.Second),
	}
	if f.status == 0 {
		f.status = http.StatusServiceUnavailable
		if v.Outcome == OutcomeRejectedCapacity {
			f.status = http.StatusTooManyRequests
		}
	}
	if f.status == http.StatusTooManyRequests {
		f.kind = "rate_limit_error"
	}
	if f.code == "" {
		f.code = "lull_" + v.Outcome
	}
	if f.message == "" {
		f.message = "lull: request refused (" + v.Outcome + "); try again later"
	}
	return f
}
