package sidecar

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lull-project/lull/config"
	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/size"
)

func TestDrainTurnsNewRequestsAwayAndLetsStreamsFinish(t *testing.T) {
	up := newSlow()
	l := newLone(t, up, nil, nil)
	stream := l.open()
	l.term()
	l.logged("draining: new requests are turned away") // one before it would be relayed
	l.until("new requests are turned away", func() bool {
		status, h, body, err := l.call("POST", l.base+chatPath, "{}", nil)
		return err == nil && status == 503 && h.Get("Retry-After") != "" && strings.Contains(body, `"code":"lull_draining"`)
	})
	if status, _, body, err := l.call("GET", l.base+"/v1/models", "", nil); err != nil || status != 503 {
		t.Errorf("a passed path: %d %s, %v; want 503", status, body, err)
	}
	if status, _, body, err := l.call("GET", l.admin+"/readyz", "", nil); err != nil || status != 503 || !strings.Contains(body, `"draining"`) {
		t.Errorf("readyz: %d %s, %v; want 503 for draining", status, body, err)
	}
	up.finish()
	if rest, err := io.ReadAll(stream.Body); err != nil || string(rest) != lastEvent {
		t.Errorf("the open stream: got %q, %v; want its end", rest, err)
	}
	l.end()
	if c, err := net.Dial("tcp", strings.TrimPrefix(l.base, "http://")); err == nil {
		c.Close()
		t.Error("it still listens")
	}
	for _, want := range []string{`lull_requests_total{model="",outcome="rejected_draining"} `, `lull_requests_total{model="",outcome="forwarded"} 1`, "lull_requests_in_flight 0\n"} {
		if text := metricsText(t, l.sidecar.metrics); !strings.Contains(text, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	if !strings.Contains(l.logs.String(), "level=INFO msg=stopped after=") {
		t.Error("the log does not end with the end")
	}
	if strings.Contains(l.logs.String(), "are cut") {
		t.Error("the log says that something was cut")
	}
}

// TestDrainCutsWhatIsLeftVisibly: at its limit, or at once where it is hurried, no
// client sees an end that looks like one.
func TestDrainCutsWhatIsLeftVisibly(t *testing.T) {
	for name, hurried := range map[string]bool{"at the limit": false, "at the second signal": true} {
		t.Run(name, func(t *testing.T) {
			up := newSlow()
			l := newLone(t, up, func(f *config.File) {
				f.Proxy.DrainTimeout = 50 * time.Millisecond
				if hurried {
					f.Proxy.DrainTimeout = time.Hour
				}
			}, nil)
			stream := l.open()
			began := time.Now()
			l.term()
			if hurried {
				l.logged("draining: new requests are turned away")
				l.sidecar.Hurry()
			}
			if rest, err := io.ReadAll(stream.Body); err == nil {
				t.Errorf("got %q and a clean end, want a broken transfer", rest)
			}
			l.end()
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("took %v, want about the limit", took)
			}
			<-up.ended // its request was cancelled
			if !strings.Contains(l.logs.String(), fmt.Sprintf("open requests are cut\" open=1 limit=%v hurried=%v", l.file.Proxy.DrainTimeout, hurried)) {
				t.Error("the log does not say what was cut")
			}
			if text := metricsText(t, l.sidecar.metrics); !strings.Contains(text, `lull_requests_total{model="",outcome="cut"} 1`) {
				t.Error("metrics lack the cut request")
			}
		})
	}
}

func TestDrainEndsAlsoForClientsThatDoNothing(t *testing.T) {
	var written atomic.Int64
	up := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for r.Context().Err() == nil { // more than any socket holds
			n, err := io.WriteString(w, strings.Repeat(firstEvent, 100))
			if err != nil {
				return
			}
			written.Add(int64(n))
		}
	})
	// stuck says that every buffer between upstream and client is full.
	stuck := func() bool {
		before := written.Load()
		time.Sleep(300 * time.Millisecond) // nothing tells that a socket takes no more
		return before > 0 && written.Load() == before
	}
	for name, request := range map[string]string{
		"reads nothing":    "POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
		"sends half":       "POST " + chatPath + " HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n{",
		"sends half a GET": "GET /x HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			l := newLone(t, up, func(f *config.File) { f.Proxy.DrainTimeout = 20 * time.Millisecond }, nil)
			c, err := net.Dial("tcp", strings.TrimPrefix(l.base, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			fmt.Fprint(c, request)
			l.until("the request is being served", func() bool {
				return l.sidecar.reload.first.Stats().InFlight+l.sidecar.reload.first.Stats().Passing == 1
			})
			if name == "reads nothing" {
				l.until("nobody takes a byte any more", stuck)
			}
			l.end()
			if got := l.sidecar.reload.first.Stats(); got.InFlight+got.Passing != 0 {
				t.Errorf("got %+v, want nothing left", got)
			}
		})
	}
}

// toldTo is a trainer of this process: it says hello and lists what it is sent
// until the connection ends.
func toldTo(t *testing.T, socket string) <-chan []string {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	own, err := device.Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	baseline, err := own.Read()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, `{"type":"hello","version":1,"job":"told","rank":0,"world":1,"pid":%d,"device":"host0","baseline":%d,"floor":%d,"floor_known":true,"ceiling":0,"held":0,"last_epoch":0}`+"\n",
		os.Getpid(), baseline, 8*size.MiB)
	out := make(chan []string, 1)
	go func() { // ends when the sidecar closes the connection
		defer conn.Close()
		var types []string
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			var m struct {
				Type, Reason string
				Epoch, Bytes uint64
				Seq          int64
			}
			_ = json.Unmarshal(lines.Bytes(), &m)
			switch m.Type {
			case "ping":
				fmt.Fprintf(conn, `{"type":"pong","seq":%d}`+"\n", m.Seq)
			case "budget":
				fmt.Fprintf(conn, `{"type":"ack","epoch":%d,"held":0,"waited_us":0,"freed_us":0,"how":"nothing"}`+"\n", m.Epoch)
			default:
				types = append(types, m.Type+" "+m.Reason)
			}
		}
		out <- types
	}()
	return out
}

func TestTrainersAreToldWhenTheSidecarIsStopped(t *testing.T) {
	for word, want := range map[string]string{
		config.OnStopDrain: "welcome , drain shutdown, bye the sidecar closes",
		config.OnStopKeep:  "welcome , bye the sidecar closes",
	} {
		t.Run(word, func(t *testing.T) {
			r := newRig(t, func(f *config.File) { f.Trainers.OnStop = word })
			heard := toldTo(t, r.socket)
			r.until("the trainer is known", func() bool { s := r.state(); return len(s.Trainers) == 1 && s.Trainers[0].Connected })
			r.stop()
			if got := strings.Join(<-heard, ", "); got != want {
				t.Errorf("told %q, want %q", got, want)
			}
			if told := strings.Contains(r.logs.String(), "trainer told to checkpoint and leave"); told != (word == config.OnStopDrain) {
				t.Errorf("the log says told: %v", told)
			}
		})
	}
}

// TestStopDoesNotWaitForAServerThatIsAskedWhatItIs: one that begins answers and
// never ends them took 2 s of the stop for each question.
func TestStopDoesNotWaitForAServerThatIsAskedWhatItIs(t *testing.T) {
	asked := make(chan struct{}, 64)
	silent := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "{")
		w.(http.Flusher).Flush()
		if r.URL.Path == "/lull/state" {
			asked <- struct{}{}
		}
		<-r.Context().Done()
	})
	least := time.Hour
	for range 5 { // a busy machine may be slow at any of them
		l := newLone(t, silent, nil, nil)
		<-asked
		began := time.Now()
		l.end()
		if least = min(least, time.Since(began)); least < 1500*time.Millisecond { // of the 2 s that a question may take
			return
		}
	}
	t.Errorf("took at least %v, want no wait for the answer", least)
}
