// Package admin is the operator's HTTP API: /healthz, /readyz, /metrics,
// /api/v1/state and /api/v1/handovers.
//
// It shows and changes nothing. What it shows comes as plain values from a
// Source; it imports neither the core nor another edge. It never sits on the
// data path: gin's recovery, which is right here, would make a cut stream look
// complete there. Handlers are safe for concurrent use.
//
//	http.Serve(listener, admin.New(source, metrics.Handler()))
package admin
