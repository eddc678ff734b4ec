package sidecar

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lull-project/lull/config"
)

// newLentTriton is a rig whose models are both lent to training, and with it what the
// server does instead of its own answer where misbehave is true.
func newLentTriton(t *testing.T, await time.Duration, misbehave func(w http.ResponseWriter, r *http.Request, verb, model string) bool) (*rig, *tritonServer) {
	t.Helper()
	r, stub := newTritonRigWith(t, func(f *config.File) { f.Engines[0].Await = await })
	startFakeTrainer(t, r.socket, "honest")
	r.untilLent()
	stub.set(func() { stub.misbehave = misbehave })
	return r, stub
}

// refused asks for model a, and wants Triton's own word that it is not there.
func (r *rig) refused(what string) {
	r.t.Helper()
	if status, body := r.infer("a"); status != http.StatusNotFound || !strings.Contains(body, "has no available versions") {
		r.t.Errorf("%s: got %d %s, want the server's own refusal", what, status, body)
	}
}

// problem waits until the state says all of it.
func (r *rig) problem(words ...string) {
	r.t.Helper()
	r.until(fmt.Sprintf("the state says %q", words), func() bool {
		return slices.ContainsFunc(r.state().Problems, func(p string) bool {
			for _, w := range words {
				if !strings.Contains(p, w) {
					return false
				}
			}
			return true
		})
	})
}

// TestModelThatNeverLoadsHoldsARequestForAwaitOnly: then it is the server's to say, and
// the sidecar stops in the middle of the load.
func TestModelThatNeverLoadsHoldsARequestForAwaitOnly(t *testing.T) {
	loading := make(chan struct{}, 16)
	r, _ := newLentTriton(t, 300*time.Millisecond, func(_ http.ResponseWriter, r *http.Request, verb, model string) bool {
		if verb != "load" || model != "a" {
			return false
		}
		loading <- struct{}{}
		<-r.Context().Done()
		return true
	})
	r.refused("a load that hangs")
	<-loading
	if status, body := r.infer("b"); status != http.StatusOK {
		t.Errorf("another model of the server meanwhile: got %d %s, want it loaded and an answer", status, body)
	}
}

// TestLoadThatBreaksIsTheServersToSay: whatever way it breaks, its request has the
// server's answer long before await is over, and the model's bytes are lent again.
func TestLoadThatBreaksIsTheServersToSay(t *testing.T) {
	for name, c := range map[string]struct {
		fails func(s *tritonServer, w http.ResponseWriter, verb string) bool
		says  string
	}{
		"connection cut": {func(_ *tritonServer, _ http.ResponseWriter, verb string) bool {
			if verb == "load" {
				panic(http.ErrAbortHandler)
			}
			return false
		}, "its model did not load"},
		"agrees and has nothing": {func(_ *tritonServer, w http.ResponseWriter, verb string) bool {
			return verb == "load" // 200
		}, "it agreed, and then showed 0B held"},
		"no JSON": {func(_ *tritonServer, w http.ResponseWriter, verb string) bool {
			if verb == "load" {
				http.Error(w, "<html>"+strings.Repeat("x", 1<<20), http.StatusBadGateway)
			}
			return verb == "load"
		}, "its model did not load"},
	} {
		t.Run(name, func(t *testing.T) {
			r, stub := newLentTriton(t, time.Hour, nil)
			stub.set(func() {
				stub.misbehave = func(w http.ResponseWriter, _ *http.Request, verb, _ string) bool { return c.fails(stub, w, verb) }
			})
			r.refused(name)
			r.problem("engines main/a bound", c.says)
			stub.set(func() { stub.misbehave = nil })
			r.untilLent()
		})
	}
}

// TestIndexThatFailsDelaysNoRequest: without it Lull knows of no model whether it is
// there.
func TestIndexThatFailsDelaysNoRequest(t *testing.T) {
	r, stub := newLentTriton(t, time.Hour, func(w http.ResponseWriter, r *http.Request, _, _ string) bool {
		if strings.HasSuffix(r.URL.Path, "/index") {
			http.Error(w, "no", http.StatusInternalServerError)
			return true
		}
		return false
	})
	r.refused("no index")
	stub.set(func() { stub.misbehave = nil })
}

// TestClientThatLeavesWhileItsModelLoadsLeavesNothing: no place in the queue, and no
// request that keeps the model loaded.
func TestClientThatLeavesWhileItsModelLoadsLeavesNothing(t *testing.T) {
	loading, goOn := make(chan struct{}, 16), make(chan struct{})
	r, _ := newLentTriton(t, time.Hour, func(_ http.ResponseWriter, _ *http.Request, verb, _ string) bool {
		if verb == "load" {
			loading <- struct{}{}
			<-goOn
		}
		return false
	})
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, r.base+"/v2/models/a/infer", strings.NewReader(`{"inputs":[]}`))
		resp, err := r.client.Do(req)
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			err = resp.Body.Close()
		}
		left <- err
	}()
	<-loading
	r.until("the request is held", func() bool { return len(r.state().Ledger.Queue) == 1 })
	leave()
	if err := <-left; err == nil {
		t.Error("the client has left: got an answer, want none")
	}
	r.until("nothing of it is left", func() bool {
		st := r.state()
		live := 0
		for _, e := range st.Ledger.Engines {
			live += e.Live
		}
		return len(st.Ledger.Queue) == 0 && live == 0
	})
	close(goOn)
	r.untilLent()
}

// TestModelWithARequestUnderWayStays: however long the answer takes.
func TestModelWithARequestUnderWayStays(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	r, stub := newLentTriton(t, time.Hour, func(_ http.ResponseWriter, _ *http.Request, verb, model string) bool {
		if verb == "infer" && model == "a" {
			close(asked)
			<-answer
		}
		return false
	})
	stub.set(func() { stub.moves = nil })
	done := make(chan string, 1)
	go func() {
		status, body := r.infer("a")
		done <- fmt.Sprint(status, body)
	}()
	<-asked
	if status, _ := r.infer("b"); status != http.StatusOK {
		t.Errorf("another model: got %d, want it loaded beside", status)
	}
	r.until("the other one is lent again", func() bool { return slices.Contains(stub.moved(), "unload b") })
	if got := stub.moved(); slices.Contains(got, "unload a") {
		t.Errorf("got %q, want the model that answers left alone", got)
	}
	close(answer)
	if got := <-done; !strings.HasPrefix(got, "200") {
		t.Errorf("got %s, want its answer", got)
	}
	stub.set(func() { stub.misbehave = nil })
}
