// Package endpointtest makes certificates, and servers of tests that want them or
// listen on a unix socket.
//
// It never serves anybody but a test: keys lie in a test's own folder and live an
// hour.
//
//	ca := endpointtest.NewCA(t)
//	s := endpointtest.Server(t, handler, ca.Issue("127.0.0.1"), ca) // wants a client's certificate
//	path := endpointtest.Socket(t, handler)
//
// Concurrency: a CA belongs to its test's goroutine.
package endpointtest
