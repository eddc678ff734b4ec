package demo

import (
	"bufio"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lull-project/lull/size"
)

// roleEnv makes the test binary play a child process.
const roleEnv = "LULL_DEMO_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "memory":
		holdMemory()
	case "ready":
		fmt.Print(`{"listening":"127.0.0.1:1","pid":7}` + "\nlater output\n")
		waitForever()
	case "deaf":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println(`{}`)
		waitForever()
	case "broken":
		fmt.Fprintln(os.Stderr, "no such model")
		os.Exit(3)
	case "mute":
		waitForever()
	case "babble":
		fmt.Println("hello")
		waitForever()
	default:
		goleak.VerifyTestMain(m)
		return
	}
}

// waitForever ends with the test: the parent kills it, and the kernel does if
// the parent dies.
func waitForever() { select {} }

// holdMemory maps and touches as many MiB as each line of stdin says, in place
// of what it held, and answers with a line.
func holdMemory() {
	var mem []byte
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for in.Scan() {
		n, err := strconv.Atoi(strings.TrimSpace(in.Text()))
		if err != nil {
			os.Exit(2)
		}
		if mem != nil {
			if err := syscall.Munmap(mem); err != nil {
				os.Exit(2)
			}
			mem = nil
		}
		if n > 0 {
			mem, err = syscall.Mmap(-1, 0, n<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
			if err != nil {
				os.Exit(2)
			}
			for i := 0; i < len(mem); i += 4096 {
				mem[i] = 1
			}
		}
		fmt.Println("held", n)
	}
	os.Exit(0)
}

// t0 is the moment from which test events count.
var t0 = time.UnixMicro(1_700_000_000_000_000)

// at is a moment of a test, in milliseconds from t0.
func at(millis float64) time.Time { return t0.Add(time.Duration(millis * float64(time.Millisecond))) }

func unixUS(millis float64) int64 { return at(millis).UnixMicro() }

func raw(millis float64, engine, trainer size.Bytes) rawSample {
	return rawSample{At: at(millis), From: at(millis), To: at(millis + 0.05), Engine: engine, Engine2: engine, Trainer: trainer}
}
