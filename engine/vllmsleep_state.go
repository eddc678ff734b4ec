package engine

import "fmt"

// vllmSleepState is awake 1, or awake 0 with what else is asleep. After
// /release_kv_cache_memory all of its series are 0 (vLLM 0.32,
// v1/metrics/loggers.py).
const vllmSleepState = "vllm:engine_sleep_state"

// sleepState is what of a vLLM is there.
type sleepState int

const (
	poolThere sleepState = iota
	poolGone
	allAsleep
)

// sleepStateOf reads the gauge: one set of series an engine (data parallel).
func sleepStateOf(f families) (sleepState, error) {
	awake, offloaded, engines := 0.0, 0.0, 0
	for _, v := range f.values(vllmSleepState) {
		switch v.labels["sleep_state"] {
		case "awake":
			awake += v.value
			engines++
		case "weights_offloaded", "discard_all":
			offloaded += v.value
		}
	}
	switch {
	case engines == 0:
		return 0, fmt.Errorf("got no %s, want it: start vLLM with --enable-sleep-mode, or name the kind %s", vllmSleepState, KindVLLM)
	case offloaded > 0:
		return allAsleep, nil
	case awake == 0:
		return poolGone, nil
	case int(awake) == engines:
		return poolThere, nil
	}
	return allAsleep, nil // some engines only: nobody's pool to lend
}
