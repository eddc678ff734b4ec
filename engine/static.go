package engine

import (
	"time"

	"github.com/lull-project/lull/size"
)

// staticSample is what the config alone says of a static server: it holds its
// pool and nothing of it moves.
func staticSample(c Config, at time.Time) Sample {
	return Sample{
		At: at, PID: c.PID, UsageFrac: -1,
		Pool: c.Pool, Held: c.Pool, Bound: c.Pool,
		BytesPerToken: c.BytesPerToken, BlockTokens: c.BlockTokens,
	}
}

// setPool fills in the pool, or the bytes of a token, from the pool's tokens
// where the config leaves them open.
func (s *Sample) setPool(tokens int) {
	if tokens <= 0 {
		return
	}
	s.PoolTokens = tokens
	if s.Pool == 0 {
		s.Pool = size.Bytes(tokens) * s.BytesPerToken
	}
	if s.BytesPerToken == 0 {
		s.BytesPerToken = s.Pool / size.Bytes(tokens)
	}
	s.Held, s.Bound = s.Pool, s.Pool
}

// setUsage sets the logical use of the pool.
func (s *Sample) setUsage(frac float64) {
	s.UsageFrac = frac
	s.Needed = size.Bytes(frac * float64(s.Pool))
}
