package sidecar

import (
	"io"
	"net"
	"testing"

	"github.com/lull-project/lull/config"
)

func TestAddressThatIsTakenIsNamedByItsKey(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	addr := taken.Addr().String()
	for key, set := range map[string]func(*config.File){
		"listen":       func(f *config.File) { f.Listen = addr },
		"admin.listen": func(f *config.File) { f.Admin.Listen = addr },
	} {
		f := config.ForUpstream("http://127.0.0.1:1")
		f.Listen, f.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
		set(&f)
		s, err := New(f, quietLogger())
		if err != nil {
			t.Fatal(err)
		}
		want := key + `: got "` + addr + `", want a free address of this machine: bind: address already in use`
		if err := s.Run(t.Context(), io.Discard); err == nil || err.Error() != want {
			t.Errorf("got %v\nwant %s", err, want)
		}
	}
}
