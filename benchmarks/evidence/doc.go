// Package evidence is what every benchmark's result has in common: the machine
// that a figure comes from, and the JSON file that keeps it.
//
// It measures nothing. Its functions may be called from any goroutine.
//
//	r.Machine = evidence.ThisMachine()
//	err := evidence.Save(os.Stdout, "bench core", "out/bench/core.json", r)
package evidence
