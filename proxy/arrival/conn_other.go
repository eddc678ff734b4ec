//go:build !linux || !(amd64 || arm64)

package arrival

import "net"

// Stamped is c: stamps are Linux's.
func Stamped(c net.Conn) net.Conn { return c }

func ask(any) {}
