package emulator

import (
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/lull-project/lull/emulator/faults"
	"github.com/lull-project/lull/emulator/memory"
	"github.com/lull-project/lull/emulator/model"
	"github.com/lull-project/lull/size"
)

// WholePool as a bound means as much as the pool.
const WholePool size.Bytes = -1

// Config fixes the emulated server. Errors name fields as the flags of lull
// emulate.
type Config struct {
	// Listen is the address, host:port. Port 0 takes a free one.
	Listen string
	// Model is the served name.
	Model string
	// Calibration names the GPU and model whose times are used.
	Calibration string
	// Coefficients replace those of Calibration when set.
	Coefficients *model.Coefficients
	// TimeScale divides all times. Above about 5 steps come near the jitter of
	// the host's timers.
	TimeScale float64
	// MaxBatchedTokens, MaxSeqs and MaxModelLen are vLLM's: tokens a step,
	// requests at once, tokens a request.
	MaxBatchedTokens, MaxSeqs, MaxModelLen int
	// KVBytesPerToken times BlockTokens is a block. Blocks of less than 2 MiB
	// share a page, larger ones are rounded up to whole pages; sizes that divide
	// 2 MiB or that it divides waste nothing.
	KVBytesPerToken size.Bytes
	BlockTokens     int
	// Pool is the most that the KV cache can ever take, Bound the most that it
	// may take at the start.
	Pool, Bound size.Bytes
	// StaticPool maps the whole pool at the start and gives nothing back, as stock
	// servers do; a bound then limits what is used, not what is held.
	StaticPool bool
	// Resident is memory that is taken at the start and never given back, as
	// weights are.
	Resident size.Bytes
	// MeanOutputTokens is the mean length of answers whose request does not say it.
	MeanOutputTokens int
	// Seed decides the drawn lengths.
	Seed uint64
	// Faults spoil every answer, such as "latency=20ms,stall-after=3". The header
	// X-Lull-Fault adds more to a single one.
	Faults string
	// CatchUp is model.Config.CatchUp.
	CatchUp time.Duration
}

// DefaultConfig is an A100 with Llama-2-13B's times, but 64 KiB of KV a token so
// that a laptop can hold it: 640 MiB are 10,240 tokens in blocks of one 2 MiB page.
func DefaultConfig() Config {
	m := model.DefaultConfig()
	return Config{
		Listen: "127.0.0.1:8000", Model: "lull-emulated",
		Calibration: "a100|Llama-2-13B", TimeScale: m.TimeScale,
		MaxBatchedTokens: m.MaxBatchedTokens, MaxSeqs: m.MaxSeqs, MaxModelLen: m.MaxModelLen,
		KVBytesPerToken: 64 * size.KiB, BlockTokens: m.BlockTokens,
		Pool: 640 * size.MiB, Bound: WholePool, Resident: 256 * size.MiB,
		MeanOutputTokens: m.MeanOutputTokens, Seed: 1, CatchUp: m.CatchUp,
	}
}

// Validate names the first flag that breaks its rule.
func (c Config) Validate() error {
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("emulate: --listen: got %q, want host:port: %w", c.Listen, err)
	}
	if strings.TrimSpace(c.Model) == "" || strings.ContainsAny(c.Model, "\"\\\n") {
		return fmt.Errorf("emulate: --model: got %q, want a name without quotes, backslashes and line ends", c.Model)
	}
	if err := c.validateNumbers(); err != nil {
		return err
	}
	if err := c.validateMemory(); err != nil {
		return err
	}
	if _, err := faults.Parse(c.Faults); err != nil {
		return fmt.Errorf("emulate: --fault-*: %w", err)
	}
	m, err := c.modelConfig()
	if err != nil {
		return err
	}
	if err := m.Validate(); err != nil {
		return fmt.Errorf("emulate: %w", err)
	}
	return nil
}

func (c Config) validateNumbers() error {
	for _, f := range []struct {
		flag  string
		value int
	}{
		{"--max-batched-tokens", c.MaxBatchedTokens}, {"--max-seqs", c.MaxSeqs},
		{"--max-model-len", c.MaxModelLen}, {"--block-tokens", c.BlockTokens},
		{"--mean-output-tokens", c.MeanOutputTokens},
	} {
		if f.value < 1 || f.value > 1<<24 {
			return fmt.Errorf("emulate: %s: got %d, want 1 to %d", f.flag, f.value, 1<<24)
		}
	}
	switch {
	case !(c.TimeScale > 0) || c.TimeScale > 1e6:
		return fmt.Errorf("emulate: --time-scale: got %v, want a number above 0 and at most 1e6", c.TimeScale)
	case c.MaxBatchedTokens < c.MaxSeqs:
		return fmt.Errorf("emulate: --max-batched-tokens: got %d, want at least --max-seqs (%d)", c.MaxBatchedTokens, c.MaxSeqs)
	}
	return nil
}

func (c Config) validateMemory() error {
	if c.KVBytesPerToken < 1 || c.KVBytesPerToken > size.GiB {
		return fmt.Errorf("emulate: --kv-bytes-per-token: got %v, want 1B to 1GiB", c.KVBytesPerToken)
	}
	g := c.geometry()
	need := size.Bytes(g.pagesFor(c.MaxModelLen)) * g.page
	switch {
	case c.Pool < need || c.Pool > 16384*size.GiB:
		return fmt.Errorf("emulate: --pool: got %v, want at least %v, which one request of --max-model-len (%d tokens) needs, and at most 16 TiB", c.Pool, need, c.MaxModelLen)
	case c.Bound != WholePool && (c.Bound < 0 || c.Bound > c.Pool):
		return fmt.Errorf("emulate: --bound: got %v, want 0B to --pool (%v)", c.Bound, c.Pool)
	case c.Resident < 0 || c.Resident > 16384*size.GiB:
		return fmt.Errorf("emulate: --resident: got %v, want 0B to 16 TiB", c.Resident)
	}
	return nil
}

// modelConfig is the pure model's view of the config.
func (c Config) modelConfig() (model.Config, error) {
	coefficients := c.Coefficients
	if coefficients == nil {
		found, err := model.Calibration(c.Calibration)
		if err != nil {
			return model.Config{}, fmt.Errorf("emulate: --calibration: %w", err)
		}
		coefficients = &found
	}
	g := c.geometry()
	return model.Config{
		Coefficients: *coefficients, TimeScale: c.TimeScale,
		MaxBatchedTokens: c.MaxBatchedTokens, MaxSeqs: c.MaxSeqs, MaxModelLen: c.MaxModelLen,
		BlockTokens: c.BlockTokens, BlocksPerPage: g.blocksPerPage,
		Pages: g.pages, BoundPages: g.boundPages(c.Bound),
		MeanOutputTokens: c.MeanOutputTokens, CatchUp: c.CatchUp,
	}, nil
}

// geometry is how tokens lie in blocks and blocks in pages.
type geometry struct {
	blockTokens   int
	blocksPerPage int
	page          size.Bytes // a whole number of memory.PageBytes
	pages         int
}

func (c Config) geometry() geometry {
	block := c.KVBytesPerToken * size.Bytes(c.BlockTokens)
	g := geometry{blockTokens: c.BlockTokens, blocksPerPage: 1, page: block.CeilTo(memory.PageBytes)}
	if block < memory.PageBytes {
		g.blocksPerPage = int(memory.PageBytes / block)
	}
	g.pages = int(c.Pool / g.page)
	return g
}

func (g geometry) pool() size.Bytes { return size.Bytes(g.pages) * g.page }

func (g geometry) pagesFor(tokens int) int {
	blocks := (tokens + g.blockTokens - 1) / g.blockTokens
	return (blocks + g.blocksPerPage - 1) / g.blocksPerPage
}

// boundPages rounds a bound down to whole pages, the pool at most.
func (g geometry) boundPages(bound size.Bytes) int {
	if bound == WholePool || bound > g.pool() {
		return g.pages
	}
	return int(bound / g.page)
}

// memoryPages is how many pages of memory.PageBytes one page of the model takes.
func (g geometry) memoryPages() int { return int(g.page / memory.PageBytes) }
