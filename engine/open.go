package engine

import "context"

// Open makes an Engine of the config's kind. For auto it asks the server what it
// is within ctx, which needs the server up: the error then wraps ErrUnreachable or
// ErrNotReady and the caller tries again. Other kinds open without a word to the
// server.
func Open(ctx context.Context, c Config) (Engine, error) {
	c = c.withDefaults()
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Kind == KindAuto {
		kind, err := detect(ctx, newClient(c))
		if err != nil {
			return nil, err
		}
		c.Kind = kind
	}
	switch c.Kind {
	case KindEmulator:
		return newEmulator(c), nil
	case KindVLLM:
		return newVLLM(c), nil
	case KindVLLMSleep:
		return newVLLMSleep(c), nil
	case KindLullVLLM:
		return openLullVLLM(c)
	case KindKvcached:
		return newKvcached(c), nil
	case KindSGLang:
		return newSGLang(c), nil
	case KindTriton:
		if c.Model != nil {
			return newTritonModel(c), nil
		}
		return newTriton(c), nil
	case KindLlamaCPP:
		return newLlamaCPP(c), nil
	case KindTGI:
		return newTGI(c), nil
	case KindOllama:
		return newOllama(c), nil
	}
	return newOpenAI(c), nil
}
