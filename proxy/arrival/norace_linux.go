//go:build linux && (amd64 || arm64) && !race

package arrival

// observed is for the race detector only.
func observed(uintptr) {}
