// Package size holds the one unit of memory that every package shares: Bytes.
//
// It parses and prints sizes the way configs and logs show them ("640MiB",
// "2.0GiB"), and it does nothing else: no I/O, no clock. Any package may import
// it; it imports only the standard library. Its values are safe to share.
//
//	b, err := size.Parse("64MiB") // size.Bytes(67108864)
package size
