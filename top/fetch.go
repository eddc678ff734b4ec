package top

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/lull-project/lull/size"
)

// mostAnswer bounds what is read of an answer.
const mostAnswer = 16 << 20

// Screen is what is shown, as of one moment.
type Screen struct {
	Source    string
	At        time.Time
	State     State
	Handovers []Handover
}

// State is the part of /api/v1/state that is shown.
type State struct {
	Session  uint32   `json:"session"`
	Lending  bool     `json:"lending"`
	Requests int      `json:"requests_live"`
	Memory   []Owner  `json:"memory"`
	Problems []string `json:"problems"`
	SLO      []SLO    `json:"slo"`
	Engines  []Server `json:"engines"`
	Served   Served   `json:"served"`
	Ledger   *Ledger  `json:"ledger"`
}

// Server is an LLM server by its own word.
type Server struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
}

// Served is what of requests is known without any objective, since the start.
type Served struct {
	Requests    int64         `json:"requests"`
	TTFTSamples int64         `json:"ttft_samples"`
	TTFTP50     time.Duration `json:"ttft_p50_ns"`
	TTFTP99     time.Duration `json:"ttft_p99_ns"`
}

// Owner is an engine or a trainer: its bytes by category, and what of them could be
// taken back, by time.
type Owner struct {
	Device      string           `json:"device"`
	Owner       string           `json:"owner"`
	Party       string           `json:"party"`
	Bytes       map[string]int64 `json:"bytes"`
	Reclaimable map[string]int64 `json:"reclaimable_bytes"`
}

// Ledger is who may have what.
type Ledger struct {
	Devices []struct {
		ID       string     `json:"id"`
		Capacity size.Bytes `json:"capacity_bytes"`
		Free     size.Bytes `json:"free_bytes"`
		Headroom size.Bytes `json:"headroom_bytes"`
		Breaches uint64     `json:"breaches"`
		Deferred uint64     `json:"shrinks_deferred"`
	} `json:"devices"`
	Engines []struct {
		ID      string     `json:"id"`
		Pool    size.Bytes `json:"pool_bytes"`
		Bound   size.Bytes `json:"kv_bound_bytes"`
		Held    size.Bytes `json:"kv_held_bytes"`
		Target  size.Bytes `json:"target_bytes"`
		Down    bool       `json:"down"`
		Reserve struct {
			Bytes size.Bytes `json:"bytes"`
			Why   string     `json:"why"`
		} `json:"reserve"`
	} `json:"engines"`
	Trainers []struct {
		ID     string     `json:"id"`
		Device string     `json:"device"`
		Floor  size.Bytes `json:"floor_bytes"`
		Budget size.Bytes `json:"budget_bytes"`
		Held   size.Bytes `json:"held_bytes"`
		Owed   bool       `json:"owed"`
		Gone   bool       `json:"gone"`
		Why    string     `json:"why"`
	} `json:"trainers"`
	Expected time.Duration `json:"expected_handover_ns"`
	Tail     time.Duration `json:"handover_tail_ns"`
}

// SLO is one objective's attainment.
type SLO struct {
	Name       string `json:"name"`
	Objectives []struct {
		Objective string  `json:"objective"`
		Target    float64 `json:"target"`
		Windows   []struct {
			Window     string   `json:"window"`
			Attainment *float64 `json:"attainment"`
		} `json:"windows"`
	} `json:"objectives"`
}

// Handover is one of the last handovers.
type Handover struct {
	At        time.Time  `json:"at"`
	Trainer   string     `json:"trainer"`
	Direction string     `json:"direction"`
	Reason    string     `json:"reason"`
	How       string     `json:"how"`
	Result    string     `json:"result"`
	From      size.Bytes `json:"from_bytes"`
	To        size.Bytes `json:"to_bytes"`
	TookUS    int64      `json:"took_us"`
}

// Fetch reads a sidecar's admin API at a base URL such as http://127.0.0.1:9797.
func Fetch(ctx context.Context, client *http.Client, base string, at time.Time) (Screen, error) {
	base = strings.TrimSuffix(base, "/")
	s := Screen{Source: base, At: at}
	if err := get(ctx, client, base+"/api/v1/state", &s.State); err != nil {
		return s, err
	}
	return s, get(ctx, client, base+"/api/v1/handovers", &s.Handovers)
}

func get(ctx context.Context, client *http.Client, url string, into any) error {
	const want = "want the admin listener of `lull serve` (its ready line names it, admin.listen sets it)"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("top: %w; %s", err, want)
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("top: %w; %s", err, want)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("top: GET %s: got %s, %s", url, resp.Status, want)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, mostAnswer)).Decode(into); err != nil {
		return fmt.Errorf("top: GET %s: got what is no state (%w), %s", url, err, want)
	}
	return nil
}
