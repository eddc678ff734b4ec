package emulator

import (
	"context"
	"net"
	"net/http"
	"strconv"

	"github.com/lull-project/lull/emulator/faults"
)

// wire is the client's end of an answer: the innermost sink.
type wire struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	stream bool
	length int // of an answer that is no stream
}

var _ faults.Sink = (*wire)(nil)

func newWire(w http.ResponseWriter, stream bool) *wire {
	return &wire{w: w, rc: http.NewResponseController(w), stream: stream}
}

// Start sends a stream's headers, as vLLM does before its first token.
func (x *wire) Start(context.Context) error {
	if !x.stream {
		return nil
	}
	x.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	x.w.WriteHeader(http.StatusOK)
	return x.rc.Flush()
}

// Send writes and flushes one event, or the whole of an answer that is no stream.
func (x *wire) Send(_ context.Context, e faults.Event) error {
	if !x.stream {
		x.w.Header().Set("Content-Type", "application/json")
		x.w.Header().Set("Content-Length", strconv.Itoa(x.length))
	}
	if _, err := x.w.Write(e.Bytes); err != nil {
		return err
	}
	return x.rc.Flush()
}

// End leaves the closing to net/http.
func (x *wire) End(context.Context) error { return nil }

// fail tells of an engine error: as the last event of a stream, or as a status.
func (x *wire) fail(e *apiError) {
	if !x.stream {
		e.write(x.w)
		return
	}
	// A client that has left cannot be told.
	_, _ = x.w.Write(appendDone(appendError(nil, e)))
	_ = x.rc.Flush()
}

// reset breaks the connection with a TCP reset where there is one to be had.
func (x *wire) reset() {
	conn, _, err := x.rc.Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		// Without lingering, close sends RST. Nobody is left to be told an error.
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
