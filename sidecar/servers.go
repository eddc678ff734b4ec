package sidecar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/lull-project/lull/admin"
	"github.com/lull-project/lull/proxy"
	"github.com/lull-project/lull/proxy/arrival"
	"github.com/lull-project/lull/trainer"
)

// servers are the two HTTP listeners.
type servers struct {
	path                   *proxy.Proxy // as it was at first; its counts are those of all configs
	front                  *front
	cut                    context.CancelCauseFunc // ends what the data listener serves
	data, operator         *http.Server
	dataSocket, operSocket net.Listener
	wg                     sync.WaitGroup
	log                    *slog.Logger
}

func (s *Sidecar) listen() (*servers, error) {
	path := proxy.New(s.data, s.gate, s.gate)
	serving, cut := context.WithCancelCause(context.Background())
	out := &servers{log: s.log, path: path, front: &front{}, cut: cut}
	out.front.set(newHeaders(s.file.SLO, s.file.Auth.Keys, s.metrics).read(path))
	out.data = proxy.Server(tellsItself(out.front))
	out.data.BaseContext = func(net.Listener) context.Context { return serving }
	out.operator = &http.Server{Handler: tellsItself(admin.New(s, s.metrics.Handler())), ReadHeaderTimeout: 10 * time.Second}
	out.data.ErrorLog = log.New(LibraryLog(s.log, time.Now), "", 0)
	out.operator.ErrorLog = out.data.ErrorLog
	var err error
	if out.dataSocket, err = listenAt("listen", s.file.Listen); err != nil {
		return nil, err
	}
	out.dataSocket = arrival.Listen(out.dataSocket)
	if out.operSocket, err = listenAt("admin.listen", s.file.Admin.Listen); err != nil {
		_ = out.dataSocket.Close()
		return nil, err
	}
	return out, nil
}

func listenAt(key, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	var op *net.OpError
	if errors.As(err, &op) { // whose own text begins with the address again
		return nil, fmt.Errorf("%s: got %q, want a free address of this machine: %w", key, addr, op.Err)
	}
	return l, err
}

func (v *servers) serve() {
	run := func(srv *http.Server, l net.Listener) {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			v.log.Error("listener ended", "addr", l.Addr(), "err", err)
		}
	}
	v.wg.Go(func() { run(v.data, v.dataSocket) })     // ends when drain shuts it down
	v.wg.Go(func() { run(v.operator, v.operSocket) }) // likewise
}

func (v *servers) close() {
	_ = v.dataSocket.Close()
	_ = v.operSocket.Close()
}

// announce prints the ready line; socket is absent where nobody listens for
// trainers.
func (v *servers) announce(w io.Writer, channel *trainer.Server) error {
	line := map[string]string{"listening": v.dataSocket.Addr().String(), "admin": v.operSocket.Addr().String()}
	if channel != nil {
		line["socket"] = channel.Addr()
		if path, err := filepath.Abs(channel.Addr()); err == nil {
			line["socket"] = path
		}
	}
	return json.NewEncoder(w).Encode(line)
}
