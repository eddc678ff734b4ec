// Package enginetest runs scripts that play an engine's process, for the tests of
// whoever talks to one.
package enginetest
