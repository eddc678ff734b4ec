package engine

import "context"

// openAI is any server with an OpenAI-compatible API: its health can be seen and
// nothing of its memory. What the config says of the pool is passed on.
type openAI struct {
	*client
	cfg Config
}

func newOpenAI(c Config) *openAI { return &openAI{newClient(c), c} }

// Capabilities: static, and nothing to see.
func (e *openAI) Capabilities() Capabilities { return Capabilities{Kind: KindOpenAI, Static: true} }

// Observe asks for the models, which is the one thing that all of them answer.
func (e *openAI) Observe(ctx context.Context) (Sample, error) {
	m, err := e.models(ctx)
	if err != nil {
		return Sample{}, err
	}
	s := staticSample(e.cfg, e.now())
	s.MaxModelLen = m.maxLen()
	return s, nil
}
