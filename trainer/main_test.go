package trainer

import (
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// dialEnv makes this test binary another user's process: it connects to the
// socket that the variable names, prints what it reads and ends.
const dialEnv = "LULL_TEST_DIAL"

func TestMain(m *testing.M) {
	if path := os.Getenv(dialEnv); path != "" {
		conn, err := net.Dial("unix", path)
		if err == nil {
			_, err = io.Copy(os.Stdout, conn)
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
