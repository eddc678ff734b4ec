package sidecar

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/lull-project/lull/device"
	"github.com/lull-project/lull/size"
)

// A fake trainer is this test binary started again: a process of its own that
// speaks the wire and holds real memory, so that the device's word about it is
// real too. It takes all that it is granted.
const (
	fakeTrainerEnv = "LULL_FAKE_TRAINER" // the socket
	fakeManner     = "LULL_FAKE_MANNER"  // honest, lying (acks and keeps the memory), silent (keeps it and says nothing to a shrink), asking (honest, and wants a higher floor)
	fakeFloor      = 16 * size.MiB
	fakeRise       = 32 * size.MiB // what an asking one wants on top of its floor
	fakeUnit       = 2 * size.MiB
)

// fakeHeld is an anonymous mapping whose first bytes are touched.
type fakeHeld struct {
	region []byte
	held   size.Bytes
}

// resize touches bytes until it holds so many, or until it is told to stop: on a
// machine whose pages come slowly that may take seconds.
func (f *fakeHeld) resize(to size.Bytes, stop func() bool) {
	to = to.FloorTo(fakeUnit)
	if to < f.held {
		_ = syscall.Madvise(f.region[to:f.held], syscall.MADV_DONTNEED)
		f.held = to
	}
	for f.held < to && !stop() {
		for b := f.held; b < f.held+fakeUnit; b += 4096 {
			f.region[b] = 1
		}
		f.held += fakeUnit
	}
}

// untilDone stops no resize.
func untilDone() bool { return false }

func mapped(n size.Bytes) []byte {
	region, err := syscall.Mmap(-1, 0, int(n), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	return region
}

// fakeTrainerMain runs until the sidecar closes the connection.
func fakeTrainerMain() {
	self, _ := device.Open(os.Getpid())
	baseline, _ := self.Read()
	floor := fakeHeld{region: mapped(fakeFloor)}
	floor.resize(fakeFloor, untilDone)
	act := fakeHeld{region: mapped(size.GiB)}
	conn, err := net.Dial("unix", os.Getenv(fakeTrainerEnv))
	if err != nil {
		panic(err)
	}
	var speaks sync.Mutex
	say := func(format string, args ...any) {
		speaks.Lock()
		defer speaks.Unlock()
		fmt.Fprintf(conn, format+"\n", args...)
	}
	// 8 MiB of floor beyond the mapping is room for this process's own heap.
	say(`{"type":"hello","version":1,"job":"fake","rank":0,"world":1,"pid":%d,"device":"host0","baseline":%d,"floor":%d,"floor_known":true,`+
		`"ceiling":0,"held":0,"last_epoch":0,"min_budget":0,"suspended":0}`, os.Getpid(), baseline, fakeFloor+8*size.MiB)
	fmt.Println("connected")
	orders := make(chan fakeLine, 1024)
	go func() { // beside the pings, as an agent's thread is
		manner, asked := os.Getenv(fakeManner), false
		for m := range orders {
			if manner == "honest" || manner == "asking" || m.Bytes > act.held {
				act.resize(m.Bytes, func() bool { return len(orders) > 0 })
			}
			if manner == "asking" && !asked {
				asked = true
				say(`{"type":"request","floor":%d}`, fakeFloor+8*size.MiB+fakeRise)
			}
			if manner != "silent" || m.Bytes >= act.held {
				say(`{"type":"ack","epoch":%d,"held":%d,"waited_us":0,"freed_us":0,"how":"drop"}`, m.Epoch, min(m.Bytes, act.held))
			}
		}
	}()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		var m fakeLine
		if json.Unmarshal(lines.Bytes(), &m) != nil {
			continue
		}
		switch m.Type {
		case "ping":
			say(`{"type":"pong","seq":%d}`, m.Seq)
		case "budget":
			orders <- m
		}
	}
}

// fakeLine is what of the sidecar's lines a fake trainer reads.
type fakeLine struct {
	Type  string     `json:"type"`
	Epoch uint64     `json:"epoch"`
	Bytes size.Bytes `json:"bytes"`
	Seq   int64      `json:"seq"`
}

// startFakeTrainer starts one and waits until it has said hello.
func startFakeTrainer(t *testing.T, socket, manner string) *os.Process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fakeTrainerEnv+"="+socket, fakeManner+"="+manner, "GOGC=20", "GOMAXPROCS=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if !bufio.NewScanner(out).Scan() {
		t.Fatal("the fake trainer of pid " + strconv.Itoa(cmd.Process.Pid) + " did not connect")
	}
	return cmd.Process
}
