// Package endpoint says where an LLM server listens and how one gets there: by
// TCP or by a unix socket, in the clear or by TLS, there with a CA and a client
// certificate of the operator's own.
//
// An Endpoint is a value and does no I/O. Dialer opens connections; it reads the
// files of TLS at each handshake, so that a certificate that was renewed is used
// without a restart. A Dialer is safe for
// concurrent use.
//
// The package knows no HTTP client and no engine: proxy, engine and calibrate
// bring their own transports and call Dialer.Use.
//
//	at, err := endpoint.Parse("unix:///run/vllm/api.sock")
//	t := &http.Transport{}
//	endpoint.NewDialer(at, endpoint.TLS{}, 5*time.Second).Use(t)
//	req, err := http.NewRequest("GET", at.Base()+"/v1/models", nil)
package endpoint
