package emulator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lull-project/lull/emulator/faults"
	"github.com/lull-project/lull/emulator/memory"
	"github.com/lull-project/lull/size"
)

// closing is how long Close waits for handlers before it cuts connections.
const closing = time.Second

// Server is a running emulator. Its methods may be called from any goroutine.
type Server struct {
	cfg      Config
	faults   faults.Set
	engine   *engine
	listener net.Listener
	requests atomic.Uint64

	pool, resident *memory.Pool

	cancel context.CancelCauseFunc
	ended  chan struct{} // closed when everything is down
	err    error         // why; read after ended
}

// Start listens, takes the resident memory and runs until ctx ends, Close is
// called, or memory cannot be had.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("emulate: listen on %s: %w", cfg.Listen, err)
	}
	baseline, err := warmBaseline(ctx, cfg)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	s, err := start(ctx, cfg, listener, baseline)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return s, nil
}

// start runs a server on a listener that it takes over.
func start(ctx context.Context, cfg Config, listener net.Listener, baseline size.Bytes) (*Server, error) {
	set, err := faults.Parse(cfg.Faults)
	if err != nil {
		return nil, fmt.Errorf("emulate: --fault-*: %w", err)
	}
	s := &Server{cfg: cfg, faults: set, listener: listener, ended: make(chan struct{})}
	if s.resident, s.pool, err = takeMemory(cfg); err != nil {
		return nil, err
	}
	g := cfg.geometry()
	s.engine, err = newEngine(cfg, s.pool, State{
		PID: os.Getpid(), Baseline: baseline, Resident: size.Bytes(s.resident.Mapped()), Pool: g.pool(),
		KVBytesPerToken: cfg.KVBytesPerToken, BlockTokens: cfg.BlockTokens, MaxModelLen: cfg.MaxModelLen,
	}, newTimes(map[string]string{"model_name": cfg.Model, "engine": "0"}))
	if err != nil {
		return nil, errors.Join(err, s.resident.Close(), s.pool.Close())
	}
	ctx, s.cancel = context.WithCancelCause(ctx)
	go s.serve(ctx)
	return s, nil
}

func takeMemory(cfg Config) (resident, pool *memory.Pool, err error) {
	resident, err = memory.Reserve(int64(cfg.Resident.CeilTo(memory.PageBytes)))
	if err != nil {
		return nil, nil, fmt.Errorf("emulate: --resident %v: %w", cfg.Resident, err)
	}
	if err := resident.MapAll(); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("emulate: --resident %v: %w", cfg.Resident, err), resident.Close())
	}
	pool, err = memory.Reserve(int64(cfg.geometry().pool()))
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("emulate: --pool %v: %w", cfg.Pool, err), resident.Close())
	}
	if cfg.StaticPool {
		if err := pool.Pin(); err != nil {
			return nil, nil, errors.Join(fmt.Errorf("emulate: --static-pool: %w", err), pool.Close(), resident.Close())
		}
	}
	return resident, pool, nil
}

// serve runs the engine and the HTTP server, and takes both down when either or
// ctx ends: first the answers, then the engine, then the memory.
func (s *Server) serve(ctx context.Context) {
	defer close(s.ended)
	engineCtx, stopEngine := context.WithCancel(context.WithoutCancel(ctx))
	defer stopEngine()
	web := &http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: 30 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	var running sync.WaitGroup
	var engineErr, webErr error
	running.Go(func() {
		engineErr = s.engine.run(engineCtx)
		s.cancel(errEngineEnded)
	})
	running.Go(func() {
		if err := web.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			webErr = fmt.Errorf("emulate: serve on %s: %w", s.Addr(), err)
		}
		s.cancel(webErr)
	})
	<-ctx.Done()
	shutDown(web)
	stopEngine()
	running.Wait()
	s.err = errors.Join(engineErr, webErr, s.pool.Close(), s.resident.Close())
}

// shutDown waits for handlers, whose contexts have ended, and cuts those whose
// clients do not read.
func shutDown(web *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), closing)
	defer cancel()
	if web.Shutdown(ctx) != nil {
		// What Close could tell is that a connection was closed already.
		_ = web.Close()
	}
}

// Addr is the address that the server listens on.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// State is what GET /lull/state answers.
func (s *Server) State() State { return s.engine.State() }

// Wait returns when the server is down, with the reason if it was an error.
func (s *Server) Wait() error {
	<-s.ended
	return s.err
}

// Close ends the server, cuts what it has not answered, and gives its memory
// back. It may be called twice.
func (s *Server) Close() error {
	s.cancel(nil)
	return s.Wait()
}

// created is the current time in Unix seconds, as answers carry it.
func (s *Server) created() int64 { return time.Now().Unix() }
