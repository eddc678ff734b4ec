package peers

import (
	_ "embed"
	"path/filepath"
	"strings"
)

//go:embed conf/nginx.conf
var nginxConf string

//go:embed conf/haproxy.cfg
var haproxyConf string

// debian fetches packages with apt and unpacks them into the folder, so that no
// service starts and nothing of the system changes. Debian keeps only the newest
// revision of a version, hence the pin on the version without it.
func debian(packages ...string) recipe {
	get := "apt-get download -q -o APT::Sandbox::User=root " + strings.Join(packages, " ")
	return recipe{
		needs: []string{"apt-get", "dpkg"},
		steps: [][]string{
			{"sh", "-c", get + " || { apt-get update -q && " + get + "; }"},
			{"sh", "-c", "for p in *.deb; do dpkg -x \"$p\" ROOT/tree || exit 1; done"},
		},
	}
}

func nginx() Peer {
	binary := func(root string) string { return filepath.Join(root, "tree/usr/sbin/nginx") }
	return Peer{
		Name: "nginx", Version: "1.22.1", Registry: "apt", Settings: []string{"benchmarks/peers/conf/nginx.conf"},
		recipe:  debian("nginx='1.22.1-*'"),
		version: func(root string) []string { return []string{binary(root), "-v"} },
		launch: func(at place) launch {
			return launch{
				files: map[string]string{"nginx.conf": render(nginxConf, at)},
				argv:  []string{binary(at.Root), "-e", "stderr", "-p", at.Work, "-c", filepath.Join(at.Work, "nginx.conf")},
			}
		},
	}
}

// haproxyLibraries are what Debian's build links and a machine may lack.
var haproxyLibraries = []string{"liblua5.3-0='5.3.6-*'", "libopentracing-c-wrapper0='1.1.3-*'", "libopentracing1='1.6.0-*'"}

func haproxy() Peer {
	binary := func(root string) string { return filepath.Join(root, "tree/usr/sbin/haproxy") }
	libraries := func(root string) string {
		found, _ := filepath.Glob(filepath.Join(root, "tree/usr/lib/*-linux-gnu")) // the pattern is good
		return "LD_LIBRARY_PATH=" + strings.Join(found, ":")
	}
	return Peer{
		Name: "haproxy", Version: "2.6.12", Registry: "apt", Settings: []string{"benchmarks/peers/conf/haproxy.cfg"},
		recipe:  debian(append([]string{"haproxy='2.6.12-*'"}, haproxyLibraries...)...),
		version: func(root string) []string { return []string{"env", libraries(root), binary(root), "-v"} },
		launch: func(at place) launch {
			return launch{
				files: map[string]string{"haproxy.cfg": render(haproxyConf, at)},
				argv:  []string{binary(at.Root), "-db", "-f", filepath.Join(at.Work, "haproxy.cfg")},
				env:   []string{libraries(at.Root)},
			}
		},
	}
}
