package trainer

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSocketIsForItsUserOnly(t *testing.T) {
	dir := filepath.Join(shortDir(t), "run")
	srv, _ := listen(t, func(c *Config) { c.Path = filepath.Join(dir, "lull.sock") })
	info, err := os.Lstat(srv.Addr())
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket mode %v, %v, want 0600", info.Mode().Perm(), err)
	}
	info, err = os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory mode %v, %v, want 0700", info.Mode().Perm(), err)
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(shortDir(t), "lull.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	srv, r := listen(t, func(c *Config) { c.Path = path })
	join(t, srv, r)
}

func TestSocketThatAnswersIsLeftAlone(t *testing.T) {
	srv, r := listen(t, nil)
	_, err := Listen(Config{Path: srv.Addr()}, r)
	want := "trainer: listen " + srv.Addr() + ": another process answers there, want one sidecar a socket; it is left alone"
	if err == nil || err.Error() != want {
		t.Fatalf("error %v, want %s", err, want)
	}
	join(t, srv, r)
}

func TestFileThatIsNoSocketIsLeftAlone(t *testing.T) {
	path := filepath.Join(shortDir(t), "lull.sock")
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Listen(Config{Path: path}, newRecorder())
	want := "trainer: listen " + path + ": a file that is no socket is there, want nothing or a stale socket; it is left alone"
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if b, _ := os.ReadFile(path); string(b) != "mine" {
		t.Errorf("the file now holds %q", b)
	}
}

func TestCloseLeavesASuccessorsSocketAlone(t *testing.T) {
	srv, _ := listen(t, nil)
	if err := os.Remove(srv.Addr()); err != nil {
		t.Fatal(err)
	}
	next, r := listen(t, func(c *Config) { c.Path = srv.Addr() })
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	join(t, next, r)
}

func TestListenErrorNamesThePlace(t *testing.T) {
	path := filepath.Join(shortDir(t), strings.Repeat("x", 120))
	_, err := Listen(Config{Path: path}, newRecorder())
	if err == nil || !strings.HasPrefix(err.Error(), "trainer: listen "+path+": ") {
		t.Errorf("error %v, want the path", err)
	}
}

func TestConfigErrorsNameKeyValueAndRule(t *testing.T) {
	for want, c := range map[string]Config{
		"trainer.heartbeat: got 1µs, want at least 1ms":                                  {Heartbeat: time.Microsecond},
		"trainer.lease: got 2s, want at least 3 heartbeats, 3s":                          {Lease: 2 * time.Second},
		"trainer.hello_timeout: got -1s, want more than 0":                               {HelloTimeout: -time.Second},
		"trainer.tls: got none, want a certificate, since trainer.tcp is 127.0.0.1:0":    {TCPAddr: "127.0.0.1:0"},
		"trainer.token: got 5 bytes, want at least 16, since trainer.tcp is 127.0.0.1:0": {TCPAddr: "127.0.0.1:0", TLS: certified(t).server, Token: "short"},
	} {
		if _, err := Listen(c, newRecorder()); err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	if err := DefaultConfig().Validate(); err != nil {
		t.Errorf("the default config: %v", err)
	}
}
