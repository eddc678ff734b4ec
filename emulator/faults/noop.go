package faults

// noop changes nothing: the pattern for a new fault.
func noop(next Sink) Sink { return noopFault{next} }

type noopFault struct{ Sink }
