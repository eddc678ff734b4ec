// Package cli is the command line: one verb a file, each only flags and a call.
//
// Nothing is decided here. Every verb's work is a function of another package
// that tests call in the same way. A command is run by one goroutine.
//
//	os.Exit(cli.Main(os.Args[1:]))
package cli
