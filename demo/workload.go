package demo

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/lull-project/lull/benchmarks/traces"
)

// Request is one request of the replayed slice.
type Request struct {
	ID string
	// At is when it is sent, from the start of the load.
	At time.Duration
	// Prompt has exactly PromptTokens words, or bytes where a token is a byte; the
	// server answers OutputTokens tokens, which the sidecar is not told.
	Prompt                     string
	PromptTokens, OutputTokens int
}

// Workload scales a trace to requests: times divided by s.Compress, tokens
// multiplied by s.TokenScale (at least one), those that arrive before window,
// at most limit of them (0: no limit). The same seed gives the same prompts.
func Workload(rows []traces.Row, s Sizing, window time.Duration, limit int, seed uint64) ([]Request, error) {
	var reqs []Request
	for i, row := range rows {
		at := time.Duration(float64(row.At) / s.Compress)
		if at >= window || limit > 0 && i >= limit {
			break
		}
		r := Request{
			ID: fmt.Sprintf("r%03d", i), At: at,
			PromptTokens: s.cut(scaleTokens(row.PromptTokens, s.TokenScale)),
			OutputTokens: min(scaleTokens(row.OutputTokens, s.TokenScale), s.MaxTokens),
		}
		// One generator a request: a longer slice leaves the earlier prompts alone.
		r.Prompt = words(rand.New(rand.NewPCG(seed, uint64(i))), r.PromptTokens)
		if s.ByteTokens {
			r.Prompt = r.Prompt[:r.PromptTokens]
		}
		reqs = append(reqs, r)
	}
	if len(reqs) == 0 {
		return nil, fmt.Errorf("demo: workload: no row of %d arrives before %v, want at least one request", len(rows), window)
	}
	return reqs, nil
}

// warmUp is how long requests are sent before each phase, the same ones in
// every phase and none of them counted: a server that has just started answers
// from cold memory and a sidecar that has just started knows nothing of prompts
// and answers yet.
const warmUp = 3 * time.Second

// warmWorkload takes the end of the trace, which no window reaches.
func warmWorkload(rows []traces.Row, s Sizing, seed uint64) ([]Request, error) {
	end := rows[len(rows)-1].At
	var last []traces.Row
	for _, row := range rows {
		if early := end - row.At; float64(early)/s.Compress < float64(warmUp) {
			row.At = time.Duration(float64(warmUp)*s.Compress) - early - 1
			last = append(last, row)
		}
	}
	reqs, err := Workload(last, s, warmUp, 0, seed+1)
	for i := range reqs {
		reqs[i].ID = fmt.Sprintf("warm%03d", i)
	}
	return reqs, err
}

// cut keeps a prompt within what the server takes.
func (s Sizing) cut(tokens int) int {
	if s.MaxPrompt > 0 {
		return min(tokens, s.MaxPrompt)
	}
	return tokens
}

func scaleTokens(n int, factor float64) int {
	return max(1, int(math.Round(float64(n)*factor)))
}

// words makes n words of 2 to 9 letters: a token of the emulator is a word, and
// bytes per token vary as they do with real text.
func words(rng *rand.Rand, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		for range 2 + rng.IntN(8) {
			b.WriteByte(byte('a' + rng.IntN(26)))
		}
	}
	return b.String()
}

// spread picks n requests evenly over the slice, all of them when there are
// fewer.
func spread(reqs []Request, n int) []Request {
	if n >= len(reqs) {
		return reqs
	}
	picked := make([]Request, 0, n)
	for i := range n {
		picked = append(picked, reqs[i*len(reqs)/n])
	}
	return picked
}
