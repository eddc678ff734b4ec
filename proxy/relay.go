package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// relay copies the answer to the client: read, write, flush, then the tap, in
// that order, on this goroutine. Nothing is queued between reading and writing,
// so a slow client slows the upstream and costs no memory.
func (x *exchange) relay(ctx context.Context, res *http.Response) ending {
	announced := x.begin(res)
	early := headerFlush{rc: x.rc}
	src := newIdleBody(res.Body, x.p.cfg.IdleLimit, x.cancel, early.flush)
	defer src.Close()
	defer early.stop()
	buf := x.p.buffers.Get().(*[relayBuffer]byte)
	defer x.p.buffers.Put(buf)
	defer x.clearWriteLimit()
	for first := true; ; first = false {
		began := x.p.cfg.Now()
		n, rerr := src.Read(buf[:])
		came := x.p.cfg.Now()
		// What had come before the read began was not waited for.
		x.waited += max(0, came.Sub(began)-x.clock.Age())
		if first {
			early.stop()
		}
		if n > 0 {
			x.up.health.goesOn(res.StatusCode)
			if werr := x.write(x.stripped(buf[:n])); werr != nil {
				return x.unwritable(res.StatusCode, werr)
			}
			if took := x.observe(buf[:n]).Sub(came); took > stall {
				x.waited += took
			}
		}
		if rerr != nil && x.strip != nil {
			_ = x.write(x.strip.end()) // a client that left shows in what follows
		}
		if rerr == io.EOF {
			src.Close() // fills res.Trailer
			x.trailers(res, announced)
			return x.whole(res.StatusCode)
		}
		if rerr != nil {
			return x.broken(ctx, res.StatusCode, rerr)
		}
	}
}

// begin sends status and header, at the latest with the first bytes, and
// chooses how the tap reads. It returns how many trailers were announced.
func (x *exchange) begin(res *http.Response) int {
	x.hop = connectionNames(res.Header)
	dropHop(res.Header)
	dropNamed(res.Trailer, x.hop)
	x.up.turnHome(res.Header)
	shapeAnswer(res.Header, x.rec.RequestID)
	h := x.w.Header()
	for k, v := range res.Header {
		h[k] = v
	}
	if len(res.Trailer) > 0 {
		names := make([]string, 0, len(res.Trailer))
		for k := range res.Trailer {
			names = append(names, k)
		}
		h["Trailer"] = []string{strings.Join(names, ", ")}
	}
	x.rec.Status = res.StatusCode
	mode, stream := framing(mediaType(res.Header))
	x.rec.Stream = stream
	if coded(res.Header) { // not ours to decode
		mode = tapOff
		x.p.opaque.Add(1)
	}
	if x.asked && mode == tapSSE {
		x.strip = newUsageStrip()
		delete(h, "Content-Length")
	}
	x.tap = newTap(x.d, mode, x)
	x.w.WriteHeader(res.StatusCode)
	return len(res.Trailer)
}

// stripped is what of p the client gets.
func (x *exchange) stripped(p []byte) []byte {
	if x.strip == nil {
		return p
	}
	return x.strip.filter(p)
}

// write writes and flushes one read's bytes.
func (x *exchange) write(p []byte) error {
	x.extendWriteLimit(len(p))
	n, err := x.w.Write(p)
	x.rec.ResponseBytes += int64(n)
	if err != nil {
		return err
	}
	if err := x.rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// observe shows the tap what has been written, and returns when it was.
func (x *exchange) observe(p []byte) time.Time {
	at := x.p.cfg.Now()
	if x.rec.FirstByte.IsZero() {
		x.rec.FirstByte = at
	}
	x.tapped(func(t *tap) { t.write(p, at) })
	return at
}

// tapped runs f on the tap; a fault switches the tap off.
func (x *exchange) tapped(f func(*tap)) {
	if x.tap == nil || x.tap.mode == tapOff {
		return
	}
	before := x.tap
	ok := false
	x.p.safely(func() { f(before); ok = true })
	if !ok {
		before.mode = tapOff
	}
}

// content and step make the exchange a tapSink.
func (x *exchange) content(at time.Time, tokens int) {
	if x.p.observer != nil {
		x.p.observer.Content(x.rec.ID, at, tokens)
	}
}

func (x *exchange) step(at time.Time) {
	if x.p.events != nil {
		x.p.events.Event(x.rec.ID, at)
	}
}

// whole is the ending of an answer that came to its end.
func (x *exchange) whole(status int) ending {
	x.tapped(func(t *tap) { t.end() })
	switch {
	case status >= 500:
		return ending{outcome: OutcomeUpstreamError, err: errStatus(status)}
	case status >= 400:
		return ending{outcome: OutcomeUpstreamRefused, err: errStatus(status)}
	case x.tap.failed:
		return ending{outcome: OutcomeUpstreamError, err: errInBand}
	}
	return ending{outcome: x.rec.Admission}
}

// broken is the ending of an answer that broke off. What came was written; the
// client must see that it was not all.
func (x *exchange) broken(ctx context.Context, status int, err error) ending {
	switch {
	case isCut(x.r.Context()):
		return ending{outcome: OutcomeCut, err: ErrCut, abort: true}
	case x.r.Context().Err() != nil:
		return x.left(status, x.r.Context().Err())
	case context.Cause(ctx) == errIdle:
		return ending{outcome: OutcomeIdle, err: errIdle, abort: true}
	}
	return ending{outcome: OutcomeBrokenStream, err: err, abort: true}
}

// unwritable is the ending of an answer that the client does not take.
func (x *exchange) unwritable(status int, err error) ending {
	if isCut(x.r.Context()) {
		return ending{outcome: OutcomeCut, err: ErrCut, abort: true}
	}
	return x.left(status, err)
}

// left is the ending of an answer whose client has left. Clients close at [DONE], or
// at their dialect's own end, and need not wait for the end of the transfer: what
// they wanted they have.
func (x *exchange) left(status int, err error) ending {
	end := ending{outcome: OutcomeClientGone, err: err}
	if x.tap.terminated {
		end = x.whole(status)
	}
	end.abort = true
	return end
}

var errInBand = errors.New("the upstream sent an error inside its answer")

func errStatus(status int) error {
	return errors.New("the upstream answered " + http.StatusText(status))
}

// trailers passes the answer's trailers on, announced or not.
func (x *exchange) trailers(res *http.Response, announced int) {
	dropNamed(res.Trailer, x.hop)
	if len(res.Trailer) == 0 {
		return
	}
	// Else the server might compute a length for a short body, which has no room
	// for trailers.
	_ = x.rc.Flush()
	prefix := http.TrailerPrefix
	if len(res.Trailer) == announced {
		prefix = ""
	}
	h := x.w.Header()
	for k, v := range res.Trailer {
		h[prefix+k] = v
	}
}

// freeWrite is how many bytes of an answer any socket's buffers take without
// the client: short answers are spared the deadline's cost.
const freeWrite = 8 << 10

// extendWriteLimit keeps the write deadline between one and one and a half idle
// limits ahead: a client that takes nothing for so long is gone.
func (x *exchange) extendWriteLimit(n int) {
	if x.rec.ResponseBytes+int64(n) <= freeWrite {
		return
	}
	limit, now := x.p.cfg.IdleLimit, time.Now()
	if x.writeLimit.Sub(now) < limit {
		x.writeLimit = now.Add(limit + limit/2)
		x.limitsWrite = x.rc.SetWriteDeadline(x.writeLimit) == nil
	}
}

// clearWriteLimit leaves the connection as it was, for its next request.
func (x *exchange) clearWriteLimit() {
	if x.limitsWrite {
		_ = x.rc.SetWriteDeadline(time.Time{})
	}
}

// isDisconnect says that err is a connection that ended, rather than bytes that
// make no sense.
func isDisconnect(err error) bool {
	var ne net.Error
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.As(err, &ne)
}
