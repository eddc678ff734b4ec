package handover

// Why an order goes out or a bound moves: the words of Order.Reason and
// SetBound.Reason. docs/METRICS.md explains them, and a test holds it to this list.
const (
	reasonArrival    = "arrival"     // a request came that finds no room
	reasonForecast   = "forecast"    // more is expected than there is room for
	reasonShort      = "short"       // the engine says that requests lack blocks
	reasonEngineDown = "engine_down" // room for its start
	reasonFloor      = "floor"       // a trainer asked for a higher floor
	reasonGrow       = "grow"        // what no engine is expected to want
	reasonFence      = "fence"       // the first order of a session repeats what is in force
	reasonDemand     = "demand"      // a bound rises into free bytes
	reasonLend       = "lend"        // an unused bound comes down for training
	reasonSqueeze    = "squeeze"     // the world took more than there is, and training has nothing left
	reasonRetry      = "retry"       // a bound was not confirmed
	reasonStatic     = "static"      // policy.mode static: the one split
	ReasonUndo       = "undo"        // a pool that moves whole did not go or come: back to what it was
	reasonEvict      = "evict"       // an idle model goes for one that is asked for
)
