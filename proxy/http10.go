package proxy

import "net/http"

// breakOff ends an answer that must not look complete. The panic that the caller
// ends with closes the connection, which an HTTP/1.1 client tells from an end: a
// chunk or bytes of the declared length are missing. To an HTTP/1.0 client an
// answer without a length ends with the connection, so the connection is reset.
func breakOff(w http.ResponseWriter, r *http.Request) {
	if r.ProtoAtLeast(1, 1) {
		return
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	if tcp, ok := conn.(interface{ SetLinger(sec int) error }); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// takesInterim says that a client may get 1xx answers: HTTP/1.0 has none
// (RFC 9110, 15.2).
func takesInterim(r *http.Request) bool { return r.ProtoAtLeast(1, 1) }
