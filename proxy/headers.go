package proxy

import (
	"mime"
	"net/http"
	"net/textproto"
	"strings"
)

// hopHeaders belong to one connection (RFC 9110, section 7.6.1, and the older
// ones that clients still send); none passes, in either direction.
var hopHeaders = [...]string{
	"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate",
	"Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// dropHop removes the hop-by-hop fields and those that Connection names.
func dropHop(h http.Header) { dropNamed(h, connectionNames(h)) }

// connectionNames are the fields that Connection names. They stay behind in the
// trailers as they do in the header.
func connectionNames(h http.Header) (names []string) {
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = textproto.TrimString(name); name != "" {
				names = append(names, name)
			}
		}
	}
	return names
}

// dropNamed removes the hop-by-hop fields and these.
func dropNamed(h http.Header, names []string) {
	for _, name := range names {
		h.Del(name)
	}
	for _, name := range hopHeaders {
		delete(h, name)
	}
}

// outgoingHeader is the header of an interpreted request for the upstream.
func (p *Proxy) outgoingHeader(in http.Header, requestID string) http.Header {
	h := in.Clone()
	trailers := acceptsTrailers(in)
	dropHop(h)
	p.identify(h)
	shapeRequest(h, requestID)
	if trailers {
		h["Te"] = []string{"trailers"}
	}
	// The body is here already: nothing to wait for.
	delete(h, "Expect")
	return h
}

// shapeRequest is what passed and interpreted requests have in common.
func shapeRequest(h http.Header, requestID string) {
	h["X-Request-Id"] = []string{requestID}
	if _, ok := h["User-Agent"]; !ok {
		h["User-Agent"] = nil // else the transport adds its own
	}
	// Some engines look trace context up by its lower-case name only.
	for _, name := range [...]string{"Traceparent", "Tracestate"} {
		if v, ok := h[name]; ok {
			delete(h, name)
			h[strings.ToLower(name)] = v
		}
	}
}

func acceptsTrailers(h http.Header) bool {
	for _, line := range h["Te"] {
		for coding := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(textproto.TrimString(coding), "trailers") {
				return true
			}
		}
	}
	return false
}

// shapeAnswer prepares an upstream's header for the client. Streams get what
// keeps a second proxy from buffering them, unless the upstream said otherwise.
func shapeAnswer(h http.Header, requestID string) {
	if _, stream := framing(mediaType(h)); stream {
		if _, ok := h["X-Accel-Buffering"]; !ok {
			h["X-Accel-Buffering"] = []string{"no"}
		}
		if _, ok := h["Cache-Control"]; !ok {
			h["Cache-Control"] = []string{"no-cache"}
		}
	}
	if _, ok := h["X-Request-Id"]; !ok {
		h["X-Request-Id"] = []string{requestID}
	}
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil // else the server guesses one from the body
	}
}

// framing is how an answer of a media type is read, and whether it is a stream.
// JSON is looked for in plain text and in what has no type, too: servers send
// errors so. What is none costs a number only.
func framing(media string) (mode tapMode, stream bool) {
	switch media {
	case "text/event-stream":
		return tapSSE, true
	case "application/x-ndjson", "application/jsonl":
		return tapLines, true
	case "application/json", "text/plain", "":
		return tapJSON, false
	}
	return tapOff, false
}

// coded says that an answer's bytes are not its text. "identity" is no coding
// (RFC 9110, 8.4.1), and neither is "none", by which some servers keep proxies from
// compressing their streams.
func coded(h http.Header) bool {
	for _, line := range h["Content-Encoding"] {
		for coding := range strings.SplitSeq(line, ",") {
			switch strings.ToLower(textproto.TrimString(coding)) {
			case "", "identity", "none":
			default:
				return true
			}
		}
	}
	return false
}

// mediaType is the parsed type: it may carry a parameter.
func mediaType(h http.Header) string {
	v := h.Get("Content-Type")
	switch v { // the common ones, without parsing
	case "":
		return ""
	case "text/event-stream", "text/event-stream; charset=utf-8":
		return "text/event-stream"
	case "application/json":
		return v
	}
	media, _, err := mime.ParseMediaType(v)
	if err != nil {
		media, _, _ = strings.Cut(v, ";")
		media = strings.ToLower(strings.TrimSpace(media))
	}
	return media
}

// callersID is the X-Request-Id of a request when it is fit to be passed on:
// printable ASCII and no longer than 256 bytes.
func callersID(h http.Header) string {
	v := h.Get("X-Request-Id")
	if len(v) > 256 {
		return ""
	}
	for i := range len(v) {
		if v[i] < 0x20 || v[i] > 0x7e {
			return ""
		}
	}
	return v
}
