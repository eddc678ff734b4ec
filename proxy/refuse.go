package proxy

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// refusal is an answer of Lull's own, in the shape of the dialect's errors.
type refusal struct {
	status              int
	kind, code, message string
	retryAfter          time.Duration
	closes              bool // the client's connection ends with it
}

func (f refusal) write(w http.ResponseWriter, requestID string, d dialect) {
	shape := any(openAIError{Error: openAIDetail{Message: f.message, Type: f.kind, Code: f.code}})
	if own, ok := d.(errorShaper); ok {
		shape = own.errorShape(f, requestID)
	}
	// Strings always marshal; invalid UTF-8 in an error's text is replaced.
	body, _ := json.Marshal(shape)
	body = append(body, '\n')
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("X-Request-Id", requestID)
	if f.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int((f.retryAfter+time.Second-1)/time.Second)))
	}
	if f.closes {
		h.Set("Connection", "close")
	}
	if f.status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer") // RFC 9110, section 15.5.2, wants a challenge
	}
	w.WriteHeader(f.status)
	_, _ = w.Write(body) // a client that left needs no answer
}

// openAIError is the shape of OpenAI's errors, which most clients read.
type openAIError struct {
	Error openAIDetail `json:"error"`
}

type openAIDetail struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

// errorShaper is a dialect whose errors have a shape of their own.
type errorShaper interface {
	errorShape(f refusal, requestID string) any
}

// badBody is the answer to a request whose body did not come. The connection
// ends with it: the server must not wait for the rest.
func badBody(status int, err error) refusal {
	return refusal{
		status: status, kind: "invalid_request_error", code: CodeBody,
		message: "lull: request body: " + err.Error(), closes: true,
	}
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
